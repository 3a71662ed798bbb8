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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from pydantic import JsonValue

from cloze.artifacts.errors import UsageError
from cloze.model.tasks.task_table import Row, TaskTable, Wanted, tabulated

DOCUMENT_START = "-DOCSTART-"
BEGINS_DOCUMENT = re.compile(r"#\s*(newdoc|begin document)\b")
COMMENT = re.compile(r"#(\s|$|(begin|end) document\b)")
UNIVERSAL = ".conllu"
SPANNING = re.compile(r"\d+[-.]\d+")
"""Ids in CoNLL-U of lines that are not words: several words together, and words left out."""

FEWEST_WORDS = 50
"""With so many words, tags that hardly ever repeat are no tags."""


@dataclass(frozen=True)
class Line:
    """One line with content."""

    number: int
    text: str
    fields: list[str]


@dataclass
class Sentences:
    """The sentences of a file, as they are read."""

    lines: list[list[Line]] = field(default_factory=list)
    documents: list[int] = field(default_factory=list)
    comments: list[int] = field(default_factory=list)
    """Numbers of the lines left out."""

    marks: int = 0
    """Documents that have begun."""


def read_conll(path: str, text: str, wanted: Wanted) -> TaskTable:
    """The sentences of a file; `wanted.names` numbers the columns of words and tags."""
    word_column, tag_column = _columns(path, wanted)
    found = _sentences(path, text, tag_column)
    if not found.lines:
        raise UsageError(f"{path}: no sentences, expected a word and its tag on every line")
    # 1 if the file has words alone, without tags
    widths = {len(line.fields) for sentence in found.lines for line in sentence}
    _refuse_numbers(path, found.lines, word_column)
    rows: list[Row] = []
    for sentence, document in zip(found.lines, found.documents, strict=True):
        row: dict[str, JsonValue] = {
            wanted.in_file("words"): _column(path, sentence, word_column, "word")
        }
        if widths != {1}:
            row[wanted.in_file("tags")] = _column(path, sentence, tag_column, "tag")
        if found.marks:
            row[wanted.in_file("document")] = document
        rows.append(row)
    tags = Counter(
        line.fields[tag_column] for sentence in found.lines for line in sentence if widths != {1}
    )
    if tags.total() >= FEWEST_WORDS and len(tags) > tags.total() / 2:
        raise UsageError(
            f"{path}: {len(tags):,} different tags of {tags.total():,} words; expected CoNLL's "
            "columns, one word and its tag per line: name the tags' column, columns.tags = "
            '"NUMBER", or rename the file to what it is'
        )
    table = tabulated(path, rows, wanted, lines=tuple(lines[0].number for lines in found.lines))
    if not found.comments:
        return table
    comments = f"{path}: {len(found.comments):,} comments are left out"
    return table.remarked(f"{comments} (the first in line {found.comments[0]})")


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


def _lines(path: str, text: str) -> Iterator[Line | None]:
    """The lines with their fields; None for one without content."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    filled = [line for line in lines if line.strip()]
    # By tabs only if most lines have one: a word may then contain spaces.
    by_tab = 2 * sum("\t" in line.strip() for line in filled) > len(filled)
    is_universal = path.lower().endswith(UNIVERSAL)
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            yield None
            continue
        if by_tab and not line.startswith("#"):
            fields = [one.strip(" ") for one in line.rstrip("\t ").split("\t")]
        else:
            fields = re.split("[ \t]+", line.strip(" \t"))
        if not (is_universal and SPANNING.fullmatch(fields[0])):
            yield Line(number, line, fields)


def _sentences(path: str, text: str, tag_column: int) -> Sentences:
    """The lines of words by sentence, with their documents."""
    lines = list(_lines(path, text))
    # What lines without `#` look like decides whether a line with one is a comment or the word `#`.
    plain = [line for line in lines if line and not line.text.startswith("#")]
    widths = {len(line.fields) for line in plain}
    tags = {"O", *(line.fields[tag_column] for line in plain if _has(line, tag_column))}
    found, current = Sentences(), list[Line]()

    def end() -> None:
        if current:
            found.lines.append(current.copy())
            found.documents.append(found.marks)
            current.clear()

    for line in lines:
        if line is None:
            end()
        elif line.fields[0].startswith(DOCUMENT_START):
            end()
            found.marks += 1
        elif COMMENT.match(line.text) and not (
            len(line.fields) in widths
            and _has(line, tag_column)
            and line.fields[tag_column] in tags
        ):
            found.comments.append(line.number)
            if BEGINS_DOCUMENT.match(line.text):
                end()
                found.marks += 1
        else:
            current.append(line)
    end()
    for sentence in found.lines:
        # A sentence with a line of another width is damaged: its tags would be shifted.
        counts = sorted({len(line.fields) for line in sentence})
        if len(counts) > 1:
            usual = len(sentence[0].fields)
            odd = next(line for line in sentence if len(line.fields) != usual)
            raise UsageError(
                f"{path}:{odd.number}: lines of {counts} columns in one sentence, "
                "expected a word and its tags on every line"
            )
    return found


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


def _refuse_numbers(path: str, sentences: Sequence[Sequence[Line]], column: int) -> None:
    """Refuse a column that counts the words of each sentence (GermEval, CoNLL-X)."""
    counted = [
        [line.fields[column] for line in sentence] == [str(n + 1) for n in range(len(sentence))]
        for sentence in sentences
        if all(_has(line, column) for line in sentence)
    ]
    if counted and all(counted):
        raise UsageError(
            f"{path}:{sentences[0][0].number}: column {column} only numbers the words of each "
            'sentence; name the columns of words and tags: columns = { words = "1", tags = "2" }'
        )
