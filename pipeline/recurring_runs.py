"""Sorted runs of keys, and the keys that recur in many documents among them, in bounded memory.

In:  record batches of keys and of the ranks of the documents that have them; what each row counts
     and shows may stand beside them.
Out: Arrow files whose record batches are sorted runs; later, the keys that recur in all runs of a
     source, and the documents that lose what has the key.

Whether a key recurs, and which documents keep it, follows from the few smallest ranks of its
documents, so a run has at most `min_documents` rows per key besides one for all the rest, however
frequent it is. Whoever writes holds `RUN_ROWS` rows in memory; merging: shuffle/merged_runs.py.
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloze.artifacts.arrays import Int64s, UInt64s
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.tables import LINES_SCHEMA, REPEATS_SCHEMA
from cloze.pipeline.shuffle.merged_runs import of_equal_size, ranges_of_keys
from cloze.pipeline.text.recurring import LAST_RANK

RUN_ROWS = 1 << 18
"""Rows in a sorted run, or those of one block if that has more."""

NO_DOCUMENT = np.uint64(LAST_RANK + 1)
"""The rank of a row for all documents beyond the smallest ranks."""

KEYS_SCHEMA = pa.schema([pa.field("key", pa.uint64()), pa.field("rank", pa.uint64())])
"""Runs that count nothing, each a record batch: by key and rank."""

COUNTS_SCHEMA = pa.schema(
    [
        *KEYS_SCHEMA,
        pa.field("lines", pa.int64()),
        pa.field("bytes", pa.int64()),
        pa.field("text", pa.string()),
    ]
)
"""Runs that count; the first row of each key has its text."""

# L rows of a run, M those of a document with the same key; N rows of all runs in a range of keys,
# G keys


class Limits(NamedTuple):
    """When a key recurs, and who keeps what has it."""

    min_documents: int
    """Documents that have it."""
    kept_documents: int
    """Of these, how many of the smallest ranks keep it."""


class RunsWriter:
    """Writes rows into a local file as sorted runs."""

    def __init__(self, path: str, schema: pa.Schema, limits: Limits) -> None:
        self._sink = pa.OSFile(path, "wb")
        self._writer = pa.ipc.new_file(self._sink, schema)
        self._schema, self._limits = schema, limits
        self._waiting: list[pa.RecordBatch] = []
        self.rows = 0
        """Rows written so far."""

    def __enter__(self) -> "RunsWriter":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self._write()
        self._writer.close()
        self._sink.close()

    def add(self, *columns: pa.Array | Int64s | UInt64s) -> None:
        """More rows, by the columns of the schema."""
        self._waiting.append(
            pa.RecordBatch.from_arrays([pa.array(one) for one in columns], schema=self._schema)
        )
        # Runs are cut by the number of rows, so memory is bounded; which rows are in which run
        # makes no difference to the result, as all of them are merged by key.
        if sum(map(len, self._waiting)) >= RUN_ROWS:
            self._write()

    def _write(self) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema).combine_chunks()
        self._waiting = []
        if len(table):
            run = _sorted_run(table, self._limits.min_documents)
            self._writer.write_batch(run)
            self.rows += len(run)


def _sorted_run(table: pa.Table, min_documents: int) -> pa.RecordBatch:
    """The rows by key and rank, one for each of a key's first documents and one for the rest."""
    keys_L, ranks_L = table["key"].to_numpy(), table["rank"].to_numpy()
    # Stable: of a document's equal rows the first stays the first.
    order = np.lexsort((ranks_L, keys_L))
    keys_L, ranks_L = keys_L[order], ranks_L[order].copy()
    # Any other number in front makes the first row a new key; 64 bits wrap around.
    new_key_L = np.diff(keys_L, prepend=keys_L[0] + np.uint64(1)) != 0
    new_document_L = new_key_L | (np.diff(ranks_L, prepend=ranks_L[0]) != 0)
    # How many documents of smaller rank have the same key; those beyond the first few share a row.
    # Documents counted from the run's beginning, minus those before the key, which the running
    # maximum carries along the key's rows.
    documents_L = np.cumsum(new_document_L)
    first_L = np.maximum.accumulate(np.where(new_key_L, documents_L, 0))
    # Of a run's documents the `min_documents` with the smallest ranks keep rows of their own: among
    # those of all runs are the smallest ones of all, which alone decide. The rest is one row of
    # sums.
    is_rest_L = documents_L - first_L >= min_documents
    ranks_L[is_rest_L] = NO_DOCUMENT
    # With the rest's ranks made equal, these are the rows to write: one for each document, one for
    # the rest.
    starts_M = np.flatnonzero(new_key_L | (np.diff(ranks_L, prepend=ranks_L[0]) != 0))
    columns = [pa.array(keys_L[starts_M]), pa.array(ranks_L[starts_M])]
    if table.schema.equals(COUNTS_SCHEMA):
        counts = (table[name].to_numpy()[order] for name in ("lines", "bytes"))
        columns += (pa.array(np.add.reduceat(values, starts_M)) for values in counts)
        # The text is the same in all rows of a key, but for collisions of 64 bits.
        texts = table["text"].combine_chunks().take(pa.array(order[starts_M]))
        columns.append(pc.if_else(pa.array(new_key_L[starts_M]), texts, ""))
    return pa.RecordBatch.from_arrays(columns, schema=table.schema)


def recurring_keys(
    entries: Sequence[FileEntry], limits: Limits, *, source: int, output: str, scratch: str
) -> Iterator[pa.RecordBatch]:
    """The keys that recur in the runs of one source, a range at a time and in ascending order.

    Rows of `LINES_SCHEMA` for runs that count, else of `REPEATS_SCHEMA`.
    """
    ranges = ranges_of_keys(
        entries, lambda run: run["key"].to_numpy(), output=output, scratch=scratch
    )
    for runs in ranges:
        if some := list(filter(len, runs)):
            yield _recurring(some, limits, source)


def _recurring(runs: Sequence[pa.RecordBatch], limits: Limits, source: int) -> pa.RecordBatch:
    """What recurs among the rows of some runs, all of a range of keys."""
    keys_N, ranks_N = (
        np.concatenate([run[name].to_numpy() for run in runs]) for name in KEYS_SCHEMA.names
    )
    order = np.lexsort((ranks_N, keys_N))
    keys_N, ranks_N = keys_N[order], ranks_N[order]
    new_key_N = np.diff(keys_N, prepend=keys_N[0] + np.uint64(1)) != 0
    new_document_N = new_key_N | (np.diff(ranks_N, prepend=ranks_N[0]) != 0)
    # Rows for the rest do not name their documents, and need not: a run that has one has
    # `min_documents` rows beside it, which suffice.
    new_document_N &= ranks_N != NO_DOCUMENT
    starts_G = np.flatnonzero(new_key_N)
    recurs_G = np.add.reduceat(new_document_N.astype(np.int64), starts_G) >= limits.min_documents
    # The document after the last one that keeps the key, of those that recur.
    document_rows = np.flatnonzero(new_document_N)
    first_G = np.searchsorted(document_rows, starts_G[recurs_G])
    # The documents of smallest rank keep it. A rank is a hash of the document, so which ones they
    # are depends on their content alone, not on files or workers.
    first_removed_G = ranks_N[document_rows[first_G + limits.kept_documents]]
    columns = [
        pa.array(np.full(len(first_removed_G), source, dtype=np.uint16)),
        pa.array(keys_N[starts_G[recurs_G]]),
        pa.array(first_removed_G),
    ]
    if not runs[0].schema.equals(COUNTS_SCHEMA):
        return pa.RecordBatch.from_arrays(columns, schema=REPEATS_SCHEMA)
    group_N = np.cumsum(new_key_N) - 1
    limit_G = np.zeros(len(starts_G), dtype=np.uint64)
    limit_G[recurs_G] = first_removed_G
    # The rest has the largest rank, so it loses what has the key.
    loses_N = ranks_N >= limit_G[group_N]
    lines_N, bytes_N = (
        np.concatenate([run[name].to_numpy() for run in runs])[order] for name in ("lines", "bytes")
    )

    def sums(values_N: Int64s) -> Int64s:
        found: Int64s = np.add.reduceat(values_N, starts_G)[recurs_G]
        return found

    columns += (pa.array(sums(one)) for one in (lines_N, lines_N * loses_N, bytes_N * loses_N))
    columns.append(_texts(runs, order[starts_G[recurs_G]]))
    return pa.RecordBatch.from_arrays(columns, schema=LINES_SCHEMA)


def _texts(runs: Sequence[pa.RecordBatch], rows: Int64s) -> pa.StringArray:
    """The texts in these rows, numbered over all runs."""
    begins = np.cumsum([0, *map(len, runs)])
    run_of = np.searchsorted(begins, rows, side="right") - 1
    places: UInt64s = rows - begins[run_of]
    texts = [
        runs[run]["text"][place].as_py()
        for run, place in zip(run_of.tolist(), places.tolist(), strict=True)
    ]
    return pa.array(texts, pa.string())


def write_list(found: Iterable[pa.RecordBatch], path: str, schema: pa.Schema) -> int:
    """Write rows in batches of equal size; returns their number."""
    rows = 0
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in of_equal_size(found, schema):
            writer.write_batch(batch)
            rows += len(batch)
    return rows


def write_keys(found: Iterable[pa.RecordBatch], path: str, *, scratch: str) -> int:
    """Write rows of `REPEATS_SCHEMA` as a single batch, of which readers map what they need.

    Returns their number. The rows wait in files, so that no more than a range is in memory.
    """
    rows, names = 0, [os.path.join(scratch, name) for name in REPEATS_SCHEMA.names]
    with ExitStack() as stack:
        columns = [stack.enter_context(open(name, "wb")) for name in names]
        for batch in found:
            rows += len(batch)
            for column, file in zip(batch.columns, columns, strict=True):
                column.to_numpy().tofile(file)
    with ExitStack() as stack:
        # An empty file cannot be mapped.
        mapped = [stack.enter_context(pa.memory_map(name)).read_buffer() for name in names if rows]
        arrays = [
            pa.Array.from_buffers(field.type, rows, [None, column])
            for field, column in zip(REPEATS_SCHEMA, mapped or [pa.py_buffer(b"")] * 3, strict=True)
        ]
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, REPEATS_SCHEMA) as writer:
            writer.write_batch(pa.RecordBatch.from_arrays(arrays, schema=REPEATS_SCHEMA))
    for name in names:
        os.unlink(name)
    return rows
