"""The reader interface, and how files are cut into blocks of documents.

In:  a `Piece` of a file: the documents that begin in a byte range.
Out: `DocumentBlock`s: a few MiB of raw text with the offsets at which documents end.

A `Reader` is one function and a few properties of its format. It yields raw bytes: cleaning,
sentence splitting and tokenisation come later and are the same for every format. Documents travel
in blocks because one Python object per document would cost more than tokenising it.

`scan` serves every format whose documents start at a recognisable mark. A document belongs to the
piece in which it begins and is read to its end, so a file yields the same documents however it is
cut into pieces; little more than a block is held in memory.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Literal, TypeVar

import numpy as np

from cloze.artifacts.arrays import Bytes, Offsets, concatenated
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import InputFile, find_files
from cloze.pipeline.config.settings import LineBreak, SourceConfig
from cloze.pipeline.readers.compression import can_be_cut, stream

MEGABYTE = 1e6
"""The unit of progress."""

BLOCK_BYTES = 8 << 20
"""Text per block, and the size of the pieces that splittable files are cut into."""

MAX_DOCUMENT_BYTES = 4 << 20
"""Bytes; longer documents are read as several. The longest novels have about 3 MB."""


LOOKBACK_BYTES = 1 << 16
"""Bytes read before a piece to decide whether a document begins at its first byte."""

MAX_MARK_BYTES = 16
"""Upper bound on the length of a mark that begins a document, such as `<page>`, in bytes."""

MAX_RECORD_BYTES = 1 << 26
"""Larger JSON objects and articles are refused: a record is held in memory whole, several times
over while it is decoded, and a worker should fit into 1 GiB."""

Item = TypeVar("Item")

Pair = tuple[str, str]
"""A query and its passage."""

FindStarts = Callable[[bytes, bool], Offsets]
"""Ascending offsets in a buffer at which documents begin. The second argument is true if the buffer
starts at the beginning of the file."""


@dataclass(frozen=True)
class Piece:
    """The documents of one file that begin in the byte range [start, stop)."""

    path: str
    start: int = 0
    stop: int | None = None
    file: int = 0
    """Number of the file within its source, in path order."""


@dataclass(frozen=True)
class DocumentBlock:
    """Concatenated documents.

    text:      bytes, as read or cleaned; each document that is not empty ends in a line feed.
    ends:      offset of each document's end in `text`, ascending; the first document begins at 0.
    positions: position of each document in its file: a byte offset, row number or ordinal,
               depending on the format. With the path it identifies the document.
    broken:    why records could not be read, by index; each is an empty document here.
    """

    text: Bytes
    ends: Offsets
    positions: Offsets
    broken: Mapping[int, str] = field(default_factory=dict)

    def documents(self) -> Iterator[tuple[int, bytes]]:
        """Position and raw text of each document, for formats that must inspect every one."""
        raw, start = self.text.tobytes(), 0
        for end, position in zip(self.ends.tolist(), self.positions.tolist(), strict=True):
            yield position, raw[start:end]
            start = end


@dataclass(frozen=True)
class BrokenRecord:
    """What a reader finds in place of a record's text."""

    why: str
    """What was found and what was expected."""


Unit = Literal["byte", "line", "row", "document"]


@dataclass(frozen=True)
class Reader:
    """One input format."""

    read: Callable[[Piece, SourceConfig], Iterator[DocumentBlock]]
    """Yields the documents of a piece, in file order."""

    line_break: LineBreak = "detect"
    """Default meaning of a line break; `SourceConfig.line_break` overrides it."""

    splittable: bool = False
    """Whether `read` supports `start` and `stop`; otherwise it gets whole files."""

    is_encoded: bool = True
    """Whether the files are text, in any encoding and possibly compressed."""

    is_json: bool = False
    """Whether the files are JSON, which is UTF-8 by definition, whatever single bytes suggest."""

    unit: Unit = "byte"
    """What positions count: bytes from 0; lines from 1; rows or documents from 0."""

    from_html: bool = False
    """Default for decoding HTML entities and `<br>`; `SourceConfig.html` overrides it."""

    find: Callable[[SourceConfig], list[InputFile]] = lambda source: find_files(
        source.path, source.exclude
    )
    """The source's files, sorted by path."""

    pairs: Callable[[Piece, SourceConfig], Iterator[list[Pair]]] | None = None
    """Yields the pairs of a whole file that the format itself marks, one list for each part that
    must not be divided between splits (`pairs.kind = "signature"`); None if it marks none."""


def grouped(
    items: Iterable[Item], size_of: Callable[[Item], int], *, limit: int
) -> Iterator[list[Item]]:
    """Consecutive items in groups of a total size up to `limit`; a larger item is a group alone."""
    # Closed before it would exceed the limit, so only a single item can.
    group: list[Item] = []
    size = 0
    for item in items:
        added = size_of(item)
        if group and size + added > limit:
            yield group
            group, size = [], 0
        group.append(item)
        size += added
    if group:
        yield group


def pack(documents: Iterable[tuple[int, bytes | BrokenRecord]]) -> Iterator[DocumentBlock]:
    """Group (position, raw text) pairs into blocks, for readers of few or irregular documents."""
    positions: list[int] = []
    texts: list[bytes] = []
    broken: dict[int, str] = {}
    size = 0
    for position, found in documents:
        if isinstance(found, BrokenRecord):
            broken[len(texts)] = found.why
        # A broken record stays as an empty document, so that it is counted, and named with its
        # place.
        text = b"" if isinstance(found, BrokenRecord) else found
        positions.append(position)
        texts.append(text if text.endswith(b"\n") else text + b"\n")
        size += len(texts[-1])
        if size >= BLOCK_BYTES:
            yield _block(positions, texts, broken)
            positions, texts, broken, size = [], [], {}, 0
    if texts:
        yield _block(positions, texts, broken)


def cut(text: bytes) -> int:
    """Where to cut a text longer than `MAX_DOCUMENT_BYTES`: after white space if possible."""
    # -1 where there is none
    found = max(text.rfind(space, 0, MAX_DOCUMENT_BYTES) for space in (b"\n", b" "))
    if found > 0:
        return found + 1
    for start in range(MAX_DOCUMENT_BYTES, max(MAX_DOCUMENT_BYTES - 4, 0), -1):
        if text[start] & 0xC0 != 0x80:  # not inside a UTF-8 character
            return start
    return MAX_DOCUMENT_BYTES


def _block(positions: list[int], texts: list[bytes], broken: dict[int, str]) -> DocumentBlock:
    return DocumentBlock(*concatenated(texts), np.array(positions, dtype=np.int64), broken)


def place_of(path: str, position: int, reader: Reader) -> str:
    """Where the document at `position` begins, for people: file and line, row or ordinal."""
    # Positions that are counted from 0 are shown from 1.
    if reader.unit == "byte":
        return f"{path}, line {line_at(path, position, is_json=reader.is_json):,}"
    return f"{path}, {reader.unit} {position + (reader.unit != 'line'):,}"


def line_at(path: str, position: int, *, is_json: bool) -> int:
    """The line, from 1, of a byte of the decompressed file."""
    lines, left = 1, position
    for chunk in stream(path, is_json=is_json):
        lines += chunk.count(b"\n", 0, max(left, 0))
        left -= len(chunk)
        if left <= 0:
            break
    return lines


def scan(
    piece: Piece, find_starts: FindStarts, *, cuttable: bool, is_json: bool = False
) -> Iterator[DocumentBlock]:
    """The documents that begin in the piece, each up to the start of the next.

    If `cuttable`, documents longer than `MAX_DOCUMENT_BYTES` are cut into several.
    """
    whole = piece.stop is not None and not piece.start
    if whole and not can_be_cut(piece.path, is_json=is_json):
        piece = replace(piece, stop=None)  # the other pieces yield nothing
    # The invariant of the loop: `buffer` holds the file's bytes from `base` on, and `inside` says
    # that a document of this piece begins at its first byte and has not ended yet. While not
    # inside, documents that begin before the piece are another's, however they reach into it.
    lookback = min(piece.start, LOOKBACK_BYTES)
    base = piece.start - lookback
    rest, inside = b"", False
    chunks = stream(piece.path, piece.start, lookback=lookback, is_json=is_json)
    for new, at_end in _gathered(chunks, None if piece.stop is None else piece.stop - base):
        buffer = rest + new
        starts = find_starts(buffer, base == 0 and not inside)
        if inside:  # the buffer begins at the start of a document
            starts = np.concatenate(([0], starts[starts > 0]))
        else:
            starts = starts[starts >= piece.start - base]
        # `end` is known as soon as the buffer holds the start of a document beyond the piece;
        # before that, the last document may go on in the next buffer, so it is kept back, and only
        # those before it are yielded. Without any document, a few bytes are kept for a mark, or
        # what decides about it, that crosses the border.
        starts, end = _until(starts, piece, base=base, size=len(buffer), inside=inside)
        last = at_end or end < len(buffer)
        if cuttable and len(buffer) > MAX_DOCUMENT_BYTES:
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
        # Read a block at a time within the piece. Behind it, as much as has been read there
        # already, so that a long document costs a number of reads that is logarithmic in its
        # length, and a short one hardly a chunk.
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
    # No document of ours, and enough bytes beyond the piece that no mark can cross its end: there
    # will be none.
    past = not len(starts) and base + size > piece.stop + MAX_MARK_BYTES
    return starts, 0 if past else size


def _with_cuts(buffer: bytes, starts: Offsets, end: int) -> Offsets:
    """The starts, with additional ones where documents are too long."""
    bounds = np.append(starts, end)
    # Cuts are relative to the previous one, as if each rest was a document of its own.
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
    # Ends in line feeds already: the block is a view of the buffer, without a copy.
    if len(text) and np.all(text[ends - 1] == ord("\n")):
        yield DocumentBlock(text=text, ends=ends, positions=starts + base)
        return
    bounds = zip(starts.tolist(), (ends + first).tolist(), strict=True)
    yield from pack((base + start, buffer[start:stop]) for start, stop in bounds)
