"""JSON lines: an object a line, one of its keys holds the text.

In:  files of JSON objects, compressed or not.
Out: a document a line; `UsageError` with the byte where a line is something else.

Whole blocks are parsed at once. Only a block that the fast parser refuses is read line by line: to
name the wrong line, or because it holds half of a surrogate pair, which JSON allows and UTF-8 not.
"""

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from artifacts.errors import UsageError
from pipeline.config import SourceConfig
from pipeline.readers.columns import block_of_strings
from pipeline.readers.documents import DocumentBlock, Offsets, Piece, Reader, pack
from pipeline.readers.scanning import lines, scan

_BLANK = b" \t\r\n"


def read(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents of the lines that begin in the piece."""
    for block in scan(piece, lines, cuttable=False):
        yield from _documents(block, source.text_field, path=piece.path)


def _documents(block: DocumentBlock, key: str, *, path: str) -> Iterator[DocumentBlock]:
    positions = _positions_of_objects(block)
    if not len(positions):
        return
    try:
        column = _parse(block.text.tobytes(), key)
    except pa.ArrowInvalid:
        column = None
    if column is None or column.null_count or len(column) != len(positions):
        yield from pack(_line_by_line(block, key, path=path))
    else:
        yield block_of_strings(column, positions)


def _positions_of_objects(block: DocumentBlock) -> Offsets:
    """Where the lines that are not blank begin in the file."""
    lengths = np.diff(block.ends, prepend=0)
    starts = block.ends - lengths
    blank = np.isin(block.text[starts], np.frombuffer(_BLANK, dtype=np.uint8))
    for line in np.flatnonzero(blank).tolist():
        blank[line] = not block.text[starts[line] : block.ends[line]].tobytes().strip()
    return block.positions[~blank]


def _parse(raw: bytes, key: str) -> pa.ChunkedArray:
    table = pj.read_json(
        pa.BufferReader(raw),
        read_options=pj.ReadOptions(use_threads=False, block_size=len(raw) + 1),
        parse_options=pj.ParseOptions(
            explicit_schema=pa.schema([(key, pa.string())]), unexpected_field_behavior="ignore"
        ),
    )
    return table[key]


def _line_by_line(block: DocumentBlock, key: str, *, path: str) -> Iterator[tuple[int, bytes]]:
    raw = block.text.tobytes()
    start = 0
    for end, position in zip(block.ends.tolist(), block.positions.tolist(), strict=True):
        line = raw[start:end].strip()
        start = end
        if line:
            text = _text(line, key, where=f"{path}: line at byte {position}")
            yield position, text.encode("utf-8", "surrogatepass")


def _text(line: bytes, key: str, *, where: str) -> str:
    """The text in a line; half a surrogate pair stays and is replaced when cleaned."""
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}); expected an object a line") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: a {type(value).__name__}, expected an object with key {key!r}")
    if key not in value:
        known = ", ".join(sorted(value)[:20])
        raise UsageError(f"{where}: no key {key!r}; set text_field to one of: {known}")
    text = value[key]
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{where}: {key!r} is {type(text).__name__}, expected a string")
    return text or ""


READER = Reader(read=read, line_break="paragraph", splittable=True)
