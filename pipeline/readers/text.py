"""Plain text, and how any file is cut into documents at marks in its bytes.

In:  files of text, compressed or not: one document per file, or documents separated by blank lines
     (lines of only white space count as blank). In Google's input format every line of a document
     is a sentence and is not split again (reference: create_pretraining_data.py:179-206).
Out: blocks of whole documents, in file order; little more than a block is held in memory.

`scan` serves every format whose documents start at a recognisable mark. A document belongs to the
piece in which it begins and is read to its end, so a file yields the same documents however it is
cut into pieces.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from artifacts.arrays import Offsets
from artifacts.errors import UsageError
from pipeline.config.settings import SourceConfig
from pipeline.readers.compression import can_be_cut, stream
from pipeline.readers.documents import (
    BLOCK_BYTES,
    MAX_DOCUMENT_BYTES,
    DocumentBlock,
    Piece,
    Reader,
    cut,
    pack,
)

LOOKBACK_BYTES = 1 << 16
"""Bytes read before a piece to decide whether a document begins at its first byte."""

MAX_MARK_BYTES = 16
"""Upper bound on the length of a mark that begins a document, such as `<page>`, in bytes."""

MAX_RECORD_BYTES = 1 << 26
"""Larger JSON objects and articles are refused: a record is held in memory whole, several times
over while it is decoded, and a worker should fit into 1 GiB."""

FindStarts = Callable[[bytes, bool], Offsets]
"""Ascending offsets in a buffer at which documents begin. The second argument is true if the buffer
starts at the beginning of the file."""

_LINE_FEED, _SPACE = 0x0A, 0x20


def read_file(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The whole file as one document, or as several if it exceeds `MAX_DOCUMENT_BYTES`."""

    def parts() -> Iterator[tuple[int, bytes]]:
        position = 0
        rest = b""
        for chunk in stream(piece.path):
            rest += chunk
            while len(rest) > MAX_DOCUMENT_BYTES:
                end = cut(rest)
                yield position, rest[:end]
                position, rest = position + end, rest[end:]
        if rest or not position:
            yield position, rest

    yield from pack(parts())


def read_blank_line_text(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents of the piece, separated by blank lines."""
    yield from scan(piece, block_starts, cuttable=True)


def block_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Starts of non-blank lines that come first or follow a blank line."""
    text = np.frombuffer(buffer, dtype=np.uint8)
    feeds = np.flatnonzero(text == _LINE_FEED)
    starts = np.concatenate(([0], feeds + 1))
    starts = starts[starts < len(text)]
    ends = np.append(feeds, len(text))
    blank = text[starts] <= _SPACE
    for line in np.flatnonzero(blank & (text[starts] != _LINE_FEED)).tolist():
        blank[line] = not buffer[starts[line] : ends[line]].strip()
    begins = ~blank
    begins[1:] &= blank[:-1]
    begins[:1] &= at_beginning
    if at_beginning and len(blank):
        begins[np.flatnonzero(~blank)[:1]] = True
    return starts[begins]


def scan(piece: Piece, find_starts: FindStarts, *, cuttable: bool) -> Iterator[DocumentBlock]:
    """The documents that begin in the piece, each up to the start of the next.

    If `cuttable`, documents longer than `MAX_DOCUMENT_BYTES` are cut into several.
    """
    if piece.stop is not None and not piece.start and not can_be_cut(piece.path):
        piece = replace(piece, stop=None)  # the other pieces yield nothing
    lookback = min(piece.start, LOOKBACK_BYTES)
    base = piece.start - lookback
    rest, inside = b"", False
    chunks = stream(piece.path, piece.start, lookback=lookback)
    for new, at_end in _gathered(chunks, None if piece.stop is None else piece.stop - base):
        buffer = rest + new
        starts = find_starts(buffer, base == 0 and not inside)
        if inside:  # the buffer begins at the start of a document
            starts = np.concatenate(([0], starts[starts > 0]))
        else:
            starts = starts[starts >= piece.start - base]
        starts, end = _until(starts, piece, base=base, size=len(buffer), inside=inside)
        last = at_end or end < len(buffer)
        if cuttable:
            starts = _with_cuts(buffer, starts, end)
        if last:
            yield from _blocks(buffer, starts, end, base=base)
            return
        inside = bool(len(starts))
        kept = int(starts[-1]) if inside else max(len(buffer) - LOOKBACK_BYTES, 0)
        yield from _blocks(buffer, starts[:-1], kept, base=base)
        rest, base = buffer[kept:], base + kept
        if len(rest) > MAX_RECORD_BYTES:
            raise UsageError(
                f"{piece.path}: the record at byte {base} does not end within {MAX_RECORD_BYTES:,} "
                "bytes, the limit for one record; split it, or check that the reader fits this file"
            )


def line_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Starts of lines, each of which is a document."""
    starts = np.flatnonzero(np.frombuffer(buffer, dtype=np.uint8) == _LINE_FEED) + 1
    starts = starts[starts < len(buffer)]
    return np.concatenate(([0], starts)) if at_beginning and buffer else starts


def is_beginning(piece: Piece) -> bool:
    """Whether the piece starts the file and is long enough that a document must begin in it."""
    return not piece.start and (piece.stop is None or piece.stop >= LOOKBACK_BYTES)


def _gathered(chunks: Iterator[bytes], wanted: int | None) -> Iterator[tuple[bytes, bool]]:
    """Chunks joined to about a block each, with a flag for the last one.

    After the `wanted` bytes of the piece only the end of its last document matters, so reads start
    small there and grow.
    """
    waiting: list[bytes] = []
    size = done = 0
    for chunk in chunks:
        left = BLOCK_BYTES if wanted is None else wanted - done
        if waiting and size >= (min(left, BLOCK_BYTES) if left > 0 else -left):
            yield b"".join(waiting), False
            done += size
            waiting, size = [], 0
        waiting.append(chunk)
        size += len(chunk)
    yield b"".join(waiting), True


def _until(
    starts: Offsets, piece: Piece, *, base: int, size: int, inside: bool
) -> tuple[Offsets, int]:
    """The starts that lie in the piece, and the end of their last document.

    The end is `size` until a later start has been found.
    """
    if piece.stop is None:
        return starts, size
    ours = starts < piece.stop - base
    if inside:
        ours[0] = True  # it began in the piece, perhaps in an earlier buffer
    beyond = starts[~ours]
    if len(beyond):
        return starts[ours], int(beyond[0])
    past = not len(starts) and base + size > piece.stop + MAX_MARK_BYTES
    return starts, 0 if past else size


def _with_cuts(buffer: bytes, starts: Offsets, end: int) -> Offsets:
    """The starts, with additional ones where documents are too long."""
    bounds = np.append(starts, end)
    cuts: list[int] = []
    for index in np.flatnonzero(np.diff(bounds) > MAX_DOCUMENT_BYTES).tolist():
        start = int(bounds[index])
        while bounds[index + 1] - start > MAX_DOCUMENT_BYTES:
            start += cut(buffer[start : start + MAX_DOCUMENT_BYTES + 1])
            cuts.append(start)
    return np.union1d(starts, np.array(cuts, dtype=np.int64)) if cuts else starts


def _blocks(buffer: bytes, starts: Offsets, end: int, *, base: int) -> Iterator[DocumentBlock]:
    """The documents that begin at `starts`; the last ends at `end`."""
    if not len(starts):
        return
    first = int(starts[0])
    text = np.frombuffer(buffer, dtype=np.uint8)[first:end]
    ends = np.append(starts[1:], end) - first
    if np.all(text[ends - 1] == _LINE_FEED):
        yield DocumentBlock(text=text, ends=ends, positions=starts + base)
        return
    bounds = zip(starts.tolist(), (ends + first).tolist(), strict=True)
    yield from pack((base + start, buffer[start:stop]) for start, stop in bounds)


TEXT = Reader(read=read_file, line_break="detect")
BLANK_LINE_TEXT = Reader(read=read_blank_line_text, line_break="detect", splittable=True)
SENTENCE_LINES = Reader(read=read_blank_line_text, line_break="sentence", splittable=True)
