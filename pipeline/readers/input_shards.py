"""Input shards: the corpus divided into units of work.

In:  the sources of a configuration.
Out: `InputShard`s of a few MiB each: large files are cut, small ones grouped.

The division never affects the result, only how evenly the work is spread.

To add a format: pipeline/config/formats.py.
"""

import importlib
import json
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache

from cloze.artifacts import filesystem
from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import ClozeError, IntegrityError
from cloze.artifacts.filesystem import InputFile
from cloze.artifacts.store import FINISHED, WORK
from cloze.pipeline.config.formats import FORMATS
from cloze.pipeline.config.settings import CorpusConfig
from cloze.pipeline.readers.compression import COMPRESSED_SUFFIXES, HEAD_BYTES, stream
from cloze.pipeline.readers.documents import BLOCK_BYTES, MEGABYTE, Piece, Reader, grouped
from cloze.pipeline.readers.structure import format_of

PROSE = ("text", "blank_line_text", "sentence_lines")
"""Readers that take everything for prose."""
PEEKED_FILES = 8
"""Files per source that are examined for other structure."""

MAX_SHARD_BYTES = 8 * BLOCK_BYTES
"""A worker holds the tokens of this much text, about half as many bytes, until it writes a run."""
WANTED_SHARDS = 1024
"""Small corpora are divided into shards of one block, large ones into about this many shards."""


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
        cls, source: int, pieces: Sequence[Piece], size: int, files: list[InputFile]
    ) -> "InputShard":
        """The shard of these pieces of `files`, `size` bytes on disk."""
        rows = [[piece.path, piece.start, piece.stop, piece.file] for piece in pieces]
        versions = [files[piece.file].version for piece in pieces]
        # The name depends on what is read, and on the files' versions, not on the order of shards.
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


class CorpusFiles:
    """The files of a corpus while a stage reads them.

    The artifact's key describes the files as they were when the run was planned. If one changes
    while the stage runs, the stage must fail and its partial output must not be reused.
    """

    def __init__(self, corpus: CorpusConfig, output: str) -> None:
        """List the files; `output` is the unfinished artifact.

        Partial output that an earlier attempt made from a different state of the files is removed.
        """
        self._corpus = corpus
        self._output = output
        self._files = find_corpus(corpus)
        record = filesystem.join(output, f"{WORK}/corpus.txt")
        # State of the files that the leftovers of an earlier attempt were made from.
        state = digest_of([[asdict(file) for file in files] for files in self._files]).encode()
        if filesystem.exists(record) and filesystem.read_bytes(record) != state:
            self._forget()
        # Written before any work begins, so whatever this attempt leaves behind can be told from
        # the leftovers of another state of the files.
        filesystem.write_bytes(record, state)

    @property
    def paths(self) -> list[list[str]]:
        """The paths of each source's files, in path order."""
        return [[file.path for file in files] for files in self._files]

    @property
    def sizes(self) -> list[int]:
        """The bytes of each source's files."""
        return [sum(file.size for file in files) for files in self._files]

    @property
    def readers(self) -> list[Reader]:
        """The reader of each source."""
        return [reader_named(source.reader) for source in self._corpus.sources]

    def misread(self) -> Iterator[str]:
        """A warning for each source whose structure its reader would take for prose."""
        for source, files in zip(self._corpus.sources, self._files, strict=True):
            # a few files evenly spread over the source
            some = files[:: max(1, len(files) // PEEKED_FILES)] if source.reader in PROSE else []
            for file in some:
                # A file that cannot be read is reported when it is read for good, with what to do
                # about it.
                with suppress(ClozeError):
                    head = next(stream(file.path), b"")[:HEAD_BYTES].decode("utf-8", "replace")
                    if (found := format_of(head, file.path)) != "text":
                        yield (
                            f'warning: {file.path} looks like {found}, but reader = "'
                            f'{source.reader}" takes all of it for prose; `cloze init '
                            f"{source.path}` proposes a reader"
                        )
                        break

    def shards(self) -> list[InputShard]:
        """The shards of these files."""
        return input_shards(self._corpus, self._files)

    def require_unchanged(self) -> None:
        """Raise `IntegrityError` if a file has changed."""
        before = {file.path: file for files in self._files for file in files}
        now = {file.path: file for files in find_corpus(self._corpus) for file in files}
        changed = sorted(path for path in before | now if before.get(path) != now.get(path))
        if not changed:
            return
        self._forget()
        what = "is new" if changed[0] not in before else "was written to"
        raise IntegrityError(
            f"{changed[0]}: {what if changed[0] in now else 'is gone'} since the stage began "
            f"({len(changed)} of {len(before)} files differ), so nothing was stored; "
            "run the stage again and do not modify the corpus meanwhile"
        )

    def _forget(self) -> None:
        for leftover in (WORK, FINISHED):
            filesystem.remove_below(self._output, leftover)


@cache
def reader_named(name: str) -> Reader:
    """The reader of this name in a configuration; its module is imported on first use."""
    module, _, attribute = FORMATS[name].reader.partition(":")
    reader: Reader = getattr(importlib.import_module(module), attribute)
    return reader


def find_corpus(corpus: CorpusConfig) -> list[list[InputFile]]:
    """The files of each source, sorted by path."""
    return [reader_named(source.reader).find(source) for source in corpus.sources]


def input_shards(
    corpus: CorpusConfig, found: list[list[InputFile]] | None = None
) -> list[InputShard]:
    """The shards of the corpus, in source and path order; `found` are its files, if known."""
    found = find_corpus(corpus) if found is None else found
    total = sum(file.size for files in found for file in files)
    # As many bytes as make about `WANTED_SHARDS` shards, within limits.
    wanted = min(max(total // WANTED_SHARDS, BLOCK_BYTES), MAX_SHARD_BYTES)
    shards: list[InputShard] = []
    for ordinal, (source, files) in enumerate(zip(corpus.sources, found, strict=True)):
        splittable = reader_named(source.reader).splittable
        sized = _pieces(files, splittable=splittable)
        for group in grouped(sized, lambda piece: piece[1], limit=wanted):
            pieces, sizes = zip(*group, strict=True)
            shards.append(InputShard.of(ordinal, pieces, sum(sizes), files))
    return shards


def _pieces(files: list[InputFile], *, splittable: bool) -> Iterator[tuple[Piece, int]]:
    """Pieces and their sizes: at most `BLOCK_BYTES`, or whole files that cannot be split."""
    for number, file in enumerate(files):
        compressed = file.path.endswith(COMPRESSED_SUFFIXES)
        if not splittable or compressed or file.size <= BLOCK_BYTES:
            yield Piece(file.path, file=number), file.size
            continue
        for start in range(0, file.size, BLOCK_BYTES):
            stop = min(start + BLOCK_BYTES, file.size)
            yield Piece(file.path, start, stop, number), stop - start
