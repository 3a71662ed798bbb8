"""JSON Lines: one object per line, with the text under one key.

In:  files of JSON objects, compressed or not.
Out: one document per line; `UsageError` with the byte offset of a malformed line.

Arrow parses whole blocks at once. A block that it rejects is parsed line by line, to locate the
malformed line or because it contains a lone surrogate, which JSON allows and UTF-8 does not.
"""

import json
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from artifacts.errors import UsageError
from pipeline.config.settings import SourceConfig
from pipeline.readers.columnar import block_of_strings
from pipeline.readers.documents import DocumentBlock, Piece, Reader, pack
from pipeline.readers.text import line_starts, scan

_BLANK = np.frombuffer(b" \t\r\n", dtype=np.uint8)


def read_jsonl(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents on the lines that begin in the piece."""
    key = source.text_field
    schema = pa.schema([(key, pa.string())])
    for block in scan(piece, line_starts, cuttable=False):
        starts = np.concatenate(([0], block.ends[:-1]))
        blank = np.isin(block.text[starts], _BLANK)
        for line in np.flatnonzero(blank).tolist():
            blank[line] = not block.text[starts[line] : block.ends[line]].tobytes().strip()
        positions = block.positions[~blank]
        if not len(positions):
            continue
        raw = block.text.tobytes()
        try:
            table = pj.read_json(
                pa.BufferReader(raw),
                read_options=pj.ReadOptions(use_threads=False, block_size=len(raw) + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            column = table[key]
        except pa.ArrowInvalid:
            column = None
        if column is None or column.null_count or len(column) != len(positions):
            lines = ((position, line.strip()) for position, line in block.documents())
            yield from pack(
                (position, _text(line, key, where=f"{piece.path}: line at byte {position}"))
                for position, line in lines
                if line
            )
        else:
            yield block_of_strings(column, positions)


def _text(line: bytes, key: str, *, where: str) -> bytes:
    """The text of one line; lone surrogates are left to cleaning, which replaces them."""
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{where}: not JSON ({error}); expected one object per line") from None
    if not isinstance(value, dict):
        raise UsageError(f"{where}: a {type(value).__name__}, expected an object with key {key!r}")
    if key not in value:
        known = ", ".join(sorted(value)[:20])
        raise UsageError(f"{where}: no key {key!r}; set text_field to one of: {known}")
    text = value[key]
    if text is not None and not isinstance(text, str):
        raise UsageError(f"{where}: {key!r} is {type(text).__name__}, expected a string")
    return (text or "").encode("utf-8", "surrogatepass")


JSONL = Reader(read=read_jsonl, line_break="detect", splittable=True)
