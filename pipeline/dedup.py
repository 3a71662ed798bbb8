"""Stage `dedup`: near-duplicates and documents that overlap with evaluation data.

In:  the corpus; for overlaps, evaluation data.
Out: `drop.arrow`, a drop list (pipeline/duplicates/drop_list.py): the digest of each document to
     be dropped, the reason, and the digest of the document that stays for it.

    python -P -m pipeline.dedup --config TABLE.json [engine options]

Exact duplicates need no stage of their own: the tokens stage drops them on its way. Here one job
looks at every document by itself; the launcher then finds who is alike to whom. Of documents alike
a held-out one stays, else the one of the first source, else the one whose digest comes first: never
what a file's name or place would decide.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from artifacts import filesystem
from artifacts.arrays import UInt64s, digest_bytes, digest_halves, is_first_of_equals
from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.filesystem import naming_full_disk
from artifacts.progress import Progress, say
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import (
    FINISHED,
    WORK,
    Artifact,
    all_finished,
    commit,
    finished_files,
    put_file,
)
from artifacts.tables import TOKEN_DIGEST_BYTES
from pipeline.config.stage_tables import DedupStage, PipelineMachine
from pipeline.duplicates.near_duplicates import band_keys, bands_for, representatives
from pipeline.duplicates.shingles import evaluation_shingles, overlapping, shingles
from pipeline.readers.input_shards import CorpusFiles, InputShard
from pipeline.runner.beam import Map, PCollection, Pipeline
from pipeline.runner.graph import run_graph, spread
from pipeline.runner.work_queue import WorkQueue
from pipeline.text.filters import Reason
from pipeline.text.texts import HELDOUT_SPLIT, TextBlock, assign_splits, read_texts, split_names

NAME = "drop.arrow"
SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("kept_digest", pa.binary(TOKEN_DIGEST_BYTES)),
    ]
)
"""`reason` is `near_duplicate` or `overlap`; only the former has a `kept_digest`."""


@dataclass(frozen=True)
class Search:
    """What all workers of the stage share."""

    stage: DedupStage
    output: str
    """The unfinished artifact."""

    @property
    def bands(self) -> int:
        """Bands of each document; one, of nothing, if near-duplicates are not looked for."""
        near = self.stage.dedup.near_duplicates
        return bands_for(near).count if near else 1

    @property
    def schema(self) -> pa.Schema:
        """Of the files of candidates: what is found out about each document by itself."""
        return pa.schema(
            [
                pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
                pa.field("preference", pa.uint16()),
                pa.field("source", pa.uint16()),
                pa.field("overlaps", pa.bool_()),
                pa.field("bands", pa.list_(pa.uint64(), self.bands)),
            ]
        )


def make_drop_list(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: every input shard is searched, then the drop list is written."""
    stage = parse(DedupStage, table.config, source="stage dedup")
    machine = parse(PipelineMachine, table.machine, source="stage dedup, machine")
    if not stage.dedup.wanted:
        raise UsageError(
            "[dedup]: nothing to look for; set dedup.near_duplicates = {} or dedup.overlap"
        )
    search = Search(stage, table.output)
    files = CorpusFiles(stage.corpus, table.output)
    shards = files.shards()
    names = list(map(candidates_name, shards))
    finished = finished_files(table.output, names)
    missing = [shard for shard in shards if candidates_name(shard) not in finished]
    if missing:
        total = sum(shard.megabytes for shard in missing)
        run_graph(
            partial(search_graph, shards=missing, search=search),
            machine=machine,
            options=options,
            progress=Progress("dedup", total=total, unit="MB"),
        )
    files.require_unchanged()
    with tempfile.TemporaryDirectory() as scratch:
        documents = distinct(pa.concat_tables(_candidates_of(names, table.output, scratch)))
        listed = drop_list(documents)
        path = os.path.join(scratch, NAME)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_table(listed)
        entry = put_file(table.output, path, name=NAME, rows=len(listed))
    reasons = dict(sorted(Counter(listed["reason"].to_pylist()).items()))
    say(f"dedup: {len(listed):,} of {len(documents):,} documents, {reasons}")
    # the stage's former name: statistics are part of the digest, and the content is no other
    statistics = {"distinct_documents": len(documents), "unwanted": reasons}
    artifact = commit(table, [entry], statistics=statistics)
    for leftover in (WORK, f"{FINISHED}/{WORK}"):
        filesystem.remove(filesystem.join(table.output, leftover))
    return artifact


def search_graph(
    pipeline: Pipeline, queue: WorkQueue, *, shards: list[InputShard], search: Search
) -> PCollection[str]:
    """Every shard is searched; the names of what was found come out."""
    found: PCollection[str] = spread(pipeline, shards, queue) | "Search" >> Map(
        write_candidates, search=search, queue=queue
    )
    return found


def candidates_name(shard: InputShard) -> str:
    """The file of a shard's candidates, within the artifact."""
    return f"{WORK}/{shard.name}.arrow"


def write_candidates(shard: InputShard, *, search: Search, queue: WorkQueue) -> str:
    """Put a shard's candidates into the artifact; returns their file's name."""
    documents = 0
    stage = search.stage
    with tempfile.TemporaryDirectory() as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, "candidates.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, search.schema) as writer:
            for block in read_texts(shard, corpus=stage.corpus, cleaning=stage.cleaning):
                documents += len(block.ends_D)
                writer.write_batch(_candidates(block, search))
        put_file(search.output, path, name=candidates_name(shard))
    queue.report(MB=shard.megabytes, documents=documents)
    return candidates_name(shard)


def drop_list(documents: pa.Table) -> pa.Table:
    """The drop list of distinct `documents`, which are in order of preference.

    What overlaps cannot stay for another document, so it is taken out before looking for the alike.
    """
    overlaps = documents["overlaps"].to_numpy()
    overlapping, clean = documents.filter(pa.array(overlaps)), documents.filter(pa.array(~overlaps))
    bands = clean["bands"].combine_chunks()
    keys_DB: UInt64s = bands.flatten().to_numpy().reshape(-1, bands.type.list_size)
    kept_for = representatives(keys_DB)
    alike = np.flatnonzero(kept_for != np.arange(len(clean)))
    digests = clean["document_digest"].combine_chunks()
    dropped = [*overlapping["document_digest"].chunks, digests.take(pa.array(alike))]
    kept = [pa.nulls(len(overlapping), digests.type), digests.take(pa.array(kept_for[alike]))]
    reasons = ["overlap"] * len(overlapping) + ["near_duplicate"] * len(alike)
    rows = pa.Table.from_arrays(
        [pa.chunked_array(dropped), pa.array(reasons, pa.string()), pa.chunked_array(kept)],
        schema=SCHEMA,
    )
    return rows.sort_by("document_digest")


def distinct(candidates: pa.Table) -> pa.Table:
    """All distinct documents, the preferred ones first."""
    every = candidates.combine_chunks()
    digests_D2 = digest_halves(digest_bytes(every["document_digest"]))
    preference, source = every["preference"].to_numpy(), every["source"].to_numpy()
    # Of equal documents the preferred one comes first, and is kept; then all in order.
    equal_together = np.lexsort((source, preference, digests_D2[:, 1], digests_D2[:, 0]))
    once = equal_together[is_first_of_equals(digests_D2[equal_together])]
    columns = (digests_D2[once, 1], digests_D2[once, 0], source[once], preference[once])
    return every.take(pa.array(once[np.lexsort(columns)]))


def _candidates(block: TextBlock, search: Search) -> pa.RecordBatch:
    """What is found out about the documents that are not dropped anyway. B bands each."""
    stage, count = search.stage, len(block.ends_D)
    keys_DB = np.zeros((count, search.bands), dtype=np.uint64)
    if near := stage.dedup.near_duplicates:
        found = shingles(block.text, block.ends_D, words=near.words)
        keys_DB = band_keys(found, count, near)
    overlaps_D = np.zeros(count, dtype=np.bool_)
    if overlap := stage.dedup.overlap:
        found = shingles(block.text, block.ends_D, words=overlap.words)
        overlaps_D = overlapping(found, count, evaluation_shingles(overlap))
    # A smaller number for documents that rather stay: those held out, first the named.
    splits_D = assign_splits(block, corpus=stage.corpus, seed=stage.seed).astype(np.uint16)
    named_D, splits = splits_D > HELDOUT_SPLIT, len(split_names(stage.corpus))
    preferences_D = np.where(named_D, splits_D - HELDOUT_SPLIT - 1, splits - 1 - splits_D)
    kept = np.flatnonzero(block.reasons_D == Reason.KEPT)
    schema = search.schema
    return pa.RecordBatch.from_arrays(
        [
            pa.array(
                [digest.tobytes() for digest in block.digests[kept]],
                schema.field("document_digest").type,
            ),
            pa.array(preferences_D[kept].astype(np.uint16)),
            pa.array(np.full(len(kept), block.source, dtype=np.uint16)),
            pa.array(overlaps_D[kept]),
            pa.FixedSizeListArray.from_arrays(
                pa.array(keys_DB[kept].ravel()), type=schema.field("bands").type
            ),
        ],
        schema=schema,
    )


def _candidates_of(names: list[str], output: str, scratch: str) -> Iterator[pa.Table]:
    for entry in all_finished(output, names):
        stored = filesystem.join(output, entry.stored_name)
        with filesystem.brought_here(stored, scratch) as path, pa.OSFile(path, "rb") as file:
            yield pa.ipc.open_file(file).read_all()


if __name__ == "__main__":
    run_program(make_drop_list)
