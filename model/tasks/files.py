"""Task files of every kind as one simple table.

In:  a CSV, TSV, JSON lines, Parquet, SQuAD JSON or CoNLL file, or a Hugging Face data set.
Out: `TaskTable`: columns under our names, and where each row stood, for messages.

`.csv` is quoted as RFC 4180 says; `.tsv` is not quoted at all, as GLUE wants it: there a quote
character is text. A byte order mark is dropped. Nothing is skipped without being counted.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from artifacts.errors import UsageError
from artifacts.tokenizer import well_formed
from model.config import DATASETS_PREFIX
from model.tasks.conll import conll_rows
from model.tasks.squad import squad_rows

Row = dict[str, Any]


@dataclass(frozen=True)
class TaskTable:
    """Rows of one file, by column."""

    path: str
    columns: dict[str, list[Any]]
    lines: tuple[int, ...] = ()
    skipped: int = 0

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int) -> str:
        """Where `row` stands, for a message: path and line, or path and row."""
        line = self.lines[row] if self.lines else row + 1
        return f"{self.path}:{line}"

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self.columns

    def texts(self, name: str) -> list[str]:
        """The column `name`, every value a string."""
        for row, value in enumerate(self.columns[name]):
            if not isinstance(value, str):
                raise UsageError(
                    f"{self.place(row)}: {name} is {value!r}, expected text; correct the row"
                )
        return [well_formed(value) for value in self.columns[name]]

    def notes(self) -> list[str]:
        """What a person must know of how it was read."""
        if not self.skipped:
            return []
        return [f"{self.path}: {self.skipped} rows with too few columns are left out"]

    def take(self, rows: list[int]) -> "TaskTable":
        """A table of these rows."""
        return TaskTable(
            self.path,
            {name: [values[row] for row in rows] for name, values in self.columns.items()},
            tuple(self.lines[row] for row in rows) if self.lines else (),
        )


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What a task wants from a file."""

    required: tuple[str, ...]
    """Our names of columns that must be there."""

    optional: tuple[str, ...] = ()
    """Our names of columns that may be there (labels, in a test file)."""

    names: Mapping[str, str] | None = None
    """Our name to the file's, where they differ; a number where the file has no header."""

    skip_short_rows: bool = False
    """Count and drop rows with too few columns instead of refusing the file (QQP has some)."""

    def in_file(self, name: str) -> str:
        """The file's name of our column `name`."""
        return (self.names or {}).get(name, name)

    @property
    def headless(self) -> bool:
        """Whether the file's columns are named by number."""
        named = [name for name in (self.names or {}).values() if name]
        return bool(named) and all(name.isdigit() for name in named)


def read_table(path: str, wanted: Wanted) -> TaskTable:
    """The columns of `path` that are wanted; a missing one is named with what there is."""
    if path.startswith(DATASETS_PREFIX):
        return select(path, _from_datasets(path), wanted)
    suffix = Path(path).suffix.lower()
    if suffix not in _READERS:
        raise UsageError(
            f"{path}: unknown kind of task file {suffix!r}, expected one of {' '.join(_READERS)}"
        )
    return _READERS[suffix](path, wanted)


def _read_csv(path: str, wanted: Wanted) -> TaskTable:
    return _delimited(path, wanted, csv.reader(io.StringIO(_text(path), newline=""), strict=True))


def _read_tsv(path: str, wanted: Wanted) -> TaskTable:
    lines = io.StringIO(_text(path), newline="\n")
    return _delimited(path, wanted, (line.rstrip("\r\n").split("\t") for line in lines))


def _delimited(path: str, wanted: Wanted, records: Iterator[list[str]]) -> TaskTable:
    numbered = enumerate(_checked(path, records), start=1)
    try:
        header = [] if wanted.headless else next(numbered)[1]
    except StopIteration:
        raise UsageError(f"{path}: empty file, expected a header line and rows") from None
    places = _places(path, wanted, header)
    width = max(places.values()) + 1
    columns: dict[str, list[Any]] = {name: [] for name in places}
    lines, skipped = [], 0
    for line, record in numbered:
        if record in ([], [""]):
            continue
        if len(record) < width:
            if not wanted.skip_short_rows:
                raise UsageError(
                    f"{path}:{line}: {len(record)} columns, expected at least {width}; "
                    "a .tsv is read without quoting, a .csv with it: rename the file if need be"
                )
            skipped += 1
            continue
        lines.append(line)
        for name, place in places.items():
            columns[name].append(record[place])
    return _filled(TaskTable(path, columns, tuple(lines), skipped))


def _checked(path: str, records: Iterator[list[str]]) -> Iterator[list[str]]:
    count = 0
    try:
        for record in records:
            count += 1
            yield record
    except csv.Error as error:
        raise UsageError(
            f"{path}: record {count + 1}: {error}; a .csv is quoted as RFC 4180 says, "
            "name the file .tsv if its quotes are text"
        ) from None


def _places(path: str, wanted: Wanted, header: list[str]) -> dict[str, int]:
    if wanted.headless:
        names = wanted.names or {}
        missing = [name for name in wanted.required if name not in names]
        if missing:
            raise UsageError(
                f"{path}: columns are numbered, but none is given for {', '.join(missing)}"
            )
        return {name: int(number) for name, number in names.items() if number}
    places = {}
    for name in (*wanted.required, *wanted.optional):
        if wanted.in_file(name) in header:
            places[name] = header.index(wanted.in_file(name))
        elif name in wanted.required:
            raise _missing_column(path, wanted, name, header)
    return places


def _missing_column(path: str, wanted: Wanted, name: str, found: list[str]) -> UsageError:
    return UsageError(
        f"{path}: no column {wanted.in_file(name)!r} for {name}, "
        f"only {', '.join(found) or 'none'}; "
        f'say which one it is: columns.{name} = "..."'
    )


def _read_json_lines(path: str, wanted: Wanted) -> TaskTable:
    rows, lines = [], []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        rows.append(_json_row(line, place=f"{path}:{number}"))
        lines.append(number)
    return select(path, rows, wanted, lines=tuple(lines))


def _json_row(line: str, *, place: str) -> Row:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise UsageError(f"{place}: not JSON: {error}; expected one object a line") from None
    if not isinstance(row, dict):
        raise UsageError(f"{place}: {type(row).__name__}, expected one JSON object a line")
    return row


def _read_json(path: str, wanted: Wanted) -> TaskTable:
    return select(path, squad_rows(_text(path), path=path), wanted)


def _read_conll(path: str, wanted: Wanted) -> TaskTable:
    return select(path, conll_rows(_text(path), path=path, names=wanted.names or {}), wanted)


def _read_parquet(path: str, wanted: Wanted) -> TaskTable:
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a readable Parquet file: {error}") from None
    return select(path, rows, wanted)


def _from_datasets(path: str) -> list[Row]:
    try:
        from datasets import load_dataset
    except ImportError:
        raise UsageError(f"{path}: needs the package datasets; pip install datasets") from None
    name, config, split = [*path.removeprefix(DATASETS_PREFIX).split(":"), "", ""][:3]
    rows: list[Row] = load_dataset(name, config or None, split=split or "train").to_list()
    return rows


def select(path: str, rows: list[Row], wanted: Wanted, *, lines: tuple[int, ...] = ()) -> TaskTable:
    """The wanted columns of `rows`; `lines` are their places, for messages."""
    columns: dict[str, list[Any]] = {}
    for name in (*wanted.required, *wanted.optional):
        theirs = wanted.in_file(name)
        if rows and theirs in rows[0]:
            columns[name] = [row.get(theirs) for row in rows]
        elif name in wanted.required:
            raise _missing_column(path, wanted, name, list(rows[0]) if rows else [])
    return _filled(TaskTable(path, columns, lines))


def _filled(table: TaskTable) -> TaskTable:
    if not len(table):
        raise UsageError(f"{table.path}: no rows, expected labelled examples")
    return table


def _text(path: str) -> str:
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise UsageError(f"{path}: no such task file") from None
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: not UTF-8 at byte {error.start}; convert it, for example with iconv -t UTF-8"
        ) from None


_READERS: dict[str, Callable[[str, Wanted], TaskTable]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".parquet": _read_parquet,
    ".conll": _read_conll,
    ".txt": _read_conll,
}
