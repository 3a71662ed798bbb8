"""JSON Lines, Parquet and Arrow files: each line or row is a document.

In:  objects with the text under one key, one per line, compressed or not; or a column of strings.
     Arrow files may be streams, as Hugging Face `datasets` stores them.
Out: their texts; a malformed line is a broken record.

Arrow parses whole blocks of JSON lines at once. A block that it rejects is parsed line by line, to
locate the malformed line or because it contains a lone surrogate, which JSON allows and UTF-8 does
not. Row groups and record batches are assigned to the pieces of a file in proportion to their
number, as if all had the same size.
"""

import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import pairwise
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
from pydantic import JsonValue

from cloze.artifacts.arrays import Offsets
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.filesystem import open_to_read, require_plausible_size
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.documents import BrokenRecord, DocumentBlock, Piece, Reader, pack, scan
from cloze.pipeline.readers.structure import SHOWN_COLUMNS

ROWS_AT_A_TIME = 8192

BYTES_AT_A_TIME = 256 << 20
"""Limit on the text expanded at a time: thousands of rows may share one long string."""

FILE_MAGIC = b"ARROW1"
STREAM_END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""Without this check, a stream truncated between two batches would look complete."""

_BLANK = np.frombuffer(b" \t\r\n", dtype=np.uint8)
_WHITE = b" \t\r\n\v\f\xef\xbb\xbf"
"""White space and the bytes of a byte order mark; no JSON value begins or ends with one."""

Rows = Iterator[tuple[int, pa.Array]]
"""Number of the first row, and the strings from there on."""


def block_of_strings(column: pa.ChunkedArray, positions: Offsets) -> DocumentBlock:
    """Strings as documents at `positions`, without creating Python objects; null is empty."""
    strings = pc.fill_null(column.cast(pa.large_binary()).combine_chunks(), b"")
    # Arrow's join of strings, nothing and a line feed as separator: string + feed.
    nothing, feed = (pa.scalar(value, pa.large_binary()) for value in (b"", b"\n"))
    ended = pc.binary_join_element_wise(strings, nothing, feed)  # a line feed after each
    _, offsets, data = ended.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int64)[ended.offset : ended.offset + len(ended) + 1]
    text = np.frombuffer(data or b"", dtype=np.uint8)[bounds[0] : bounds[-1]]
    return DocumentBlock(text=text, ends=bounds[1:] - bounds[0], positions=positions)


def read_jsonl(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents on the lines that begin in the piece."""
    key = source.text_field
    # The schema of only the wanted key, so that Arrow skips all others unparsed.
    top, *below = key.split(".")
    kind = pa.string()
    for name in reversed(below):
        kind = pa.struct([(name, kind)])
    schema = pa.schema([(top, kind)])
    for block in scan(piece, line_starts, cuttable=False, is_json=True):
        starts = np.concatenate(([0], block.ends[:-1]))
        blank = np.isin(block.text[starts], _BLANK)
        # Only lines that begin with white space may be blank: usually none is.
        for line in np.flatnonzero(blank).tolist():
            blank[line] = not block.text[starts[line] : block.ends[line]].tobytes().strip()
        positions = block.positions[~blank]
        if not len(positions):
            continue
        raw = block.text.tobytes()
        try:
            table = pj.read_json(
                pa.BufferReader(raw),
                # one block, or Arrow would split within a line
                read_options=pj.ReadOptions(use_threads=False, block_size=len(raw) + 1),
                parse_options=pj.ParseOptions(
                    explicit_schema=schema, unexpected_field_behavior="ignore"
                ),
            )
            column = table[top]
            for name in below:
                column = pc.struct_field(column, name)
        except pa.ArrowInvalid:
            column = None
        # Null, missing or fewer values: line by line, which finds the line and says why.
        if column is None or column.null_count or len(column) != len(positions):
            lines = ((position, line.strip(_WHITE)) for position, line in block.documents())
            yield from pack((position, _text(line, key)) for position, line in lines if line)
        else:
            yield block_of_strings(column, positions)


def _named(value: object) -> str:
    """What kind of JSON value it is."""
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    kinds: dict[type, str] = {str: "a string", list: "an array", dict: "an object"}
    return kinds.get(type(value), "a number")


def _text(line: bytes, key: str) -> bytes | BrokenRecord:
    """The text of one line; lone surrogates are left to cleaning, which replaces them."""
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except json.JSONDecodeError as error:
        # Of its own place only the column: the line is always the first here.
        found = f"{error.msg}, at character {error.colno}"
        return BrokenRecord(f"not JSON ({found}); expected one object per line")
    except (ValueError, RecursionError) as error:
        return BrokenRecord(f"not JSON ({error}); expected one object per line")
    if not isinstance(value, dict):
        return BrokenRecord(f"{_named(value)}, expected an object with key {key!r}")
    text, known = _value(value, key)
    if known:
        return BrokenRecord(f"no key {key!r}; set text_field to one of: {', '.join(known)}")
    if isinstance(text, list) and all(isinstance(one, str) for one in text):
        text = "\n".join(map(str, text))
    if text is not None and not isinstance(text, str):
        return BrokenRecord(f"{key!r} is {_named(text)}, expected a string")
    return (text or "").encode("utf-8", "surrogatepass")


def _value(record: dict[str, JsonValue], key: str) -> tuple[JsonValue, list[str]]:
    """The value at `key`, which may be a path `a.b`; or the keys that there are instead."""
    # A key that contains dots itself takes precedence over a path.
    if key in record:
        return record[key], []
    value: JsonValue = record
    for name in key.split("."):
        if value is None:
            return None, []
        if not isinstance(value, dict) or name not in value:
            nested = [
                f"{k}.{inner}" for k, v in record.items() if isinstance(v, dict) for inner in v
            ]
            return None, [*sorted(record), *sorted(nested)][:SHOWN_COLUMNS] or ["(it is empty)"]
        value = value[name]
    return value, []


def line_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Starts of lines, each of which is a document."""
    # A document is a line: it begins after a line feed. The buffer's end begins none.
    starts = np.flatnonzero(np.frombuffer(buffer, dtype=np.uint8) == ord("\n")) + 1
    starts = starts[starts < len(buffer)]
    return np.concatenate(([0], starts)) if at_beginning and buffer else starts


def _read(
    piece: Piece,
    source: SourceConfig,
    *,
    rows: Callable[[IO[bytes], str, Piece], Rows],
    kind: str,
) -> Iterator[DocumentBlock]:
    """The documents of the piece; `IntegrityError` for a file that Arrow cannot read."""
    with open_to_read(piece.path) as opened:
        try:
            yield from _blocks(rows(opened, source.text_field, piece), piece, opened)
        except (pa.ArrowException, OSError, MemoryError, UnicodeDecodeError) as error:
            reason = str(error) or "it needs more memory than there is"
            raise IntegrityError(
                f"{piece.path}: not a whole {kind} file: {reason}; copy it again"
            ) from None


def _blocks(batches: Rows, piece: Piece, opened: IO[bytes]) -> Iterator[DocumentBlock]:
    """Rows as documents; `UsageError` for a decompression bomb."""
    packed, unpacked = opened.seek(0, os.SEEK_END), 0
    for first, strings in batches:
        # the length of each string, though many rows may share one; null has none
        if pa.types.is_dictionary(strings.type):
            lengths = pc.binary_length(strings.dictionary).take(strings.indices)
        elif strings.type == pa.string_view():  # 4 of its 16 bytes are the length
            views_R = np.frombuffer(strings.buffers()[1], dtype=np.int32)[::4]
            here_R = views_R[strings.offset : strings.offset + len(strings)]
            lengths = pc.if_else(strings.is_valid(), pa.array(here_R), 0)
        else:
            lengths = pc.binary_length(strings)
        lengths_R = lengths.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
        ends_R = np.cumsum(lengths_R)
        unpacked += int(ends_R[-1]) if len(ends_R) else 0
        require_plausible_size(piece.path, unpacked, packed)
        # Cut where the running total passes a multiple of the limit.
        cuts = np.flatnonzero(np.diff(ends_R // BYTES_AT_A_TIME)) + 1
        for start, stop in pairwise([0, *cuts.tolist(), len(strings)]):
            rows = pa.chunked_array([strings[start:stop]])
            yield block_of_strings(rows, np.arange(first + start, first + stop))


def parquet_rows(opened: IO[bytes], column: str, piece: Piece) -> Rows:
    """The column's rows in the row groups of the piece, a few thousand at a time."""
    _require_strings(pq.read_schema(opened), column, path=piece.path)
    # dictionary-encoded strings stay encoded until their lengths have been added up
    file = pq.ParquetFile(opened, read_dictionary=[column])
    position = 0
    # Row numbers go on over skipped row groups, so positions are those of the whole file.
    for group in range(file.num_row_groups):
        first, facts = position, file.metadata.row_group(group)
        position += facts.num_rows
        if not _is_in(piece, group, file.num_row_groups, opened):
            continue
        # a page is unpacked whole, so a single one can be a bomb
        require_plausible_size(piece.path, facts.total_byte_size, opened.seek(0, os.SEEK_END))
        for batch in file.iter_batches(ROWS_AT_A_TIME, row_groups=[group], columns=[column]):
            yield first, _strings(batch, column)
            first += len(batch)


def arrow_rows(opened: IO[bytes], column: str, piece: Piece) -> Rows:
    """The column's rows in the record batches of the piece."""
    first = batch_count = 0
    opened.seek(0)
    is_file = opened.read(len(FILE_MAGIC)) == FILE_MAGIC
    if is_file:
        reader = pa.ipc.open_file(opened)
        batch_count = reader.num_record_batches
        batches: Iterable[pa.RecordBatch] = map(reader.get_batch, range(batch_count))
    elif piece.start:  # a stream has no index: its first piece reads all of it
        return
    else:
        opened.seek(-len(STREAM_END), os.SEEK_END)
        if opened.read() != STREAM_END:
            raise IntegrityError(
                f"{piece.path}: not a whole Arrow stream: the end mark is missing; copy it again"
            )
        opened.seek(0)
        batches = pa.ipc.open_stream(opened)
    for index, batch in enumerate(batches):
        if not is_file or _is_in(piece, index, batch_count, opened):
            _require_strings(batch.schema, column, path=piece.path)
            top = column if column in batch.schema.names else column.partition(".")[0]
            batch.column(top).validate(full=True)  # out-of-range offsets would be followed
            yield first, _strings(batch, column)
        first += len(batch)


def _is_in(piece: Piece, group: int, groups: int, opened: IO[bytes]) -> bool:
    """Whether row group or batch `group` of `groups` is assigned to the piece."""
    # As if all row groups had the same size: each is assigned to the piece that its share begins
    # in.
    place = group * opened.seek(0, os.SEEK_END) // groups
    return piece.start <= place and (piece.stop is None or place < piece.stop)


def _strings(batch: pa.RecordBatch, column: str) -> pa.Array:
    """The strings of a column or nested field; of a list of strings each is a line."""
    name, *below = [column] if column in batch.schema.names else column.split(".")
    strings = batch.column(name)
    for inner in below:
        strings = pc.struct_field(strings, inner)
    if _is_list(strings.type):
        strings = pc.binary_join(strings, "\n")
    return strings


def _require_strings(schema: pa.Schema, name: str, *, path: str) -> None:
    """Raise `UsageError` unless the file has a column `name` of strings."""
    known = ", ".join(f"{field.name} ({field.type})" for field in schema)
    top, *below = [name] if name in schema.names else name.split(".")
    if top not in schema.names:
        raise UsageError(f"{path}: no column {name!r}; set text_field to one of: {known}")
    kind: pa.DataType = schema.field(top).type
    for inner in below:
        if not pa.types.is_struct(kind) or kind.get_field_index(inner) < 0:
            raise UsageError(f"{path}: no column {name!r}; set text_field to one of: {known}")
        kind = kind.field(inner).type
    if pa.types.is_dictionary(kind) or _is_list(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()):
        raise UsageError(f"{path}: column {name!r} is {kind}, expected strings; it has: {known}")


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


JSONL = Reader(read=read_jsonl, splittable=True, is_json=True)
PARQUET = Reader(
    read=partial(_read, rows=parquet_rows, kind="Parquet"),
    splittable=True,
    is_encoded=False,
    unit="row",
)
ARROW = Reader(
    read=partial(_read, rows=arrow_rows, kind="Arrow"),
    splittable=True,
    is_encoded=False,
    unit="row",
)
