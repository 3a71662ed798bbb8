"""CoNLL's column formats: one word per line with its tags, an empty line after each sentence.

In:  the text of a file, separated by tabs or by spaces.
Out: a `TaskTable` with one row per sentence: `words`; `tags`, if there is more than one column;
     `document`, the number of its document, if the file marks where documents begin.

The word is in the first column and the tag in the last, unless `columns` numbers them differently;
CoNLL-U (`.conllu`) has the word in its second column and the part of speech in its fourth. If most
lines contain a tab, tabs alone separate columns, so that a word may contain spaces; a no-break
space never separates. A line with nothing but white space ends a sentence. `-DOCSTART-`,
`# newdoc` and `#begin document` begin a document, whatever follows them. Comments are counted: a
line that begins with `#` is one unless it has as many columns as words have, and a known tag.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from pydantic import JsonValue

from cloze.artifacts.errors import UsageError
from cloze.model.tasks.files.task_table import Numbered, Wanted
from cloze.model.tasks.files.text_file import TextFile

DOCUMENT_START = "-DOCSTART-"
BEGINS_DOCUMENT = re.compile(r"#\s*(newdoc|begin document)\b")
COMMENT = re.compile(r"#(\s|$|(begin|end) document\b)")
UNIVERSAL = ".conllu"
SPACE = re.compile("[ \\t]+")
SPANNING = re.compile(r"\d+[-.]\d+")
"""Ids in CoNLL-U of lines that are not words: several words together, and words left out."""

FEWEST_WORDS = 50
"""With so many words, tags that hardly ever repeat are no tags."""


class Line(NamedTuple):
    """One line with content."""

    number: int
    text: str
    fields: list[str]


class SentenceLines(NamedTuple):
    """The lines of a sentence."""

    lines: list[Line]
    document: int
    """Documents that have begun."""


@dataclass
class FileLayout:
    """What only the whole file tells."""

    by_tab: bool
    """Whether tabs alone separate columns."""

    widths: set[int] = field(default_factory=set)
    """Columns of its lines, without those that begin with `#`, if there are any of these."""

    tags: set[str] = field(default_factory=lambda: {"O"})
    """Tags in these."""

    comments: int = 0
    first_comment: int = 0
    """Lines left out, and the number of the first."""


def conll_rows(text: TextFile, wanted: Wanted) -> tuple[Callable[[], Numbered], tuple[str, ...]]:
    """Reads the sentences, each with its first line, and what to remark on.

    `wanted.names` numbers the columns of words and tags.
    """
    path = text.path
    word_column, tag_column = _columns(path, wanted)
    layout = _layout(text, tag_column)
    tags, widths = Counter[str](), set[int]()
    marks = 0
    counts_words: bool | None = None
    where = 0
    for sentence in _sentences(text, tag_column, layout):
        marks = max(marks, sentence.document)
        widths.update(len(line.fields) for line in sentence.lines)
        tags.update(line.fields[tag_column] for line in sentence.lines if _has(line, tag_column))
        # A column of words is told from one of numbers by the first sentence that is not numbered
        # from 1; after it, no further one is compared.
        if counts_words is not False and all(_has(line, word_column) for line in sentence.lines):
            words = [line.fields[word_column] for line in sentence.lines]
            counts_words = words == [str(number + 1) for number in range(len(words))]
            where = where or sentence.lines[0].number
    if not widths:
        raise UsageError(f"{path}: no sentences, expected a word and its tag on every line")
    if counts_words:
        raise UsageError(
            f"{path}:{where}: column {word_column} only numbers the words of each sentence; name "
            'the columns of words and tags: columns = { words = "1", tags = "2" }'
        )

    def read() -> Numbered:
        for sentence in _sentences(text, tag_column, layout):
            row: dict[str, JsonValue] = {
                wanted.in_file("words"): _column(path, sentence.lines, word_column, "word")
            }
            if widths != {1}:
                row[wanted.in_file("tags")] = _column(path, sentence.lines, tag_column, "tag")
            if marks:
                row[wanted.in_file("document")] = sentence.document
            yield sentence.lines[0].number, row

    if widths != {1} and tags.total() >= FEWEST_WORDS and len(tags) > tags.total() / 2:
        raise UsageError(
            f"{path}: {len(tags):,} different tags of {tags.total():,} words; expected CoNLL's "
            "columns, one word and its tag per line: name the tags' column, columns.tags = "
            '"NUMBER", or rename the file to what it is'
        )
    if not layout.comments:
        return read, ()
    comments = f"{path}: {layout.comments:,} comments are left out"
    return read, (f"{comments} (the first in line {layout.first_comment})",)


def _columns(path: str, wanted: Wanted) -> tuple[int, int]:
    """Numbers of the columns of words and tags; negative: from the last one."""
    # Words and tags by number; a tag is in the last column unless it is CoNLL-U.
    usual = ("1", "3") if path.lower().endswith(UNIVERSAL) else ("0", "-1")
    chosen = [wanted.names.get(name) or u for name, u in zip(("words", "tags"), usual, strict=True)]
    for name, number in zip(("words", "tags"), chosen, strict=True):
        if not re.fullmatch(r"-?\d+", number):
            raise UsageError(
                f"{path}: columns.{name} = {number!r}, but CoNLL's columns have no names; number "
                'them from 0, for example columns.words = "1"'
            )
    return int(chosen[0]), int(chosen[1])


def _lines(text: TextFile, *, by_tab: bool) -> Iterator[Line | None]:
    """The lines with their fields; None for one without content."""
    is_universal = text.path.lower().endswith(UNIVERSAL)
    for number, ended in enumerate(text.lines(), start=1):
        line = ended.rstrip("\r\n")
        if not line.strip():
            yield None
            continue
        # What begins with `#` may be a comment, whose words have spaces between them.
        if by_tab and not line.startswith("#"):
            fields = [one.strip(" ") for one in line.rstrip("\t ").split("\t")]
        else:
            fields = SPACE.split(line.strip(" \t"))
        if not (is_universal and SPANNING.fullmatch(fields[0])):
            yield Line(number, line, fields)


def _layout(text: TextFile, tag_column: int) -> FileLayout:
    """How the file separates columns, and which widths and tags it has."""
    filled = tabbed = odd = 0
    for line in text.lines():
        if content := line.strip():
            filled += 1
            tabbed += "\t" in content
            odd += line[0] == "#"
    # By tabs only if most lines have one: a word may then contain spaces.
    layout = FileLayout(by_tab=2 * tabbed > filled)
    # only what begins with `#` may be a comment, or a word like those of other lines
    for found in _lines(text, by_tab=layout.by_tab) if odd else ():
        if found and not found.text.startswith("#"):
            layout.widths.add(len(found.fields))
            if _has(found, tag_column):
                layout.tags.add(found.fields[tag_column])
    return layout


def _sentences(text: TextFile, tag_column: int, layout: FileLayout) -> Iterator[SentenceLines]:
    """The lines of words by sentence, with their documents."""
    current = list[Line]()
    layout.comments = marks = 0
    for line in _lines(text, by_tab=layout.by_tab):
        begins = is_comment = False
        if line is not None and line.fields[0].startswith(DOCUMENT_START):
            begins = True
        elif line is not None and COMMENT.match(line.text):
            # A word may be `#`: a line that looks like the lines of words is one of them.
            is_comment = not (
                len(line.fields) in layout.widths
                and _has(line, tag_column)
                and line.fields[tag_column] in layout.tags
            )
            begins = is_comment and bool(BEGINS_DOCUMENT.match(line.text))
        if line is not None and is_comment:
            layout.comments += 1
            layout.first_comment = line.number if layout.comments == 1 else layout.first_comment
        # A blank line or a new document ends a sentence; several in a row end nothing more.
        if (line is None or begins) and current:
            yield _checked(text.path, SentenceLines(current, marks))
            current = []
        marks += begins
        if line is not None and not begins and not is_comment:
            current.append(line)
    if current:
        yield _checked(text.path, SentenceLines(current, marks))


def _checked(path: str, sentence: SentenceLines) -> SentenceLines:
    """The sentence, whose lines must have the same columns."""
    # A sentence with a line of another width is damaged: its tags would be shifted.
    counts = sorted({len(line.fields) for line in sentence.lines})
    if len(counts) > 1:
        usual = len(sentence.lines[0].fields)
        odd = next(line for line in sentence.lines if len(line.fields) != usual)
        raise UsageError(
            f"{path}:{odd.number}: lines of {counts} columns in one sentence, "
            "expected a word and its tags on every line"
        )
    return sentence


def _has(line: Line, column: int) -> bool:
    return -len(line.fields) <= column < len(line.fields)


def _column(path: str, sentence: Sequence[Line], column: int, what: str) -> list[JsonValue]:
    for line in sentence:
        if not _has(line, column) or not line.fields[column]:
            raise UsageError(
                f"{path}:{line.number}: no {what} in column {column} of {line.text!r}; correct the "
                f'line, or name the column: columns.{what}s = "NUMBER"'
            )
    return [line.fields[column] for line in sentence]
