"""Stage `unwanted`: documents that only a look at the whole corpus shows to be unwanted.

In:  the corpus; for overlaps, evaluation data.
Out: `drop.arrow`, a drop list (pipeline/duplicates/drop_list.py): the digest of each document to
     be dropped, the reason, and the digest of the document that stays for it.

    python -P -m pipeline.dedup --config TABLE.json [engine options]

One job looks at every document by itself (pipeline/duplicates/candidates.py); the launcher then
finds who is alike to whom. Of documents alike a held-out one stays, else the one of the first
source, else the one whose digest comes first: never what a file's name or place would decide.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Iterator
from functools import partial

import numpy as np
import pyarrow as pa

from artifacts import filesystem
from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.program import run_program
from artifacts.progress import Progress, say
from artifacts.rng import Int64s, UInt64s
from artifacts.stage import StageTable
from artifacts.store import FINISHED, Artifact, commit, finished_file, put_file
from artifacts.tables import TOKEN_DIGEST_BYTES
from pipeline.config import PipelineMachine, UnwantedStage
from pipeline.duplicates.candidates import Search, candidates_name, write_candidates
from pipeline.duplicates.near_duplicates import representatives
from pipeline.runner.beam import Map, PCollection, Pipeline
from pipeline.runner.graph import run_graph, spread
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.input_shards import MEGABYTE, Portion, portions
from pipeline.shuffle.splits import digest_bytes, halves
from pipeline.shuffle.tokenise import WORK

NAME = "drop.arrow"
SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("kept_digest", pa.binary(TOKEN_DIGEST_BYTES)),
    ]
)
"""`reason` is `near_duplicate` or `overlap`; only the former has a `kept_digest`."""


def make_unwanted(table: StageTable, options: list[str]) -> Artifact:
    """Run the stage: every portion is searched, then the drop list is written."""
    stage = parse(UnwantedStage, table.config, source="stage unwanted")
    machine = parse(PipelineMachine, table.machine, source="stage unwanted, machine")
    _refuse_nothing(stage)
    search = Search(stage, table.output)
    work = portions(stage.corpus)
    missing = [
        piece for piece in work if finished_file(table.output, candidates_name(piece)) is None
    ]
    if missing:
        run_graph(
            partial(search_graph, work=missing, search=search),
            machine=machine,
            options=options,
            progress=Progress("unwanted", total=_megabytes(missing), unit="MB"),
        )
    with tempfile.TemporaryDirectory() as scratch:
        documents = _documents(work, table.output, scratch)
        listed = drop_list(documents)
        path = os.path.join(scratch, NAME)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
            writer.write_table(listed)
        entry = put_file(table.output, path, name=NAME, rows=len(listed))
    reasons = dict(sorted(Counter(listed["reason"].to_pylist()).items()))
    say(f"unwanted: {len(listed):,} of {len(documents):,} documents, {reasons}")
    statistics = {"distinct_documents": len(documents), "unwanted": reasons}
    artifact = commit(table, [entry], statistics=statistics)
    for leftover in (WORK, f"{FINISHED}/{WORK}"):
        filesystem.remove(filesystem.join(table.output, leftover))
    return artifact


def search_graph(
    pipeline: Pipeline, crew: Crew, *, work: list[Portion], search: Search
) -> PCollection[str]:
    """Every portion is searched; the names of what was found come out."""
    found: PCollection[str] = spread(pipeline, work, crew) | "Search" >> Map(
        write_candidates, search=search, crew=crew
    )
    return found


def drop_list(documents: pa.Table) -> pa.Table:
    """The drop list of distinct `documents`, which are in order of preference.

    What overlaps cannot stay for another document, so it is taken out before looking for the alike.
    """
    overlaps = documents["overlaps"].to_numpy()
    overlapping, clean = documents.filter(pa.array(overlaps)), documents.filter(pa.array(~overlaps))
    kept_for = representatives(_keys(clean))
    alike = np.flatnonzero(kept_for != np.arange(len(clean)))
    digests = clean["document_digest"].combine_chunks()
    rows = pa.Table.from_arrays(
        [
            pa.chunked_array(
                [*overlapping["document_digest"].chunks, digests.take(pa.array(alike))]
            ),
            pa.array(["overlap"] * len(overlapping) + ["near_duplicate"] * len(alike), pa.string()),
            pa.chunked_array(
                [
                    pa.nulls(len(overlapping), digests.type),
                    digests.take(pa.array(kept_for[alike])),
                ]
            ),
        ],
        schema=SCHEMA,
    )
    return rows.sort_by("document_digest")


def _documents(work: list[Portion], output: str, scratch: str) -> pa.Table:
    """All distinct documents, the preferred ones first."""
    every = pa.concat_tables(_tables(work, output, scratch)).combine_chunks()
    digests_D2 = halves(digest_bytes(every["document_digest"]))
    preference, source = every["preference"].to_numpy(), every["source"].to_numpy()
    order = np.lexsort((digests_D2[:, 1], digests_D2[:, 0], source, preference))
    return every.take(pa.array(order[_first_of_equals(digests_D2[order])]))


def _first_of_equals(digests_D2: UInt64s) -> Int64s:
    """Rows that no equal one precedes, in their order."""
    order = np.lexsort((digests_D2[:, 1], digests_D2[:, 0]))  # stable: equals keep their order
    sorted_D2 = digests_D2[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = np.any(sorted_D2[1:] != sorted_D2[:-1], axis=1)
    return np.sort(order[first])


def _tables(work: list[Portion], output: str, scratch: str) -> Iterator[pa.Table]:
    for portion in work:
        entry = finished_file(output, candidates_name(portion))
        if entry is None:
            raise UsageError(
                f"{output}/{candidates_name(portion)}: not there after the job; "
                "was the workspace changed meanwhile? run the stage again"
            )
        stored = filesystem.join(output, entry.stored_name)
        with filesystem.brought_here(stored, scratch) as path, pa.OSFile(path, "rb") as file:
            yield pa.ipc.open_file(file).read_all()


def _keys(documents: pa.Table) -> UInt64s:
    """(D, B): the documents' bands."""
    column = documents["bands"].combine_chunks()
    keys_DB: UInt64s = column.flatten().to_numpy().reshape(-1, column.type.list_size)
    return keys_DB


def _refuse_nothing(stage: UnwantedStage) -> None:
    if not stage.unwanted.wanted:
        raise UsageError(
            "[unwanted]: nothing to look for; set unwanted.near_duplicates = {} or unwanted.overlap"
        )


def _megabytes(work: list[Portion]) -> float:
    return sum(portion.size for portion in work) / MEGABYTE


if __name__ == "__main__":
    run_program(make_unwanted)
