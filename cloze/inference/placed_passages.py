"""The passages of a folder's documents, each with its file and line.

In:  files, folders, globs and URLs, read as a corpus is.
Out: passages of whole sentences; an account of what was read, what was left out, and why.

Where a passage begins is found while the file is read a second time, in step with its documents: a
few pages of it are in memory, and each passage is looked for in the pages after the last one.
"""

import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import groupby

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.filesystem import located
from cloze.artifacts.tokenizer import well_formed
from cloze.init.corpus_files import LEFT_OUT
from cloze.init.corpus_samples import Look, LookAtSource
from cloze.model.retrieval.passage_index import Passage
from cloze.pipeline.config.settings import CleaningConfig, CorpusConfig, SourceConfig
from cloze.pipeline.readers.compression import stream
from cloze.pipeline.readers.documents import Reader
from cloze.pipeline.readers.input_shards import reader_named
from cloze.pipeline.text.account import Account
from cloze.pipeline.text.scripts import has_no_spaces
from cloze.pipeline.text.texts import Document, cut_overlapping, read_documents

FIRST_WORDS = 12
"""Words at the start of a passage that are searched for to find its line."""

CHARACTERS_PER_WORD = 2
"""For scripts without spaces between words."""

WINDOWS = (1 << 14, 1 << 18)
"""Bytes after the previous passage in which the next one is looked for, the likely ones first."""


def sources_of(seen: Look) -> tuple[SourceConfig, ...]:
    """The sources that read the documents, one for each kind."""
    return tuple(map(_source_of, seen.sources))


def _source_of(seen: LookAtSource) -> SourceConfig:
    source = {**seen.source, "path": located(seen.path)}
    if seen.reader == "blank_line_text":
        # blocks between blank lines may be single lines of dialogue; a passage spans several
        source["reader"] = "text"
    return SourceConfig.model_validate(source)


def said_of(account: Account, seen: Look) -> list[str]:
    """What was read of a folder, and what was left out, and why."""
    return [*account.lines(), *kinds_and_rest(seen)]


def kinds_and_rest(seen: Look) -> list[str]:
    """How a folder's files are read if there are several kinds; those not read, and why."""
    kinds = [seen.why] if len(seen.sources) > 1 else []
    return [*kinds, *(odd for odd in seen.odd if odd.endswith(LEFT_OUT))]


def placed_passages(
    sources: Iterable[SourceConfig], *, words: int, account: Account, overlap: int = 0
) -> Iterator[Passage]:
    """Each passage of up to about `words` words, with its line.

    Before them come up to `overlap` words of the passage before.
    """
    corpus = CorpusConfig(sources=tuple(sources), on_bad_file="skip")
    documents = read_documents(corpus, CleaningConfig(), account)
    for (file, number), of_file in groupby(documents, lambda one: (one.file, one.source)):
        reader = reader_named(corpus.sources[number].reader)
        places = _Places(file, reader, overlapping=overlap > 0)
        titles = _Titles(file) if reader.is_json else None
        for document in of_file:
            title = titles.of(document.position) if titles else ""
            passages = cut_overlapping(document.sentences, words=words, overlap=overlap)
            for text, line in places.lines(document, passages):
                yield Passage(file, line, text, title)


class _Titles:
    """The titles of a file's JSON objects (`title`), read in step with their texts."""

    def __init__(self, path: str) -> None:
        self._lines = _lines(stream(path, is_json=True))

    def of(self, position: int) -> str:
        """That of the object at this byte; positions are asked for in order."""
        content = next((line for start, line in self._lines if start >= position), b"")
        with suppress(ValueError, RecursionError):  # reported when the text was read
            row = json.loads(content)
            title = row.get("title") if isinstance(row, dict) else None
            return well_formed(" ".join(title.split())) if isinstance(title, str) else ""
        return ""


def _lines(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    """Offset and content of each line; a damaged end is reported when the texts are read."""
    rest, offset = b"", 0
    with suppress(ClozeError):
        for chunk in chunks:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                yield offset, line
                offset += len(line) + 1
    yield offset, rest


class _Places:
    """Finds lines in a file, from its beginning to its end."""

    def __init__(self, path: str, reader: Reader, *, overlapping: bool = False) -> None:
        self._reader = reader
        self._overlapping = overlapping
        self._chunks = stream(path, is_json=reader.is_json)
        self._buffer = bytearray()
        self._start, self._line = 0, 1
        """Offset of the buffer, and the line there."""
        self._place = 0
        """End of what was found last."""

    def lines(
        self, document: Document, passages: Iterator[str]
    ) -> Iterator[tuple[str, int | None]]:
        """The passages of the next document, with their lines."""
        reader, position = self._reader, document.position
        if reader.unit != "byte":
            yield from ((text, position if reader.unit == "line" else None) for text in passages)
            return
        # Forwards only: what is behind has left the buffer.
        self._place = max(self._place, position)
        self._move_to(self._place)
        # of formats with several documents per file, the line of the document is known
        known = self._line if reader.splittable and self._place == position else None
        for text in passages:
            # In JSON the text is escaped, so it would not be found.
            found = None if reader.is_json else self._find(beginning(text))
            yield text, self._line if found else known
            if found:
                # An overlapping passage may begin within the first words of the one before.
                self._place += 1 if self._overlapping else found
                self._move_to(self._place)

    def _find(self, words: re.Pattern[str]) -> int | None:
        """Move to the next occurrence; the number of bytes from there to its end."""
        for size in WINDOWS:
            self._fill(size)
            # The window may cut a character in two; surrogates keep the number of bytes.
            text = self._buffer[:size].decode("utf-8", "surrogateescape")
            if found := words.search(text):
                before, inside = (
                    len(part.encode("utf-8", "surrogateescape"))
                    for part in (text[: found.start()], found[0])
                )
                self._place += before
                self._move_to(self._place)
                return inside
        return None

    def _move_to(self, position: int) -> None:
        while self._start + len(self._buffer) < position:
            self._drop(len(self._buffer))
            if not self._fill(1):
                return
        self._drop(position - self._start)

    def _drop(self, size: int) -> None:
        self._line += self._buffer.count(b"\n", 0, max(size, 0))
        self._start += max(size, 0)
        del self._buffer[: max(size, 0)]

    def _fill(self, size: int) -> bool:
        """Read until the buffer has `size` bytes; whether there are any."""
        while len(self._buffer) < size:
            try:
                chunk = next(self._chunks, b"")
            except ClozeError:  # damaged from here on, which the account says
                chunk = b""
            if not chunk:
                break
            self._buffer += chunk
        return bool(self._buffer)


def beginning(text: str) -> re.Pattern[str]:
    """Finds the first words of a passage, whatever the white space between them in the file.

    In scripts without spaces between words, a line may break between any two characters.
    """
    words_there = text.split()[:FIRST_WORDS]
    if any(map(has_no_spaces, words_there)):
        start = "".join(words_there)[: FIRST_WORDS * CHARACTERS_PER_WORD]
        return re.compile(r"\s*".join(map(re.escape, start)))
    return re.compile(r"\s+".join(map(re.escape, words_there)))
