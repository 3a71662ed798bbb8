"""The reader interface, and the blocks of documents that readers produce.

In:  a `Piece` of a file: the documents that begin in a byte range; an `InputShard` groups pieces
     into the input of one task.
Out: `DocumentBlock`s: a few MiB of raw text with the offsets at which documents end.

A `Reader` is one function and a few properties of its format. It yields raw bytes: cleaning,
sentence splitting and tokenisation come later and are the same for every format. Documents travel
in blocks because one Python object per document would cost more than tokenising it.
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
"""Text per block, and the size of the pieces that splittable files are cut into."""

MAX_DOCUMENT_BYTES = 4 << 20
"""Bytes; longer documents are read as several. The longest novels have about 3 MB."""


@dataclass(frozen=True)
class Piece:
    """The documents of one file that begin in the byte range [start, stop)."""

    path: str
    start: int = 0
    stop: int | None = None
    file: int = 0
    """Number of the file within its source, in path order."""


@dataclass(frozen=True)
class InputShard:
    """Pieces of one source's files.

    Every shard passes through the launcher, the runner and its serialisers several times, and the
    paths of a million small files would fill their memory, so the pieces are stored compressed.
    """

    name: str
    """A digest of the files: stable across attempts."""
    source: int
    """Index of the source in the configuration."""
    size: int
    """Bytes on disk."""
    packed: bytes
    """The pieces as compressed JSON."""

    @classmethod
    def of(
        cls, source: int, pieces: list[Piece], size: int, files: list[InputFile]
    ) -> "InputShard":
        """The shard of these pieces of `files`, `size` bytes on disk."""
        rows = [[piece.path, piece.start, piece.stop, piece.file] for piece in pieces]
        versions = [files[piece.file].version for piece in pieces]
        name = digest_of([source, [row[:3] for row in rows], versions])[:32]
        return cls(name, source, size, zlib.compress(json.dumps(rows).encode(), level=1))

    @property
    def pieces(self) -> list[Piece]:
        """The pieces, in file order."""
        return [Piece(*row) for row in json.loads(zlib.decompress(self.packed))]

    @property
    def megabytes(self) -> float:
        """Size in the unit of progress."""
        return self.size / MEGABYTE


def shards_to_json(shards: Sequence[InputShard]) -> bytes:
    """Serialise shards for a file that all workers can read."""
    rows = [[s.name, s.source, s.size, b64encode(s.packed).decode()] for s in shards]
    return json.dumps(rows).encode()


def shards_from_json(content: bytes) -> list[InputShard]:
    """The inverse of `shards_to_json`."""
    rows = json.loads(content)
    return [InputShard(name, source, size, b64decode(pack)) for name, source, size, pack in rows]


@dataclass(frozen=True)
class DocumentBlock:
    """Concatenated documents.

    text:      raw bytes, normally UTF-8; each document ends in a line feed.
    ends:      offset of each document's end in `text`, ascending; the first document begins at 0.
    positions: position of each document in its file: a byte offset, row number or ordinal,
               depending on the format. With the path it identifies the document.
    """

    text: Bytes
    ends: Offsets
    positions: Offsets

    def documents(self) -> Iterator[tuple[int, bytes]]:
        """Position and raw text of each document, for formats that must inspect every one."""
        raw, start = self.text.tobytes(), 0
        for end, position in zip(self.ends.tolist(), self.positions.tolist(), strict=True):
            yield position, raw[start:end]
            start = end


@dataclass(frozen=True)
class Reader:
    """One input format."""

    read: Callable[[Piece, SourceConfig], Iterator[DocumentBlock]]
    """Yields the documents of a piece, in file order."""

    line_break: LineBreak
    """Default meaning of a line break; `SourceConfig.line_break` overrides it."""

    splittable: bool = False
    """Whether `read` supports `start` and `stop`; otherwise it gets whole files."""

    is_encoded: bool = True
    """Whether the files are text, in any encoding and possibly compressed."""

    from_html: bool = False
    """Default for decoding HTML entities and `<br>`; `SourceConfig.html` overrides it."""

    find: Callable[[SourceConfig], list[InputFile]] = lambda source: find_files(source.path)
    """The source's files, sorted by path."""


def pack(documents: Iterable[tuple[int, bytes]]) -> Iterator[DocumentBlock]:
    """Group (position, raw text) pairs into blocks, for readers of few or irregular documents."""
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
    """Where to cut a text longer than `MAX_DOCUMENT_BYTES`: after white space if possible."""
    found = max(text.rfind(space, 0, MAX_DOCUMENT_BYTES) for space in (b"\n", b" "))
    if found > 0:
        return found + 1
    for start in range(MAX_DOCUMENT_BYTES, max(MAX_DOCUMENT_BYTES - 4, 0), -1):
        if text[start] & 0xC0 != 0x80:  # not inside a UTF-8 character
            return start
    return MAX_DOCUMENT_BYTES


def _block(positions: list[int], texts: list[bytes]) -> DocumentBlock:
    return DocumentBlock(
        text=np.frombuffer(b"".join(texts), dtype=np.uint8),
        ends=np.cumsum([len(text) for text in texts], dtype=np.int64),
        positions=np.array(positions, dtype=np.int64),
    )
