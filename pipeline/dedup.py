"""Stage `dedup`: near-duplicates and documents that overlap with evaluation data.

In:  the corpus; for overlaps, evaluation data.
Out: `drop.arrow`, a drop list (pipeline/duplicates/drop_list.py): the digest of each document to
     be dropped, the reason, and the digest of the document that stays for it.

    python -P -m pipeline.dedup --config TABLE.json [engine options]

Exact duplicates need no stage of their own: the tokens stage drops them on its way. Here one job
looks at every document by itself; the launcher then compares those that may be alike. Of documents
that are alike, a held-out one stays, else the one of the first source, else the one whose digest
comes first; names and places of files decide nothing.
"""

import os
import tempfile
from collections import Counter
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa

from artifacts.arrays import Int64s, digest_array
from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.filesystem import naming_full_disk
from artifacts.progress import Progress, say
from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import (
    WORK,
    Artifact,
    clear_work,
    commit,
    finished_files,
    put_file,
)
from artifacts.tables import TOKEN_DIGEST_BYTES
from pipeline.config.settings import NearDuplicatesConfig
from pipeline.config.stage_tables import DedupStage, PipelineMachine
from pipeline.duplicates.candidates import CandidateFiles, Documents, record_batch, schema
from pipeline.duplicates.near_duplicates import ShingleSets, band_keys, bands_for
from pipeline.duplicates.shingles import evaluation_shingles, overlapping, shingles
from pipeline.readers.documents import InputShard
from pipeline.readers.input_shards import CorpusFiles
from pipeline.runner.execution import run_graph, scratch_directory
from pipeline.runner.graph import Collection, spread
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
            megabytes=total,
            output=table.output,
        )
    files.require_unchanged()
    with scratch_directory(table.output) as scratch, naming_full_disk(scratch):
        found = CandidateFiles(table.output, names, bands=search.bands, scratch=scratch)
        distinct = found.documents.distinct()
        listed = drop_list(found, distinct, stage.dedup.near_duplicates)
        path = os.path.join(scratch, NAME)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_table(listed)
        entry = put_file(table.output, path, name=NAME, rows=len(listed))
    reasons = dict(sorted(Counter(listed["reason"].to_pylist()).items()))
    say(f"dedup: {len(listed):,} of {len(distinct):,} documents, {reasons}")
    # the stage's former name: statistics are part of the digest, and the content is no other
    statistics = {"distinct_documents": len(distinct), "unwanted": reasons}
    artifact = commit(table, [entry], statistics=statistics)
    clear_work(table.output)
    return artifact


def search_graph(queue: WorkQueue, *, shards: list[InputShard], search: Search) -> Collection[str]:
    """Every shard is searched; the names of what was found come out."""
    find = partial(write_candidates, search=search, queue=queue)
    return spread(shards, queue).map("Search", find)


def candidates_name(shard: InputShard) -> str:
    """The file of a shard's candidates, within the artifact."""
    return f"{WORK}/{shard.name}.arrow"


def write_candidates(shard: InputShard, *, search: Search, queue: WorkQueue) -> str:
    """Put a shard's candidates into the artifact; returns their file's name."""
    documents = rows = 0
    stage = search.stage
    with tempfile.TemporaryDirectory() as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, "candidates.arrow")
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema(search.bands)) as writer:
            for block in read_texts(shard, corpus=stage.corpus, cleaning=stage.cleaning):
                documents += len(block.ends_D)
                batch = _candidates(block, search)
                rows += len(batch)
                writer.write_batch(batch)
        put_file(search.output, path, name=candidates_name(shard), rows=rows)
    queue.report(MB=shard.megabytes, documents=documents)
    return candidates_name(shard)


def drop_list(
    found: CandidateFiles, distinct_D: Int64s, near: NearDuplicatesConfig | None
) -> pa.Table:
    """The drop list of the documents at `distinct_D`, which are in order of preference.

    What overlaps cannot stay for another document, so it is taken out before the search for
    near-duplicates.
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
    return pa.Table.from_arrays(listed, schema=SCHEMA).sort_by("document_digest")


def _candidates(block: TextBlock, search: Search) -> pa.RecordBatch:
    """What the search finds about the documents that are not dropped anyway."""
    stage, count = search.stage, len(block.ends_D)
    kept_D = block.reasons_D == Reason.KEPT
    keys_DB = np.zeros((count, search.bands), dtype=np.uint64)
    none_D = np.zeros(count, dtype=np.int64)
    sets = ShingleSets(np.zeros(0, dtype=np.uint32), none_D, none_D)
    if near := stage.dedup.near_duplicates:
        sets = ShingleSets.of(shingles(block.text, block.ends_D, words=near.words), count)
        keys_DB = band_keys(sets, bands_for(near))
    overlaps_D = np.zeros(count, dtype=np.bool_)
    if overlap := stage.dedup.overlap:
        found = shingles(block.text, block.ends_D, words=overlap.words)
        overlaps_D = overlapping(found, count, evaluation_shingles(overlap))
    # A smaller number for documents to prefer: the held-out ones, named splits first.
    splits_D = assign_splits(block, corpus=stage.corpus, seed=stage.seed).astype(np.uint16)
    named_D, splits = splits_D > HELDOUT_SPLIT, len(split_names(stage.corpus))
    preferences_D = np.where(named_D, splits_D - HELDOUT_SPLIT - 1, splits - 1 - splits_D)
    documents = Documents(
        block.digests,
        preferences_D.astype(np.uint16),
        np.full(count, block.source, dtype=np.uint16),
        overlaps_D,
    )
    return record_batch(documents, keys_DB, sets).filter(pa.array(kept_D))


if __name__ == "__main__":
    run_program(make_drop_list)
