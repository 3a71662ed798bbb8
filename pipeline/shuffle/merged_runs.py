"""Merging sorted runs of several files in bounded memory, without a heap.

In:  Arrow files whose record batches are runs, each sorted by a key that is uniform over 64 bits.
Out: the rows of all runs a range of keys at a time; record batches of equal size, which do not show
     the ranges.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack

import numpy as np
import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import UInt64s, digest_array, digest_bytes
from cloze.artifacts.manifest import FileEntry

RANGE_ROWS = 1 << 22
"""Approximate number of rows that are merged at a time, at about 60 bytes each."""

BATCH_ROWS = 1 << 16
"""Rows of a record batch of equal size."""


def ranges_of_keys(
    entries: Sequence[FileEntry],
    keys: Callable[[pa.RecordBatch], UInt64s],
    *,
    output: str,
    scratch: str,
) -> Iterator[list[pa.RecordBatch]]:
    """The rows of all runs, a range of `keys` at a time in ascending order; ranges may be empty."""
    with ExitStack() as stack:
        runs: list[pa.RecordBatch] = []
        for entry in entries:
            stored = filesystem.join(output, entry.stored_name)
            path = stack.enter_context(filesystem.brought_here(stored, scratch))
            file = pa.ipc.open_file(stack.enter_context(pa.memory_map(path)))
            runs += (file.get_batch(index) for index in range(file.num_record_batches))
        # Keys are uniform, so equal ranges of them have about as many rows each; runs are sorted,
        # so a range is a slice of every run.
        parts = sum(map(len, runs)) // RANGE_ROWS + 1
        bounds = np.array([(part << 64) // parts for part in range(1, parts)], dtype=np.uint64)
        cuts = [[0, *np.searchsorted(keys(run), bounds), len(run)] for run in runs]
        for part in range(parts):
            yield [
                run.slice(cut[part], cut[part + 1] - cut[part])
                for run, cut in zip(runs, cuts, strict=True)
            ]


def of_equal_size(found: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """The same rows, `BATCH_ROWS` at a time."""
    waiting = pa.Table.from_batches([], schema)
    for batch in found:
        waiting = pa.concat_tables([waiting, pa.Table.from_batches([batch])])
        while len(waiting) >= BATCH_ROWS:
            yield _fresh(waiting.slice(0, BATCH_ROWS))
            waiting = waiting.slice(BATCH_ROWS)
    if len(waiting):
        yield _fresh(waiting)


def _fresh(table: pa.Table) -> pa.RecordBatch:
    """The same rows in buffers of their own: those of slices and of joined chunks differ."""
    columns = map(_fresh_column, table.columns)
    return pa.RecordBatch.from_arrays(list(columns), schema=table.schema)


def _fresh_column(column: pa.ChunkedArray) -> pa.Array:
    if pa.types.is_string(column.type):
        return pa.array(column.to_pylist())
    if pa.types.is_fixed_size_binary(column.type):
        return digest_array(digest_bytes(column))
    return pa.array(column.to_numpy())
