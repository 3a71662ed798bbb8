"""Parquet files: each row is a document.

In:  a column of strings.
Out: its rows; a piece of a file is the row groups that lie, nominally, in its range of bytes.
"""

from collections.abc import Iterator

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.errors import IntegrityError
from pipeline.config import SourceConfig
from pipeline.readers.columns import block_of_strings, nominal_rows, require_strings
from pipeline.readers.documents import DocumentBlock, Piece, Reader

ROWS_AT_A_TIME = 8192


def read(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The rows of the piece's row groups."""
    with fsspec.open(piece.path, "rb") as opened:
        try:
            file = pq.ParquetFile(opened)
            require_strings(file.schema_arrow, source.text_field, path=piece.path)
            yield from _rows(file, piece, source.text_field, size=opened.size)
        except (pa.ArrowInvalid, OSError) as error:
            raise IntegrityError(
                f"{piece.path}: not a whole Parquet file: {error}; copy it again"
            ) from None


def _rows(file: pq.ParquetFile, piece: Piece, column: str, *, size: int) -> Iterator[DocumentBlock]:
    groups = file.num_row_groups
    position = 0
    for group in range(groups):
        first = position
        position += file.metadata.row_group(group).num_rows
        if not nominal_rows(group, groups, start=piece.start, stop=piece.stop, size=size):
            continue
        for batch in file.iter_batches(ROWS_AT_A_TIME, row_groups=[group], columns=[column]):
            rows = pa.chunked_array([batch.column(0)])
            yield block_of_strings(rows, np.arange(first, first + len(batch)))
            first += len(batch)


READER = Reader(read=read, line_break="paragraph", splittable=True)
