"""Tables: each row of a Parquet or Arrow file is a document.

In:  a column of strings; Arrow files also as Hugging Face `datasets` stores them (streams).
Out: its rows. A piece of a file is the row groups or record batches that lie, nominally, in its
     range of bytes.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from artifacts.arrays import Offsets
from artifacts.errors import IntegrityError, UsageError
from artifacts.filesystem import open_to_read
from pipeline.config.settings import SourceConfig
from pipeline.readers.compression import require_plausible_size
from pipeline.readers.documents import DocumentBlock, Piece, Reader

ROWS_AT_A_TIME = 8192

BYTES_AT_A_TIME = 256 << 20
"""Thousands of rows may share one long string: at most so much is expanded at a time."""

FILE_MAGIC = b"ARROW1"
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Without it a stream that was cut between two batches would pass for a shorter one."""


def read_parquet(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The rows of the piece's row groups."""
    column = source.text_field
    with _opened(piece, "Parquet") as opened:
        _require_strings(pq.read_schema(opened), column, path=piece.path)
        # A string that is stored once stays one string until its rows have been counted.
        file = pq.ParquetFile(opened, read_dictionary=[column])
        yield from _blocks(_rows_of_parquet(file, column, piece, opened), piece, opened)


def read_arrow(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The rows of the piece's record batches."""
    with _opened(piece, "Arrow") as opened:
        yield from _blocks(_rows_of_arrow(source.text_field, piece, opened), piece, opened)


def block_of_strings(column: pa.ChunkedArray, positions: Offsets) -> DocumentBlock:
    """The strings as documents at `positions`, none of them as a Python object; null is empty."""
    strings = pc.fill_null(column.cast(pa.large_binary()).combine_chunks(), b"")
    nothing, feed = (pa.scalar(value, pa.large_binary()) for value in (b"", b"\n"))
    ended = pc.binary_join_element_wise(strings, nothing, feed)  # a line feed after each
    _, offsets, data = ended.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[ended.offset : ended.offset + len(ended) + 1]
    text = np.frombuffer(data or b"", dtype=np.uint8)[bounds[0] : bounds[-1]]
    return DocumentBlock(text=text, ends=bounds[1:] - bounds[0], positions=positions)


def _blocks(
    batches: Iterable[tuple[int, pa.Array]], piece: Piece, opened: IO[bytes]
) -> Iterator[DocumentBlock]:
    """The strings of (number of the first row, strings) as documents; a bomb is a `UsageError`."""
    packed, unpacked = opened.seek(0, os.SEEK_END), 0
    for first, strings in batches:
        # the bytes of each string, though many may be stored once; null has none
        if pa.types.is_dictionary(strings.type):
            lengths = pc.binary_length(strings.dictionary).take(strings.indices)
        elif strings.type == pa.string_view():  # each begins with its length, in 4 of 16 bytes
            views_R = np.frombuffer(strings.buffers()[1], dtype=np.int32)[::4]
            here_R = views_R[strings.offset : strings.offset + len(strings)]
            lengths = pc.if_else(strings.is_valid(), pa.array(here_R), 0)
        else:
            lengths = pc.binary_length(strings)
        lengths_R = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        ends_R = np.cumsum(lengths_R)
        unpacked += int(ends_R[-1]) if len(ends_R) else 0
        require_plausible_size(piece.path, unpacked, packed)
        cuts = np.flatnonzero(np.diff(ends_R // BYTES_AT_A_TIME)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(strings)]):
            rows = pa.chunked_array([strings[start:stop]])
            yield block_of_strings(rows, np.arange(first + start, first + stop))


def _rows_of_parquet(
    file: pq.ParquetFile, column: str, piece: Piece, opened: IO[bytes]
) -> Iterator[tuple[int, pa.Array]]:
    """The column's rows in the row groups that lie in the piece, some thousand at a time."""
    position = 0
    for group in range(file.num_row_groups):
        first, facts = position, file.metadata.row_group(group)
        position += facts.num_rows
        if not _is_in(piece, group, file.num_row_groups, opened):
            continue
        # One page can be a bomb, too, and is unpacked whole.
        require_plausible_size(piece.path, facts.total_byte_size, opened.seek(0, os.SEEK_END))
        for batch in file.iter_batches(ROWS_AT_A_TIME, row_groups=[group], columns=[column]):
            yield first, batch.column(0)
            first += len(batch)


def _rows_of_arrow(column: str, piece: Piece, opened: IO[bytes]) -> Iterator[tuple[int, pa.Array]]:
    """The column's rows in the record batches that lie in the piece."""
    first = batch_count = 0
    opened.seek(0)
    is_file = opened.read(len(FILE_MAGIC)) == FILE_MAGIC
    if is_file:
        reader = pa.ipc.open_file(opened)
        batch_count = reader.num_record_batches
        batches: Iterable[pa.RecordBatch] = map(reader.get_batch, range(batch_count))
    elif piece.start:  # a stream has no index: the piece with its first byte reads all of it
        return
    else:
        opened.seek(-len(STREAM_END), os.SEEK_END)
        if opened.read() != STREAM_END:
            raise IntegrityError(
                f"{piece.path}: not a whole Arrow stream: it has no end mark; copy it again"
            )
        opened.seek(0)
        batches = pa.ipc.open_stream(opened)
    for index, batch in enumerate(batches):
        if not is_file or _is_in(piece, index, batch_count, opened):
            _require_strings(batch.schema, column, path=piece.path)
            strings = batch.column(column)
            strings.validate(full=True)  # an offset beyond the data would be followed
            yield first, strings
        first += len(batch)


@contextmanager
def _opened(piece: Piece, kind: str) -> Iterator[IO[bytes]]:
    """The piece's file; what Arrow finds wrong with it is an `IntegrityError`."""
    with open_to_read(piece.path) as opened:
        try:
            yield opened
        except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
            reason = str(error) or "it asks for more memory than there is"
            raise IntegrityError(
                f"{piece.path}: not a whole {kind} file: {reason}; copy it again"
            ) from None


def _is_in(piece: Piece, group: int, groups: int, opened: IO[bytes]) -> bool:
    """Whether row group `group` of `groups` counts as lying in the piece."""
    place = group * opened.seek(0, os.SEEK_END) // groups
    return piece.start <= place and (piece.stop is None or place < piece.stop)


def _require_strings(schema: pa.Schema, name: str, *, path: str) -> None:
    """`UsageError` unless the file has a column of strings called `name`."""
    known = ", ".join(f"{field.name} ({field.type})" for field in schema)
    if name not in schema.names:
        raise UsageError(f"{path}: no column {name!r}; set text_field to one of: {known}")
    kind = schema.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()):
        raise UsageError(f"{path}: column {name!r} is {kind}, expected strings; it has: {known}")


PARQUET = Reader(read=read_parquet, line_break="detect", splittable=True, is_encoded=False)
ARROW = Reader(read=read_arrow, line_break="detect", splittable=True, is_encoded=False)
