"""The corpus cut into portions: the units of work.

In:  the sources of a configuration.
Out: `Portion`s of some MiB, whatever the files' sizes: large ones are cut, small ones grouped.

How the corpus is cut decides nothing about the result, only about how well it spreads.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from artifacts.digests import digest_of
from artifacts.filesystem import InputFile
from pipeline.config import CorpusConfig, SourceConfig
from pipeline.readers.compression import COMPRESSED_SUFFIXES
from pipeline.readers.documents import BLOCK_BYTES, Piece, Reader
from pipeline.readers.registry import READERS

MEGABYTE = 1e6
"""The unit of progress."""

MAX_PORTION_BYTES = 8 * BLOCK_BYTES
"""A worker holds the tokens of about so much text, half as many bytes, until it writes a run."""
WANTED_PORTIONS = 1024
"""Small corpora are cut into portions of one block, large ones into about so many."""


@dataclass(frozen=True)
class FilePiece:
    """A piece of one file of a source."""

    file: int
    """The file's number within its source, in the order of paths."""
    piece: Piece
    size: int
    """Bytes on disk."""


@dataclass(frozen=True)
class Portion:
    """What one task reads: pieces of one source's files.

    All portions pass through the launcher, the runner and its serialisers, several times each; the
    names of a million small files would fill their memory. So a portion carries its pieces packed.
    """

    source: int
    """The source's ordinal in the configuration."""
    size: int
    """Bytes on disk."""
    packed: bytes
    """The pieces, as compressed JSON."""

    @classmethod
    def of(cls, source: int, pieces: tuple[FilePiece, ...]) -> "Portion":
        """The portion of these pieces."""
        rows = [
            [work.file, work.piece.path, work.piece.start, work.piece.stop, work.size]
            for work in pieces
        ]
        packed = zlib.compress(json.dumps(rows).encode(), level=1)
        return cls(source, sum(work.size for work in pieces), packed)

    @property
    def pieces(self) -> tuple[FilePiece, ...]:
        """What is read, in the order of the files."""
        return tuple(
            FilePiece(file, Piece(path, start, stop), size)
            for file, path, start, stop, size in json.loads(zlib.decompress(self.packed))
        )

    @property
    def name(self) -> str:
        """A name that another attempt at the same work gives again."""
        places = [[work.piece.path, work.piece.start, work.piece.stop] for work in self.pieces]
        return digest_of([self.source, places])[:32]


def portions(corpus: CorpusConfig) -> list[Portion]:
    """All the work there is, in the order of sources and paths."""
    found = [READERS[source.reader].find(source) for source in corpus.sources]
    total = sum(file.size for files in found for file in files)
    wanted = min(max(total // WANTED_PORTIONS, BLOCK_BYTES), MAX_PORTION_BYTES)
    return [
        Portion.of(ordinal, pieces)
        for ordinal, (source, files) in enumerate(zip(corpus.sources, found, strict=True))
        for pieces in _grouped(_pieces(source, files), wanted)
    ]


def _pieces(source: SourceConfig, files: list[InputFile]) -> Iterator[FilePiece]:
    reader = READERS[source.reader]
    for number, file in enumerate(files):
        if not _splittable(reader, file):
            yield FilePiece(number, Piece(file.path), file.size)
            continue
        for start in range(0, max(file.size, 1), BLOCK_BYTES):
            stop = min(start + BLOCK_BYTES, file.size)
            yield FilePiece(number, Piece(file.path, start, stop), stop - start)


def _splittable(reader: Reader, file: InputFile) -> bool:
    return (
        reader.splittable
        and file.size > BLOCK_BYTES
        and not file.path.endswith(COMPRESSED_SUFFIXES)
    )


def _grouped(pieces: Iterator[FilePiece], wanted: int) -> Iterator[tuple[FilePiece, ...]]:
    group: list[FilePiece] = []
    size = 0
    for piece in pieces:
        if group and size + piece.size > wanted:
            yield tuple(group)
            group, size = [], 0
        group.append(piece)
        size += piece.size
    if group:
        yield tuple(group)
