"""Passages of a folder of documents, each with the line on which it begins.

In:  a file, folder, glob or URL.
Out: the source that `cloze init` would write for it; `(file, line, text)` of every passage, in the
     order of files. The line is None if the file does not contain the text verbatim.
"""

import re
from collections.abc import Iterator
from itertools import groupby

from artifacts import filesystem
from artifacts.filesystem import located
from cloze.init.corpus_samples import Look
from pipeline.config.settings import CorpusConfig, SourceConfig
from pipeline.readers.compression import stream
from pipeline.text.passages import read_passages

FIRST_WORDS = 12
"""Words at the start of a passage that are searched for to find its line."""

LARGEST_FILE = 1 << 28
"""Bytes; in larger files, lines are not determined."""

PlacedPassage = tuple[str, int | None, str]
"""File, line and text."""


def source_of(seen: Look) -> SourceConfig:
    """The source that reads the documents."""
    return SourceConfig(
        # blocks between blank lines may be single lines of dialogue; a passage spans several
        reader="text" if seen.reader == "blank_line_text" else seen.reader,
        path=located(seen.path),
        **({"text_field": seen.text_field} if seen.text_field else {}),
        html=seen.html or None,
        line_break=seen.line_break,
    )


def placed_passages(source: SourceConfig, *, words: int) -> Iterator[PlacedPassage]:
    """Each passage with its line, regardless of the white space between its words in the file.

    Each file is read a second time, and searched from the end of the previous passage.
    """
    corpus = CorpusConfig(sources=(source,), on_bad_file="skip")
    by_file = groupby(read_passages(corpus, words=words), lambda passage: passage.file)
    for file, of_file in by_file:
        content, place, line = "", 0, 1
        if filesystem.size_of(file) in range(LARGEST_FILE):
            content = b"".join(stream(file)).decode("utf-8", "replace")
        for passage in of_file:
            words_there = map(re.escape, passage.text.split()[:FIRST_WORDS])
            begins = re.compile(r"\s+".join(words_there)).search(content, place)
            if begins is None:
                yield file, None, passage.text
                continue
            line += content.count("\n", place, begins.start())
            yield file, line, passage.text
            line += content.count("\n", *begins.span())
            place = begins.end()
