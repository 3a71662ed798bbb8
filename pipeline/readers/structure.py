"""The format of a file, recognised by its content.

In:  the beginning of a file, as bytes on disk or as text.
Out: the reader for it, or why there is none.

Names do not count: JSON lines are called `part-00000`, tables `data.txt`, crawls `segment.gz`. Only
for tables that could be prose, with commas, the suffix is a hint.
"""

import csv
import json
import re
from dataclasses import dataclass
from itertools import islice
from typing import Literal

from pydantic import JsonValue

from cloze.pipeline.config.formats import FORMATS
from cloze.pipeline.readers.compression import COMPRESSED_SUFFIXES
from cloze.pipeline.readers.documents import MAX_RECORD_BYTES

SHOWN_COLUMNS = 20

JSON_OBJECT = re.compile(r'\s*\{\s*(?:"|\}\s*$)')
JSON_DOCUMENT = re.compile(r'\s*(?:\[\s*(?:[\[{"]|$)|\{\s*\n\s*")')

JSON_LINES = (".jsonl", ".ndjson")
"""Suffixes by which broken lines of JSON are no prose."""

SEPARATORS = {".csv": ",;\t", ".tsv": "\t,;", ".tab": "\t,;"}
"""Separators to try by suffix, the likeliest first."""
COLUMN = re.compile(r"[\w][\w .:/()#-]{0,40}")
KNOWN_COLUMNS = {
    *("text", "content", "body", "title", "url", "id", "label", "article", "document", "review"),
    *("sentence", "paragraph", "abstract", "comment", "message", "summary", "description"),
    *("question", "answer", "author", "date", "lang", "language", "category"),
}
"""Names of columns by which a table is recognised without a suffix."""
FEWEST_ROWS = 3
"""Rows that a table without a suffix has at least."""
SAMPLED_ROWS = 100
MOST, HARDLY_ANY = 0.5, 0.1
"""Shares of rows that may have another number of cells: with a suffix of tables, and without."""


Quoting = Literal[0, 3]
"""csv.QUOTE_MINIMAL or csv.QUOTE_NONE."""


@dataclass(frozen=True)
class Dialect:
    """How a table is written."""

    delimiter: str
    quoting: Quoting
    """Whether quotation marks enclose cells, or are part of them."""
    columns: tuple[str, ...]


def format_of(text: str, path: str) -> str:
    """The reader for a file whose text begins with `text`; `text` for prose.

    `json` is JSON that is not one object per line, for which there is none.
    """
    text = text.removeprefix("\ufeff")
    for reader, one in FORMATS.items():
        if one.mark and one.mark.search(text):
            return reader
    if is_json_lines(text, known=_suffix(path) in JSON_LINES):
        return "jsonl"
    if JSON_DOCUMENT.match(text) and _is_json(text):
        return "json"
    return "csv" if dialect_of(text, path) else "text"


def is_json_lines(text: str, *, known: bool = False) -> bool:
    """Whether the lines are JSON objects, by the first few; the last one may be cut.

    Half of them are enough, or one where the lines are `known` to be JSON by the file's name.
    """
    lines = [line for line in islice(text.split("\n"), SAMPLED_ROWS) if line.strip()]
    if not lines or not JSON_OBJECT.match(lines[0]):
        return False
    if len(lines) == 1:
        # one whole object, or the beginning of a long one
        return _object(lines[0]) is not None or not lines[0].rstrip().endswith("}")
    # The last line may be cut; a few broken lines do not make a file another format.
    whole = [_object(line) is not None for line in lines[:-1]]
    return sum(whole) > (0 if known else len(whole) / 2)


def json_objects(text: str) -> list[dict[str, JsonValue]]:
    """The objects in complete lines."""
    found = (_object(line) for line in text.split("\n"))
    return [row for row in found if row is not None]


def _object(line: str) -> dict[str, JsonValue] | None:
    try:
        value = json.loads(line.strip().removeprefix("\ufeff"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _is_json(text: str) -> bool:
    """Whether text that begins with a bracket is JSON, as far as it goes."""
    try:
        json.loads(text)
    except RecursionError:
        return True
    except json.JSONDecodeError as error:
        return error.pos > len(text) - 100  # cut
    return True


def dialect_of(text: str, path: str) -> Dialect | None:
    """How the table that begins with `text` is written; None if it is none."""
    csv.field_size_limit(MAX_RECORD_BYTES)  # default: 131,072 characters
    suffix = _suffix(path)
    lines = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    # drop the last line, which may be cut
    if not lines.endswith("\n") and "\n" in lines:
        lines = lines[: lines.rfind("\n") + 1]
    known = suffix in SEPARATORS
    for delimiter in SEPARATORS.get(suffix, "\t,;"):
        for quoting in _quotings(lines, delimiter, known=known):
            try:
                parsed = csv.reader(lines.splitlines(True), delimiter=delimiter, quoting=quoting)
                header, *rows = (row for row in islice(parsed, SAMPLED_ROWS) if row)
            except (csv.Error, ValueError):
                continue
            if _is_table(header, rows, known=known):
                return Dialect(delimiter, quoting, tuple(header))
    name = lines.partition("\n")[0].strip()
    if known and COLUMN.fullmatch(name):  # a single column
        delimiter = SEPARATORS[suffix][0]
        return Dialect(delimiter, _quotings(lines, delimiter, known=False)[0], (name,))
    return None


def _suffix(path: str) -> str:
    """What the name ends in, before compression and numbers of parts: `.csv` of `a.csv.2.gz`."""
    name = path.rsplit("/", 1)[-1].lower()
    packed = next((end for end in COMPRESSED_SUFFIXES if name.endswith(end)), "")
    endings = [end for end in name.removesuffix(packed).split(".")[1:] if not end.isdigit()]
    return f".{endings[-1]}" if endings else ""


def _is_table(header: list[str], rows: list[list[str]], *, known: bool) -> bool:
    named = all(COLUMN.fullmatch(name) for name in header) and len({*header}) == len(header)
    odd = sum(len(row) != len(header) for row in rows[:-1])  # the last may be cut
    if len(header) < 2 or not named or odd > (MOST if known else HARDLY_ANY) * len(rows):
        return False
    return known or (
        len(rows) >= FEWEST_ROWS and not KNOWN_COLUMNS.isdisjoint(map(str.lower, header))
    )


def _quotings(lines: str, delimiter: str, *, known: bool) -> list[Quoting]:
    """What quotation marks may mean, the likelier first; `known` to be a table by its name.

    They enclose cells if nearly every one that opens a cell is closed. A last one that is not may
    open a cell of more lines than these.
    """
    mark = re.escape(delimiter)
    # Marks at the beginning of a cell, and at its end.
    opened = len(re.findall(rf'(?:^|{mark})"', lines, re.MULTILINE))
    closed = len(re.findall(rf'"(?:$|{mark})', lines, re.MULTILINE))
    if opened and 2 * min(opened, closed) >= max(opened, closed):
        return [csv.QUOTE_MINIMAL]
    if known and opened == closed + 1:
        return [csv.QUOTE_NONE, csv.QUOTE_MINIMAL]
    return [csv.QUOTE_NONE]
