"""Cutting a file into documents where something in the bytes marks each document's start.

In:  a piece of a file, and a function that finds the starts in a stretch of it.
Out: blocks of whole documents, in the order of the file; little more than a block is held at once.

A document belongs to the piece in which it begins, and is read to its end. So pieces can be cut
anywhere, and a file gives the same documents however it is cut.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from artifacts.arrays import Offsets
from artifacts.errors import UsageError
from pipeline.readers.compression import can_be_cut, stream
from pipeline.readers.documents import (
    BLOCK_BYTES,
    LONGEST_DOCUMENT,
    DocumentBlock,
    Piece,
    cut,
    pack,
)

LOOKBACK_BYTES = 1 << 16
"""What is read before a piece to tell whether its first byte begins a document."""

LONGEST_MARK = 16
"""Longest mark that begins a document, in bytes: `<page>`, and room to spare."""

LONGEST_RECORD = 1 << 26
"""A JSON object or article that is larger is refused: it is held whole, several times over while it
is decoded, and a worker has to make do with 1 GiB."""

FindStarts = Callable[[bytes, bool], Offsets]
"""Ascending places in a stretch of a file at which documents begin. The second argument says
whether it is the beginning of the file, before which there is nothing to tell."""


def scan(piece: Piece, find_starts: FindStarts, *, cuttable: bool) -> Iterator[DocumentBlock]:
    """The documents that begin in the piece, each from its start to the next one's.

    Where `cuttable`, documents longer than `LONGEST_DOCUMENT` come as several.
    """
    if piece.stop is not None and not piece.start and not can_be_cut(piece.path):
        piece = replace(piece, stop=None)  # the other pieces give nothing
    lookback = min(piece.start, LOOKBACK_BYTES)
    base = piece.start - lookback
    rest, inside = b"", False
    chunks = stream(piece.path, piece.start, lookback=lookback)
    for new, at_end in _gathered(chunks, None if piece.stop is None else piece.stop - base):
        buffer = rest + new
        starts = find_starts(buffer, base == 0 and not inside)
        if inside:  # the buffer begins with a document's start
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
        if len(rest) > LONGEST_RECORD:
            raise UsageError(
                f"{piece.path}: what begins at byte {base} has no end within {LONGEST_RECORD:,} "
                "bytes, more than is held in memory; cut it into several records, or check whether "
                "the reader is the right one for this file"
            )


def line_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Every line begins a document."""
    starts = np.flatnonzero(np.frombuffer(buffer, dtype=np.uint8) == 0x0A) + 1
    starts = starts[starts < len(buffer)]
    return np.concatenate(([0], starts)) if at_beginning and buffer else starts


def is_beginning(piece: Piece) -> bool:
    """Whether the piece covers enough of a file's beginning that a document must begin in it."""
    return not piece.start and (piece.stop is None or piece.stop >= LOOKBACK_BYTES)


def _gathered(chunks: Iterator[bytes], wanted: int | None) -> Iterator[tuple[bytes, bool]]:
    """Chunks joined to about a block each, and whether this is the last one.

    Beyond the `wanted` bytes of the piece only the end of its last document matters: chunks start
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
    """The starts that lie in the piece, and where the last of their documents ends.

    The end is `size` as long as nothing shows that it comes earlier.
    """
    if piece.stop is None:
        return starts, size
    ours = starts < piece.stop - base
    if inside:
        ours[0] = True  # it began in the piece, perhaps in an earlier buffer
    beyond = starts[~ours]
    if len(beyond):
        return starts[ours], int(beyond[0])
    past = not len(starts) and base + size > piece.stop + LONGEST_MARK
    return starts, 0 if past else size


def _with_cuts(buffer: bytes, starts: Offsets, end: int) -> Offsets:
    """The starts, and where documents that are too long are cut."""
    bounds = np.append(starts, end)
    cuts: list[int] = []
    for index in np.flatnonzero(np.diff(bounds) > LONGEST_DOCUMENT).tolist():
        start = int(bounds[index])
        while bounds[index + 1] - start > LONGEST_DOCUMENT:
            start += cut(buffer[start : start + LONGEST_DOCUMENT + 1])
            cuts.append(start)
    return np.union1d(starts, np.array(cuts, dtype=np.int64)) if cuts else starts


def _blocks(buffer: bytes, starts: Offsets, end: int, *, base: int) -> Iterator[DocumentBlock]:
    """The documents that begin at `starts`, the last one ending at `end`."""
    if not len(starts):
        return
    first = int(starts[0])
    text = np.frombuffer(buffer, dtype=np.uint8)[first:end]
    ends = np.append(starts[1:], end) - first
    if np.all(text[ends - 1] == 0x0A):
        yield DocumentBlock(text=text, ends=ends, positions=starts + base)
        return
    bounds = zip(starts.tolist(), (ends + first).tolist(), strict=True)
    yield from pack((base + start, buffer[start:stop]) for start, stop in bounds)
