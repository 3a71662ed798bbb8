"""Sorted runs: documents with their tokens, sorted by digest, in a spill file.

In:  tokenised documents in any order, as one table.
Out: one Arrow file a run, a record batch for each split, rows sorted by digest; beside it the
     documents dropped so far; and counts.

Buckets are ranges of digests, so a bucket's part of a run is one slice, found by bisection and read
through the page cache. How many buckets there are need not be known before all runs are written.
"""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.arrays import digest_bytes, digest_halves, is_first_of_equals
from artifacts.filesystem import temporary_beside
from artifacts.tables import TOKEN_DIGEST_BYTES, id_type
from pipeline.shuffle.dropped import ROWS_SCHEMA, DocumentCounts, dropped_rows
from pipeline.text.filters import Reason

# D documents
KEY = "key"
"""Column: the first half of the digest as a number; its order is the digest's."""

IDENTITY = ("key", "document_digest", "source", "file", "position")
"""Columns that say which document a row is and which of two equal ones comes first."""

PASSING = ("split", "reason", "damaged", "converted")
"""Columns that are needed only until a run is written."""

RUN_TOKENS = 1 << 24
"""Tokens in a run, about: what a worker holds in memory before it sorts and writes."""


def document_schema(vocabulary_size: int) -> pa.Schema:
    """Columns of tokenised documents on their way to a bucket."""
    return pa.schema(
        [
            pa.field(KEY, pa.uint64()),
            pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
            pa.field("source", pa.uint16()),
            pa.field("file", pa.uint32()),
            pa.field("position", pa.int64()),
            pa.field("text_bytes", pa.uint32()),
            pa.field("token_ids", pa.list_(id_type(vocabulary_size))),
            pa.field("sentence_lengths", pa.list_(pa.uint32())),
            pa.field("split", pa.uint8()),
            pa.field("reason", pa.uint8()),
            pa.field("damaged", pa.bool_()),
            pa.field("converted", pa.bool_()),
        ]
    )


@dataclass(frozen=True)
class SortedRun:
    """Documents in order of digest, each once within its split, and what that has dropped."""

    by_split: tuple[pa.Table, ...]
    """The kept rows of each split, without the columns `PASSING`."""
    dropped: pa.Table
    """Rows of `ROWS_SCHEMA`."""
    counts: DocumentCounts
    """Of all documents of the run."""


def sort_run(documents: pa.Table, *, splits: int) -> SortedRun:
    """The documents of `document_schema` as a run."""
    documents = documents.combine_chunks()
    digests_D2 = digest_halves(digest_bytes(documents["document_digest"]))
    splits_D = documents["split"].to_numpy()
    names = [documents[name].to_numpy() for name in ("position", "file", "source")]
    order = np.lexsort((*names, splits_D, digests_D2[:, 1], digests_D2[:, 0]))
    reasons_D = documents["reason"].to_numpy().copy()
    # Equal texts are dropped for equal reasons, so the first of them is kept or none is.
    equal = ~is_first_of_equals(digests_D2[order])
    equal[1:] &= splits_D[order[1:]] == splits_D[order[:-1]]
    repeated = order[equal]
    reasons_D[repeated[reasons_D[repeated] == Reason.KEPT]] = Reason.DUPLICATE
    kept = order[reasons_D[order] == Reason.KEPT]
    lost = order[reasons_D[order] != Reason.KEPT]
    rows = documents.drop_columns(list(PASSING))
    by_split = tuple(rows.take(pa.array(kept[splits_D[kept] == split])) for split in range(splits))
    counts = Counter(Reason(reason).name.lower() for reason in reasons_D[lost].tolist())
    damaged, converted = (pc.sum(documents[name]).as_py() or 0 for name in PASSING[2:])
    return SortedRun(
        by_split,
        dropped_rows(documents, lost, reasons_D[lost]),
        DocumentCounts(len(documents), damaged, converted, dict(counts)),
    )


def write_run(path: str, documents: pa.Table, *, splits: int) -> DocumentCounts:
    """Write a run and the documents dropped from it; returns counts."""
    run = sort_run(documents, splits=splits)
    _write_arrow(path, run.by_split[0].schema, run.by_split)
    _write_arrow(dropped_path(path), ROWS_SCHEMA, [run.dropped])
    return run.counts


def dropped_path(path: str) -> str:
    """Where the documents dropped from a run are listed."""
    return path.removesuffix(".arrow") + ".dropped.arrow"


def open_batches(path: str) -> list[pa.RecordBatch]:
    """The record batches of a run, one for each split, mapped into memory."""
    reader = pa.ipc.open_file(pa.memory_map(path))
    return [reader.get_batch(index) for index in range(reader.num_record_batches)]


def _write_arrow(path: str, schema: pa.Schema, tables: Sequence[pa.Table]) -> None:
    """Write one record batch for each table, empty or not; whole or not at all."""
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    with temporary_beside(path) as temporary:
        with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for table in tables:
                writer.write_batch(next(iter(table.combine_chunks().to_batches()), empty))
        os.replace(temporary, path)
