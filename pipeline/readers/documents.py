"""What a reader is, and the form in which documents leave it.

In:  a `Piece` of a file: the documents that begin between two of its byte positions; an
     `InputShard` is some of them, the input of one task.
Out: `DocumentBlock`s: some MiB of raw text, and where each document ends in it.

A reader is one function and a few facts about its format (`Reader`). It gives bytes as it finds
them: cleaning, sentences and tokens come later and are the same for every format. Blocks instead
of strings, because one Python object a document would cost more than tokenising it.
"""

import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from artifacts.arrays import Bytes, Offsets
from artifacts.digests import digest_of
from artifacts.filesystem import InputFile, find_files
from pipeline.config.settings import LineBreak, SourceConfig

MEGABYTE = 1e6
"""The unit of progress."""

BLOCK_BYTES = 8 << 20
"""Text in a block; also the size into which splittable files are cut."""

LONGEST_DOCUMENT = 4 << 20
"""Bytes; a longer document is read as several. The longest novels have about 3 MB."""


@dataclass(frozen=True)
class Piece:
    """Those documents of one file that begin at a byte in [start, stop)."""

    path: str
    start: int = 0
    stop: int | None = None
    file: int = 0
    """The file's number within its source, in the order of paths."""


@dataclass(frozen=True)
class InputShard:
    """Pieces of one source's files.

    All shards pass through the launcher, the runner and its serialisers, several times each; the
    names of a million small files would fill their memory. So a shard stores its pieces compressed.
    """

    name: str
    """The same in every attempt at the same files, and different for any other files."""
    source: int
    """The source's ordinal in the configuration."""
    size: int
    """Bytes on disk."""
    packed: bytes
    """The pieces, as compressed JSON."""

    @classmethod
    def of(
        cls, source: int, pieces: list[Piece], size: int, files: list[InputFile]
    ) -> "InputShard":
        """The shard of these pieces of the source's files, `size` bytes on disk."""
        rows = [[piece.path, piece.start, piece.stop, piece.file] for piece in pieces]
        versions = [files[piece.file].version for piece in pieces]
        name = digest_of([source, [row[:3] for row in rows], versions])[:32]
        return cls(name, source, size, zlib.compress(json.dumps(rows).encode(), level=1))

    @property
    def pieces(self) -> list[Piece]:
        """What is read, in the order of the files."""
        return [Piece(*row) for row in json.loads(zlib.decompress(self.packed))]

    @property
    def megabytes(self) -> float:
        """Its size in the unit of progress."""
        return self.size / MEGABYTE


def shards_to_json(shards: Sequence[InputShard]) -> bytes:
    """The shards as JSON, for a file that all workers can read."""
    rows = [[s.name, s.source, s.size, b64encode(s.packed).decode()] for s in shards]
    return json.dumps(rows).encode()


def shards_from_json(content: bytes) -> list[InputShard]:
    """The inverse of `shards_to_json`."""
    rows = json.loads(content)
    return [InputShard(name, source, size, b64decode(pack)) for name, source, size, pack in rows]


@dataclass(frozen=True)
class DocumentBlock:
    """Documents, one after another.

    text:      raw bytes, UTF-8 where nothing is wrong with them; each document ends in a line feed.
    ends:      where each document ends in `text`, ascending; the first begins at 0.
    positions: where each document begins in its file: a byte, a row or an ordinal, as the format
               has it. Together with the path it is the document's name.
    """

    text: Bytes
    ends: Offsets
    positions: Offsets

    def documents(self) -> Iterator[tuple[int, bytes]]:
        """Position and raw text of each document: for formats that must inspect every one."""
        raw, start = self.text.tobytes(), 0
        for end, position in zip(self.ends.tolist(), self.positions.tolist(), strict=True):
            yield position, raw[start:end]
            start = end


@dataclass(frozen=True)
class Reader:
    """How one format is read."""

    read: Callable[[Piece, SourceConfig], Iterator[DocumentBlock]]
    """The documents of a piece, in the order of the file."""

    line_break: LineBreak
    """What a line break means, unless the source says otherwise (`SourceConfig.line_break`)."""

    splittable: bool = False
    """Whether `read` keeps to `start` and `stop`; otherwise it is always given whole files."""

    is_encoded: bool = True
    """Whether its files are text, in whatever encoding, and perhaps compressed."""

    from_html: bool = False
    """Whether the text may hold HTML's entities and `<br>`, unless its source says otherwise."""

    find: Callable[[SourceConfig], list[InputFile]] = lambda source: find_files(source.path)
    """The source's files, sorted by path."""


def pack(documents: Iterable[tuple[int, bytes]]) -> Iterator[DocumentBlock]:
    """Blocks of (position, raw text) pairs: for readers of few or irregular documents."""
    positions: list[int] = []
    texts: list[bytes] = []
    size = 0
    for position, text in documents:
        positions.append(position)
        texts.append(text if text.endswith(b"\n") else text + b"\n")
        size += len(texts[-1])
        if size >= BLOCK_BYTES:
            yield _block(positions, texts)
            positions, texts, size = [], [], 0
    if texts:
        yield _block(positions, texts)


def cut(text: bytes) -> int:
    """Where a text longer than `LONGEST_DOCUMENT` is cut: after white space, if there is any."""
    found = max(text.rfind(space, 0, LONGEST_DOCUMENT) for space in (b"\n", b" "))
    if found > 0:
        return found + 1
    for start in range(LONGEST_DOCUMENT, max(LONGEST_DOCUMENT - 4, 0), -1):
        if text[start] & 0xC0 != 0x80:  # not inside a UTF-8 character
            return start
    return LONGEST_DOCUMENT


def _block(positions: list[int], texts: list[bytes]) -> DocumentBlock:
    return DocumentBlock(
        text=np.frombuffer(b"".join(texts), dtype=np.uint8),
        ends=np.cumsum([len(text) for text in texts], dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
    )
