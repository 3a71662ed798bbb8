"""The corpus cut into input shards: what one task reads.

In:  the sources of a configuration.
Out: `InputShard`s of some MiB, whatever the files' sizes: large ones are cut, small ones grouped.

How the corpus is cut never affects the result, only how evenly the work is spread.
"""

from collections.abc import Iterator
from dataclasses import asdict

from artifacts import filesystem
from artifacts.digests import digest_of
from artifacts.errors import IntegrityError
from artifacts.filesystem import InputFile
from artifacts.store import FINISHED, WORK
from pipeline.config.settings import CorpusConfig
from pipeline.readers.compression import COMPRESSED_SUFFIXES
from pipeline.readers.documents import BLOCK_BYTES, InputShard, Piece, Reader
from pipeline.readers.registry import READERS

MAX_SHARD_BYTES = 8 * BLOCK_BYTES
"""A worker holds the tokens of about so much text, half as many bytes, until it writes a run."""
WANTED_SHARDS = 1024
"""Small corpora are cut into shards of one block, large ones into about so many."""


class CorpusFiles:
    """The files of a corpus as they are now.

    The artifact's key records what they held when the run was planned. A stage that has read a file
    which changed since then must not finish, and nothing that it has made may be reused.
    """

    def __init__(self, corpus: CorpusConfig, output: str) -> None:
        """Look at the files; `output` is the unfinished artifact that is made of them.

        Removes what an earlier attempt made from a different state of the files.
        """
        self._corpus = corpus
        self._output = output
        self._files = _found(corpus)
        record = filesystem.join(output, f"{WORK}/corpus.txt")
        state = digest_of([[asdict(file) for file in files] for files in self._files]).encode()
        if filesystem.exists(record) and filesystem.read_bytes(record) != state:
            self._forget()
        filesystem.write_bytes(record, state)

    @property
    def paths(self) -> list[list[str]]:
        """The paths of each source's files, in the order of their numbers."""
        return [[file.path for file in files] for files in self._files]

    def shards(self) -> list[InputShard]:
        """All of the corpus, in the order of sources and paths."""
        return _shards(self._corpus, self._files)

    def require_unchanged(self) -> None:
        """Raise an `IntegrityError` that names a changed file, if there is one."""
        before = {file.path: file for files in self._files for file in files}
        now = {file.path: file for files in _found(self._corpus) for file in files}
        changed = sorted(path for path in before | now if before.get(path) != now.get(path))
        if not changed:
            return
        self._forget()
        what = "is new" if changed[0] not in before else "was written to"
        raise IntegrityError(
            f"{changed[0]}: {what if changed[0] in now else 'is gone'} since the stage began "
            f"({len(changed)} of {len(before)} files differ), so nothing was stored; "
            "leave the corpus alone while it is read and run the stage again"
        )

    def _forget(self) -> None:
        for leftover in (WORK, FINISHED):
            filesystem.remove(filesystem.join(self._output, leftover))


def input_shards(corpus: CorpusConfig) -> list[InputShard]:
    """All of the corpus, in the order of sources and paths."""
    return _shards(corpus, _found(corpus))


def _found(corpus: CorpusConfig) -> list[list[InputFile]]:
    return [READERS[source.reader].find(source) for source in corpus.sources]


def _shards(corpus: CorpusConfig, found: list[list[InputFile]]) -> list[InputShard]:
    total = sum(file.size for files in found for file in files)
    wanted = min(max(total // WANTED_SHARDS, BLOCK_BYTES), MAX_SHARD_BYTES)
    shards: list[InputShard] = []
    for ordinal, (source, files) in enumerate(zip(corpus.sources, found, strict=True)):
        group: list[Piece] = []
        size = 0
        for piece, piece_size in _pieces(READERS[source.reader], files):
            if group and size + piece_size > wanted:
                shards.append(InputShard.of(ordinal, group, size, files))
                group, size = [], 0
            group.append(piece)
            size += piece_size
        if group:
            shards.append(InputShard.of(ordinal, group, size, files))
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
