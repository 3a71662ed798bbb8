"""The corpus cut into input shards: what one task reads.

In:  the sources of a configuration.
Out: `InputShard`s of some MiB, whatever the files' sizes: large ones are cut, small ones grouped.

How the corpus is cut decides nothing about the result, only about how well it spreads.
"""

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from artifacts.digests import digest_of
from artifacts.filesystem import InputFile
from pipeline.config import CorpusConfig
from pipeline.readers.compression import COMPRESSED_SUFFIXES
from pipeline.readers.documents import BLOCK_BYTES, Piece, Reader
from pipeline.readers.registry import READERS

MEGABYTE = 1e6
"""The unit of progress."""

MAX_SHARD_BYTES = 8 * BLOCK_BYTES
"""A worker holds the tokens of about so much text, half as many bytes, until it writes a run."""
WANTED_SHARDS = 1024
"""Small corpora are cut into shards of one block, large ones into about so many."""


@dataclass(frozen=True)
class InputShard:
    """Pieces of one source's files.

    All shards pass through the launcher, the runner and its serialisers, several times each; the
    names of a million small files would fill their memory. So a shard carries its pieces packed.
    """

    name: str
    """A name that another attempt at the same corpus gives again."""
    source: int
    """The source's ordinal in the configuration."""
    size: int
    """Bytes on disk."""
    packed: bytes
    """The pieces, as compressed JSON."""

    @classmethod
    def of(cls, source: int, pieces: list[Piece], size: int) -> "InputShard":
        """The shard of these pieces, `size` bytes on disk."""
        rows = [[piece.path, piece.start, piece.stop, piece.file] for piece in pieces]
        name = digest_of([source, [row[:3] for row in rows]])[:32]
        return cls(name, source, size, zlib.compress(json.dumps(rows).encode(), level=1))

    @property
    def pieces(self) -> list[Piece]:
        """What is read, in the order of the files."""
        return [Piece(*row) for row in json.loads(zlib.decompress(self.packed))]

    @property
    def megabytes(self) -> float:
        """Its size in the unit of progress."""
        return self.size / MEGABYTE


def input_shards(corpus: CorpusConfig) -> list[InputShard]:
    """All of the corpus, in the order of sources and paths."""
    found = [READERS[source.reader].find(source) for source in corpus.sources]
    total = sum(file.size for files in found for file in files)
    wanted = min(max(total // WANTED_SHARDS, BLOCK_BYTES), MAX_SHARD_BYTES)
    shards: list[InputShard] = []
    for ordinal, (source, files) in enumerate(zip(corpus.sources, found, strict=True)):
        group: list[Piece] = []
        size = 0
        for piece, piece_size in _pieces(READERS[source.reader], files):
            if group and size + piece_size > wanted:
                shards.append(InputShard.of(ordinal, group, size))
                group, size = [], 0
            group.append(piece)
            size += piece_size
        if group:
            shards.append(InputShard.of(ordinal, group, size))
    return shards


def _pieces(reader: Reader, files: list[InputFile]) -> Iterator[tuple[Piece, int]]:
    """Pieces of at most `BLOCK_BYTES`, or whole files where they cannot be cut, and their sizes."""
    for number, file in enumerate(files):
        compressed = file.path.endswith(COMPRESSED_SUFFIXES)
        if not reader.splittable or compressed or file.size <= BLOCK_BYTES:
            yield Piece(file.path, file=number), file.size
            continue
        for start in range(0, file.size, BLOCK_BYTES):
            stop = min(start + BLOCK_BYTES, file.size)
            yield Piece(file.path, start, stop, number), stop - start
