"""CSV and TSV files: each row is a document.

In:  a table with a header, its cells separated by commas, tabs or semicolons; compressed or not, in
     any encoding.
Out: the text of one column; a row with another number of cells is a broken record.

A quotation mark that is never closed would make one cell of all that follows. A record that cannot
be parsed, or whose cells do not match the header, is therefore broken at its first line, and
reading continues with its second.
"""

import codecs
import csv
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice

from cloze.artifacts.errors import UsageError
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.compression import stream
from cloze.pipeline.readers.documents import (
    MAX_RECORD_BYTES,
    BrokenRecord,
    DocumentBlock,
    Piece,
    Reader,
    pack,
)
from cloze.pipeline.readers.structure import SHOWN_COLUMNS, Dialect, dialect_of

SAMPLED_LINES = 200
"""Lines from which the separator and the use of quotation marks are guessed."""

Found = Iterator[tuple[int, bytes | BrokenRecord]]


def read_csv(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The texts of all rows; their positions are lines."""
    yield from pack(_texts(piece.path, source.text_field))


def _texts(path: str, column: str) -> Found:
    lines = text_lines(path)
    first = list(islice(lines, SAMPLED_LINES))
    dialect = dialect_of("".join(first), path)
    if dialect is None:
        raise UsageError(
            f"{path}: not a table: its first lines have no common number of cells; expected CSV "
            "or TSV with a header, or reader text"
        )
    if column not in dialect.columns:
        known = ", ".join(dialect.columns[:SHOWN_COLUMNS])
        raise UsageError(f"{path}: no column {column!r}; set text_field to one of: {known}")
    place = dialect.columns.index(column)
    for number, row in rows_below_header(chain(first, lines), dialect):
        if isinstance(row, BrokenRecord):
            yield number, row
        else:
            yield number, row[place].encode("utf-8", "surrogateescape")


def text_lines(path: str) -> Iterator[str]:
    """The lines with their ends; bytes that are not UTF-8 are kept as surrogates."""
    rest = b""
    for chunk in stream(path):
        joined = rest + chunk
        end = len(joined) - joined.endswith(b"\r")  # perhaps of a CRLF that is cut
        unix = joined[:end].replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, rest = (unix + joined[end:]).split(b"\n")
        for line in whole:
            yield _decoded(line) + "\n"
        if len(rest) > MAX_RECORD_BYTES:
            raise UsageError(
                f"{path}: a line does not end within {MAX_RECORD_BYTES:,} bytes, the limit for one "
                "record; check that it is a table"
            )
    if rest:
        yield _decoded(rest)


def _decoded(line: bytes) -> str:
    return line.removeprefix(codecs.BOM_UTF8).rstrip(b"\r").decode("utf-8", "surrogateescape")


class _Lines:
    """Lines for `csv.reader`, which can be given back."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines
        self._again: deque[str] = deque()
        self.taken: list[str] = []
        self.number = 0
        """Lines taken before the current record."""
        self._size = 0

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        line = self._again.popleft() if self._again else next(self._lines)
        self.taken.append(line)
        self._size += len(line)
        if self._size > MAX_RECORD_BYTES:
            raise csv.Error(f"a cell of more than {MAX_RECORD_BYTES:,} characters")
        return line

    def next_record(self, *, lines: int) -> None:
        """Begin a record after the first `lines` lines of the last one; the others come again."""
        # What a broken record has swallowed beyond its first line is read again.
        self._again.extendleft(reversed(self.taken[lines:]))
        self.number += lines
        self.taken, self._size = [], 0


def rows(lines: Iterator[str], dialect: Dialect) -> Iterator[tuple[int, list[str] | BrokenRecord]]:
    """Each record's first line, from 1, and its cells; blank lines are skipped."""
    csv.field_size_limit(MAX_RECORD_BYTES)
    source = _Lines(lines)
    reader = csv.reader(source, delimiter=dialect.delimiter, quoting=dialect.quoting, strict=True)
    width = len(dialect.columns)
    while True:
        found: list[str] | BrokenRecord
        try:
            found = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            found = BrokenRecord(f"not a row of the table ({error})")
        if isinstance(found, list) and found and len(found) != width:
            # Cells that the header does not explain: a lone quotation mark may have joined several
            # rows.
            found = BrokenRecord(f"{len(found)} cells, expected the header's {width}")
        if found:
            yield source.number + 1, found
        source.next_record(lines=1 if isinstance(found, BrokenRecord) else len(source.taken))


def rows_below_header(
    lines: Iterator[str], dialect: Dialect
) -> Iterator[tuple[int, list[str] | BrokenRecord]]:
    """The same of a table whose first record names its columns."""
    found = rows(lines, dialect)
    next(found, None)
    return found


CSV = Reader(read=read_csv, unit="line")
