"""A task's file as a table: columns under our names, and the line of each row.

In:  rows of a reader, and the columns that the task wants.
Out: `TaskTable`, whose `place` names file and line for every message about a row; notes on what
     makes scores on a task's tables say less than they seem to.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from artifacts.errors import UsageError
from artifacts.tokenizer import well_formed

Row = Mapping[str, JsonValue]

FEW_ROWS = 10
"""A label with fewer training rows is reported."""

SHOWN_LABELS = 5

INPUTS = ("text_a", "text_b", "words", "context", "question", "endings")
"""Columns that a model reads; two rows that agree in all of them are the same example."""


@dataclass(frozen=True)
class TaskTable:
    """Rows of one file, by column."""

    path: str
    columns: dict[str, list[JsonValue]]
    lines: tuple[int, ...] = ()
    """Of each row; empty where the file has none (Parquet), then rows are numbered."""

    skipped: int = 0
    """Rows left out for having too few columns."""

    whole: "TaskTable | None" = None
    """The table that this one is a sample of, for its set of labels; None: it is whole."""

    remarks: tuple[str, ...] = ()
    """Remarks on what was done to it after reading."""

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
        texts = []
        for row, value in enumerate(self.columns[name]):
            if not isinstance(value, str):
                raise UsageError(
                    f"{self.place(row)}: {name} is {value!r}, expected text; correct the row"
                )
            texts.append(well_formed(value))
        return texts

    def every(self, name: str) -> list[JsonValue]:
        """The column `name` of the whole table, where this one is a sample of it."""
        return (self.whole or self).columns[name]

    def notes(self) -> list[str]:
        """Remarks on how it was read, for the report."""
        left_out = f"{self.path}: {self.skipped} rows with too few columns are left out"
        return [*([left_out] if self.skipped else []), *self.remarks]

    def take(self, rows: Sequence[int]) -> "TaskTable":
        """A table of these rows."""
        return TaskTable(
            self.path,
            {name: [values[row] for row in rows] for name, values in self.columns.items()},
            tuple(self.lines[row] for row in rows) if self.lines else (),
        )

    def without(self, names: Sequence[str]) -> "TaskTable":
        """The table without these columns."""
        kept = {name: values for name, values in self.columns.items() if name not in names}
        return TaskTable(self.path, kept, self.lines, self.skipped)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The columns that a task wants from a file."""

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

    def missing(self, path: str, name: str, found: Sequence[str]) -> UsageError:
        """The error for a file that has only the columns `found`."""
        return UsageError(
            f"{path}: no column {self.in_file(name)!r} for {name}, "
            f"only {', '.join(found) or 'none'}; "
            f'say which one it is: columns.{name} = "..."'
        )


def select(
    path: str, rows: Sequence[Row], wanted: Wanted, *, lines: tuple[int, ...] = ()
) -> TaskTable:
    """The wanted columns of `rows`; `lines` are their places, for messages."""
    if not rows:
        raise UsageError(f"{path}: no rows, expected labelled examples")
    columns: dict[str, list[JsonValue]] = {}
    for name in (*wanted.required, *wanted.optional):
        theirs = wanted.in_file(name)
        if theirs in rows[0]:
            columns[name] = [row.get(theirs) for row in rows]
        elif name in wanted.required:
            raise wanted.missing(path, name, list(rows[0]))
    return TaskTable(path, columns, lines)


def data_notes(tables: Mapping[str, TaskTable]) -> Iterator[str]:
    """Warnings: overlap of other splits with train; labels that are rare, or missing in dev."""
    train = tables["train"]
    known = set(_inputs(train))
    for split, table in tables.items():
        if split == "train":
            continue
        shared = [row for row, inputs in enumerate(_inputs(table)) if inputs in known]
        if shared:
            yield (
                f"{len(shared):,} of {len(table):,} {split} rows are training rows, too "
                f"(the first: {table.place(shared[0])}); their scores are too good"
            )
    counts = _labels(train)
    rare = [f"{label} ({count})" for label, count in counts.items() if count < FEW_ROWS]
    if rare:
        yield f"labels with fewer than {FEW_ROWS} training rows: {_some(rare)}"
    dev = _labels(tables["dev"]) if "dev" in tables else counts
    missing = [label for label in counts if label not in dev]
    if missing and dev:
        yield f"labels without a dev row, whose scores are unknown: {_some(missing)}"


def _inputs(table: TaskTable) -> Iterator[str]:
    columns = [table.columns[name] for name in INPUTS if table.has(name)]
    return (repr(values) for values in zip(*columns, strict=True))


def _labels(table: TaskTable) -> Counter[str]:
    """Rows by label, where a label is a word: numbers of a regression are not counted."""
    labels = [
        str(one)
        for label in table.columns.get("label", [])
        for one in (label if isinstance(label, list) else [label])
    ]
    return Counter(labels) if len(set(labels)) <= max(2, len(labels) // 2) else Counter()


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_LABELS]) + (", …" if len(names) > SHOWN_LABELS else "")
