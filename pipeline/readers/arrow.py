"""Arrow IPC files, also as Hugging Face `datasets` stores them (streams): each row is a document.

In:  a column of strings.
Out: its rows; a piece of a file is the record batches that lie, nominally, in its range of bytes.
"""

import os
from collections.abc import Iterator
from typing import Any

import fsspec
import numpy as np
import pyarrow as pa

from artifacts.errors import IntegrityError
from pipeline.config import SourceConfig
from pipeline.readers.columns import block_of_strings, nominal_rows, require_strings
from pipeline.readers.documents import DocumentBlock, Piece, Reader

FILE_MAGIC = b"ARROW1"
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Without it a stream that was cut between two batches would pass for a shorter one."""


def read(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The rows of the piece's record batches."""
    with fsspec.open(piece.path, "rb") as opened:
        is_file = opened.read(len(FILE_MAGIC)) == FILE_MAGIC
        opened.seek(0)
        batches = _file_batches if is_file else _stream_batches
        try:
            for first, batch in batches(opened, piece):
                require_strings(batch.schema, source.text_field, path=piece.path)
                rows = pa.chunked_array([batch.column(source.text_field)])
                yield block_of_strings(rows, np.arange(first, first + len(batch)))
        except (pa.ArrowInvalid, OSError) as error:
            raise IntegrityError(
                f"{piece.path}: not a whole Arrow file: {error}; copy it again"
            ) from None


def _file_batches(opened: Any, piece: Piece) -> Iterator[tuple[int, pa.RecordBatch]]:
    """The batches of an IPC file that lie in the piece, with the number of their first row."""
    reader = pa.ipc.open_file(opened)
    first = 0
    for index in range(reader.num_record_batches):
        batch = reader.get_batch(index)
        if nominal_rows(
            index,
            reader.num_record_batches,
            start=piece.start,
            stop=piece.stop,
            size=opened.size,
        ):
            yield first, batch
        first += len(batch)


def _stream_batches(opened: Any, piece: Piece) -> Iterator[tuple[int, pa.RecordBatch]]:
    """All batches of an IPC stream, which has no index: whoever reads its first byte reads all."""
    if piece.start:
        return
    opened.seek(-len(STREAM_END), os.SEEK_END)
    if opened.read() != STREAM_END:
        raise IntegrityError(
            f"{piece.path}: not a whole Arrow stream: it has no end mark; copy it again"
        )
    opened.seek(0)
    first = 0
    for batch in pa.ipc.open_stream(opened):
        yield first, batch
        first += len(batch)


READER = Reader(read=read, line_break="paragraph", splittable=True)
