"""Stage `dedup`: near-duplicates and documents that overlap with evaluation data.

In:  the corpus; evaluation data for the overlap search.
Out: `drop.arrow`, a drop list (pipeline/text/duplicates.py): the digest of each document to
     drop, the reason, and the digest of the document kept instead.

    python -P -m cloze.pipeline.dedup --config TABLE.json [engine options]

Exact duplicates need no stage of their own: the tokens stage drops them. The workers process every
document on its own and write one Arrow file of candidates per input shard; the launcher then
compares the documents that may be near-duplicates. It needs about 60 bytes of memory per document,
including the keys of one band; all bands, and the shingles of documents that share a band, are
spilled to disk. Among near-duplicates a held-out document is kept, otherwise the one of the first
source, otherwise the one with the smallest digest; file names and positions never matter.
"""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import (
    Bytes,
    Int64s,
    Mask,
    digest_array,
    digest_bytes,
    digest_halves,
    is_first_of_equals,
    list_array,
    list_lengths,
    list_values,
)
from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import naming_full_disk
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.program import run_program
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import (
    WORK,
    Artifact,
    all_finished,
    clear_work,
    commit,
    put_local_file,
    scratch_directory,
)
from cloze.artifacts.tables import TOKEN_DIGEST_BYTES
from cloze.pipeline.config.made_lists import with_made_lists
from cloze.pipeline.config.settings import DedupStage, NearDuplicatesConfig
from cloze.pipeline.readers.input_shards import CorpusFiles, InputShard
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import WorkQueue
from cloze.pipeline.text.duplicates import (
    ShingleSets,
    band_keys,
    bands_for,
    evaluation_shingles,
    kept_for,
    overlapping,
    shared_bands,
    shingles,
)
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.splits import HELDOUT_SPLIT, assign_splits, split_names
from cloze.pipeline.text.texts import TextBlock, read_texts

NAME = "drop.arrow"
SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("kept_digest", pa.binary(TOKEN_DIGEST_BYTES)),
    ]
)
"""`reason` is `near_duplicate` or `overlap`; only near-duplicates have a `kept_digest`."""

# N documents of all files, in file order; D documents of a block; B bands; C candidates; P pairs of
# a candidate and a group


@dataclass(frozen=True)
class DuplicateSearch:
    """The search, as all workers of the stage share it."""

    stage: DedupStage
    output: str
    """The unfinished artifact."""

    @property
    def bands(self) -> int:
        """Bands per document; a single empty one if there is no search for near-duplicates."""
        near = self.stage.dedup.near_duplicates
        return bands_for(near).count if near else 1

    @property
    def schema(self) -> pa.Schema:
        """The schema of a file of candidates."""
        return pa.schema(
            [
                pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
                pa.field("preference", pa.uint16()),
                pa.field("source", pa.uint16()),
                pa.field("overlaps", pa.bool_()),
                pa.field("bands", pa.list_(pa.uint64(), self.bands)),
                pa.field("shingles", pa.list_(pa.uint32())),
            ]
        )

    def candidates(self, block: TextBlock) -> pa.RecordBatch:
        """The rows of a block's documents, without those that the filters drop."""
        # a signature of zeros for all documents of a stage that only looks for overlaps
        stage, count = self.stage, len(block.ends_D)
        keys_DB = np.zeros((count, self.bands), dtype=np.uint64)
        zeros_D = np.zeros(count, dtype=np.int64)
        sets = ShingleSets(np.zeros(0, dtype=np.uint32), zeros_D, zeros_D)
        if near := stage.dedup.near_duplicates:
            sets = ShingleSets.of(shingles(block.text, block.ends_D, words=near.words), count)
            keys_DB = band_keys(sets, bands_for(near))
        overlaps_D = np.zeros(count, dtype=np.bool_)
        if overlap := stage.dedup.overlap:
            found = shingles(block.text, block.ends_D, words=overlap.words)
            overlaps_D = overlapping(found, count, evaluation_shingles(overlap))
        # preferred documents have smaller numbers: held-out ones, named splits first
        splits_D = assign_splits(
            block.digests_D2, source=block.source, corpus=stage.corpus, seed=stage.seed
        ).astype(np.uint16)
        named_D, splits = splits_D > HELDOUT_SPLIT, len(split_names(stage.corpus))
        preferences_D = np.where(named_D, splits_D - HELDOUT_SPLIT - 1, splits - 1 - splits_D)
        schema = self.schema
        columns = [
            digest_array(block.digests),
            pa.array(preferences_D.astype(np.uint16)),
            pa.array(np.full(count, block.source, dtype=np.uint16)),
            pa.array(overlaps_D),
            pa.FixedSizeListArray.from_arrays(
                pa.array(keys_DB.ravel()), type=schema.field("bands").type
            ),
            list_array(sets.values_S, sets.ends_D, schema.field("shingles").type),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        # Filtered last: shingles and digests were computed for the block as a whole.
        return batch.filter(pa.array(block.reasons_D == Reason.KEPT))


def make_drop_list(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: search every input shard, then write the drop list."""
    stage = with_made_lists(parse(DedupStage, table.config, source="stage dedup"), table)
    if not stage.dedup.wanted:
        raise UsageError(
            "[dedup]: nothing to look for; set dedup.near_duplicates = {} or dedup.overlap"
        )
    search = DuplicateSearch(stage, table.output)
    files = CorpusFiles(stage.corpus, table.output)
    shards = files.shards()
    write = partial(write_candidates, search=search)
    Runner.of(table, options).finish(
        shards, write, name_of=candidates_name, progress="dedup", label="Search"
    )
    files.require_unchanged()
    with scratch_directory(table.output) as scratch, naming_full_disk(scratch):
        names = list(map(candidates_name, shards))
        found = CandidateFiles(table.output, names, bands=search.bands, scratch=scratch)
        distinct = found.documents.distinct()
        listed = drop_list(found, distinct, stage.dedup.near_duplicates)
        path = os.path.join(scratch, NAME)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_table(listed)
        entry = put_local_file(table.output, path, name=NAME, rows=len(listed))
    reasons = dict(sorted(Counter(listed["reason"].to_pylist()).items()))
    say(f"dedup: {len(listed):,} of {len(distinct):,} documents, {reasons}")
    statistics = {"distinct_documents": len(distinct), "dropped": reasons}
    artifact = commit(table, [entry], statistics=statistics)
    clear_work(table.output)
    return artifact


def candidates_name(shard: InputShard) -> str:
    """The name of a shard's candidate file within the artifact."""
    return f"{WORK}/{shard.name}.arrow"


def write_candidates(shard: InputShard, *, search: DuplicateSearch, queue: WorkQueue) -> str:
    """Write a shard's candidates into the artifact; returns the name of their file."""
    documents = rows = 0
    stage = search.stage
    with temporary_directory() as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, "candidates.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, search.schema) as writer:
            for block in read_texts(shard, corpus=stage.corpus, cleaning=stage.cleaning):
                documents += len(block.ends_D)
                batch = search.candidates(block)
                rows += len(batch)
                writer.write_batch(batch)
        put_local_file(search.output, path, name=candidates_name(shard), rows=rows)
    queue.report(MB=shard.megabytes, documents=documents)
    return candidates_name(shard)


@dataclass(frozen=True)
class Precedence:
    """The columns that decide which of several documents is kept.

    digests_N16:  their digests.
    preference_N: smaller for preferred documents.
    source_N:     index of the source in the configuration.
    overlaps_N:   whether a document overlaps with evaluation data.
    """

    digests_N16: Bytes
    preference_N: npt.NDArray[np.uint16]
    source_N: npt.NDArray[np.uint16]
    overlaps_N: Mask

    def distinct(self) -> Int64s:
        """The row of one document per digest, in order of preference."""
        halves_N2 = digest_halves(self.digests_N16)
        high_N, low_N = halves_N2[:, 0], halves_N2[:, 1]
        # np.lexsort sorts by its last key first: equal digests together, the preferred one first.
        equal_together = np.lexsort((self.source_N, self.preference_N, low_N, high_N))
        once = equal_together[is_first_of_equals(halves_N2[equal_together])]
        columns = (low_N[once], high_N[once], self.source_N[once], self.preference_N[once])
        return once[np.lexsort(columns)]


class CandidateFiles:
    """All candidate files of a finished search, as one table of numbered rows."""

    def __init__(self, output: str, names: Sequence[str], *, bands: int, scratch: str) -> None:
        """Read the documents into memory and the bands into `scratch`, a local directory."""
        self._output = output
        self._entries = all_finished(output, names)
        self._scratch = scratch
        rows = sum(entry.rows or 0 for entry in self._entries)
        keys_path = os.path.join(scratch, "bands")
        # Band by band rather than document by document, as `kept_for` reads one band of all
        # documents at a time: [bands, rows] on disk.
        self._keys_BN = np.memmap(keys_path, np.uint64, mode="w+", shape=(bands, max(rows, 1)))
        self._rows = 0
        parts: list[Precedence] = []
        for table in self._tables():
            end = self._rows + len(table)
            keys = table["bands"].combine_chunks().flatten().to_numpy()
            self._keys_BN[:, self._rows : end] = keys.reshape(-1, bands).T
            self._rows = end
            parts.append(
                Precedence(
                    digest_bytes(table["document_digest"]),
                    *(table[name].to_numpy() for name in ("preference", "source", "overlaps")),
                )
            )
        columns = zip(*(vars(part).values() for part in parts), strict=True)
        self.documents = Precedence(*map(np.concatenate, columns))

    def kept_for(self, rows_D: Int64s, near: NearDuplicatesConfig) -> Int64s:
        """Which document is kept for each of those at `rows_D`, in order of preference: (D,).

        Itself, unless an earlier one is a near-duplicate.
        """
        members_P, groups_P = shared_bands(
            np.asarray(keys_N[: self._rows])[rows_D] for keys_N in self._keys_BN
        )
        # Only documents that share some band have to be compared; they get numbers of their own.
        candidates_C, candidates_P = np.unique(members_P, return_inverse=True)
        stays_D = np.arange(len(rows_D))
        if not len(candidates_C):
            return stays_D
        # spill the shingle sets of the candidates to disk, in file order
        path = os.path.join(self._scratch, "shingles")
        order = np.argsort(rows_D[candidates_C])
        wanted, lengths = rows_D[candidates_C][order], [np.zeros(0, dtype=np.int64)]
        first = 0
        with open(path, "wb") as spill:
            for table in self._tables():
                inside = slice(*np.searchsorted(wanted, (first, first + len(table))))
                found = table["shingles"].take(pa.array(wanted[inside] - first))
                list_values(found).tofile(spill)
                lengths.append(list_lengths(found))
                first += len(table)
        # Back from file order to the order of the candidates.
        ends = np.cumsum(np.concatenate(lengths))
        starts_C, ends_C = np.empty_like(ends), np.empty_like(ends)
        ends_C[order] = ends
        starts_C[order] = ends - np.concatenate(lengths)
        sets = ShingleSets(np.memmap(path, np.uint32, mode="r"), starts_C, ends_C)
        stays_C = kept_for(candidates_P, groups_P, sets, threshold=near.threshold)
        stays_D[candidates_C] = candidates_C[stays_C]
        return stays_D

    def _tables(self) -> Iterator[pa.Table]:
        """The rows of each file, memory-mapped until the next one is read: copy what must last."""
        for entry in self._entries:
            stored = filesystem.join(self._output, entry.stored_name)
            with (
                filesystem.brought_here(stored, self._scratch) as path,
                pa.memory_map(path) as file,
            ):
                yield pa.ipc.open_file(file).read_all()


def drop_list(
    found: CandidateFiles, distinct_D: Int64s, near: NearDuplicatesConfig | None
) -> pa.Table:
    """The drop list for the documents at `distinct_D`, which are in order of preference.

    A document that overlaps with evaluation data cannot be kept instead of another one, so these
    are removed before the search for near-duplicates.
    """
    overlaps_D = found.documents.overlaps_N[distinct_D]
    overlapping, clean = distinct_D[overlaps_D], distinct_D[~overlaps_D]
    stays = clean[found.kept_for(clean, near)] if near else clean
    alike = clean != stays
    digests_N16 = found.documents.digests_N16
    dropped = digest_array(digests_N16[np.concatenate((overlapping, clean[alike]))])
    kept = digest_array(digests_N16[stays[alike]])
    reasons = ["overlap"] * len(overlapping) + ["near_duplicate"] * len(kept)
    kept = pa.concat_arrays([pa.nulls(len(overlapping), kept.type), kept])
    listed = [dropped, pa.array(reasons, pa.string()), kept]
    # sorted by digest, so that the list does not depend on the division into shards
    return pa.Table.from_arrays(listed, schema=SCHEMA).sort_by("document_digest")


if __name__ == "__main__":
    run_program(make_drop_list)
