"""Blocks of documents from a column of strings.

In:  an Arrow column, as JSON lines, Parquet and Arrow files give it.
Out: a `DocumentBlock` without a Python object for any document.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.errors import UsageError
from pipeline.readers.documents import DocumentBlock, Offsets


def block_of_strings(column: pa.ChunkedArray, positions: Offsets) -> DocumentBlock:
    """The strings as documents at `positions`; null is the empty document."""
    strings = pc.fill_null(column.cast(pa.large_binary()).combine_chunks(), b"")
    nothing, feed = (pa.scalar(value, pa.large_binary()) for value in (b"", b"\n"))
    ended = pc.binary_join_element_wise(strings, nothing, feed)  # a line feed after each
    _, offsets, data = ended.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[ended.offset : ended.offset + len(ended) + 1]
    text = np.frombuffer(data or b"", dtype=np.uint8)[bounds[0] : bounds[-1]]
    return DocumentBlock(text=text, ends=bounds[1:] - bounds[0], positions=positions)


def require_strings(schema: pa.Schema, name: str, *, path: str) -> None:
    """`UsageError` unless the file has a column of strings called `name`."""
    known = ", ".join(f"{field.name} ({field.type})" for field in schema)
    if name not in schema.names:
        raise UsageError(f"{path}: no column {name!r}; set text_field to one of: {known}")
    kind = schema.field(name).type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()):
        raise UsageError(f"{path}: column {name!r} is {kind}, expected strings; it has: {known}")


def nominal_rows(group: int, groups: int, *, start: int, stop: int | None, size: int) -> bool:
    """Whether row group `group` of `groups` counts as lying at a byte in [start, stop)."""
    place = group * size // groups
    return start <= place and (stop is None or place < stop)
