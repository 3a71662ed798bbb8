"""A task's rows as a table: columns under our names, and the line of each row.

In:  rows, as the modules of model/tasks/files read them from files, and the
     columns that the task needs from them.
Out: `TaskTable`, which knows file and line of every row for messages; and notes on anything in a
     task's tables that makes its scores less meaningful.

The columns of a table are those of all its rows together. A cell that a row lacks is None: each
family says what that means, or refuses the row with its line.
"""

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pydantic import JsonValue

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import well_formed

Row = Mapping[str, JsonValue]

Numbered = Iterator[tuple[int, Row]]
"""Rows, each with its line, or with its number from 1 if the file has no lines."""

FEW_ROWS = 10
"""Labels with fewer training rows are reported."""

SHOWN_LABELS = 5

ENTITY_TAG = re.compile(r"(?:^|\s)[BIES]-\w")
"""Where an entity begins or goes on, among the tags of a sentence."""

INPUTS = ("text_a", "text_b", "words", "context", "question", "endings")
"""Columns that a model reads; two rows that agree in all of them are the same example."""


def is_missing(cell: JsonValue) -> bool:
    """Whether a cell holds nothing: null, not a number, or blank text."""
    if isinstance(cell, float) and math.isnan(cell):
        return True
    return cell is None or (isinstance(cell, str) and not cell.strip())


@dataclass(frozen=True)
class TaskTable:
    """Rows of one file, by column."""

    path: str
    columns: dict[str, list[JsonValue]]
    lines: Sequence[int] = ()
    """Line of each row; empty if the file has no lines (Parquet), then rows are numbered."""

    numbers: Sequence[int] = ()
    """Of each row, which one of the file it is, from 0; empty if these are all of its rows."""

    whole: "TaskTable | None" = None
    """The table that this one was sampled from, for its set of labels; None: not a sample."""

    remarks: tuple[str, ...] = ()
    """Remarks for the report: rows left out, or held out; how the file was decoded."""

    separator: str = ""
    """What separates the columns in the file, if anything does."""

    class_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns whose classes the file names, in their order (`ClassLabel` of `datasets`)."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int) -> str:
        """Location of `row` for a message: path and line, or path and row."""
        line = self.lines[row] if self.lines else row + 1
        return f"{self.path}:{line}"

    def number(self, row: int) -> int:
        """Which row of the file `row` is, from 0."""
        return self.numbers[row] if self.numbers else row

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self.columns

    def texts(self, name: str) -> list[str]:
        """The column `name`, whose values must be strings."""
        texts = []
        for row, value in enumerate(self.columns[name]):
            if value is None:
                raise UsageError(
                    f"{self.place(row)}: no {name}, expected text; fill it in, or remove the row"
                )
            if not isinstance(value, str):
                raise UsageError(
                    f"{self.place(row)}: {name} is {value!r}, expected text; correct the row"
                )
            texts.append(well_formed(value))
        return texts

    def every(self, name: str) -> list[JsonValue]:
        """The column `name` of the whole table, if this one is a sample."""
        return (self.whole or self).columns[name]

    def take(self, rows: Sequence[int]) -> "TaskTable":
        """A table of these rows."""
        return TaskTable(
            self.path,
            {name: [values[row] for row in rows] for name, values in self.columns.items()},
            # rows are numbered from 1 in a file without lines
            tuple(self.lines[row] if self.lines else row + 1 for row in rows),
            tuple(self.number(row) for row in rows),
            class_names=self.class_names,
        )

    def remarked(self, *remarks: str) -> "TaskTable":
        """The table with further remarks."""
        return replace(self, remarks=(*self.remarks, *remarks)) if remarks else self

    def without(self, names: Sequence[str]) -> "TaskTable":
        """The table without these columns."""
        kept = {name: values for name, values in self.columns.items() if name not in names}
        return replace(self, columns=kept, whole=None)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The columns that a task needs from a file."""

    required: tuple[str, ...]
    """Our names of the columns that must be present."""

    optional: tuple[str, ...] = ()
    """Our names of the columns that may be present, such as labels in a test file."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Our name to the file's, where they differ; a number if the file has no header."""

    skip_short_rows: bool = False
    """Count and drop rows with too few columns instead of refusing the file (QQP has some)."""

    remedy: str = 'name the right one: columns.{name} = "..."'
    """What to do where the required column `name` is missing."""

    sentences: bool = False
    """Whether a row is a sentence, which text files hold in CoNLL's columns."""

    def in_file(self, name: str) -> str:
        """The file's name of our column `name`."""
        return self.names.get(name, name)

    @property
    def headless(self) -> bool:
        """Whether columns are given by number, because the file has no header."""
        named = [name for name in self.names.values() if name]
        return bool(named) and all(name.isdigit() for name in named)

    def present(self, path: str, found: Sequence[str]) -> dict[str, str]:
        """Our names of the wanted columns among those `found` in a file, with the file's names."""
        present = {}
        # A file without a header has only the columns that were numbered.
        numbered = [name for name in self.names if self.names[name]] if self.headless else []
        for name in dict.fromkeys((*self.required, *self.optional, *numbered)):
            if found.count(self.in_file(name)) > 1:
                raise UsageError(
                    f"{path}: {found.count(self.in_file(name))} columns named "
                    f"{self.in_file(name)!r}, expected one for {name}; rename the others"
                )
            if self.in_file(name) in found:
                present[name] = self.in_file(name)
            elif name in self.required:
                raise UsageError(
                    f"{path}: no column {self.in_file(name)!r} for {name}, "
                    f"only {', '.join(found) or 'none'}; {self.remedy.format(name=name)}"
                )
        return present


class ColumnNames:
    """The names of the columns of all rows together, and which of them hold anything."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._filled = dict.fromkeys(names, True)

    @property
    def names(self) -> tuple[str, ...]:
        """All, in the order in which they first occur."""
        return tuple(self._filled)

    def is_filled(self, name: str) -> bool:
        """Whether any row has a value there."""
        return self._filled[name]

    def add(self, row: Row) -> None:
        """Take another row into account."""
        for name, cell in row.items():
            # Once filled, a column stays filled: a later blank cell does not count against it.
            if cell is not None or name not in self._filled:
                self._filled[name] = cell is not None


def tabulated(
    path: str,
    rows: Sequence[Row],
    wanted: Wanted,
    *,
    lines: Sequence[int] = (),
    known: ColumnNames | None = None,
) -> TaskTable:
    """The wanted columns of `rows`; `lines` are their line numbers, for messages.

    The columns are those of all rows together, or of the whole file (`known`) that the rows are a
    part of. A cell that a row lacks is None, and an optional column without any value is left out.
    """
    if not rows:
        raise UsageError(f"{path}: no rows, expected labelled examples")
    found = known or ColumnNames()
    for row in () if known else rows:
        found.add(row)
    present = wanted.present(path, found.names)
    columns = {
        our: [row.get(their) for row in rows]
        for our, their in present.items()
        if our in wanted.required or found.is_filled(their)
    }
    return TaskTable(path, columns, lines)


def data_notes(tables: Mapping[str, TaskTable], *, classes: bool = True) -> Iterator[str]:
    """Warnings: other splits that overlap with train; labels that are rare, or missing from dev.

    `classes`: whether labels are classes rather than numbers.
    """
    train = tables["train"]
    known = set(_inputs(train))
    # Equal inputs, whatever the labels: a training row in dev inflates its score.
    for split, table in tables.items():
        if (
            split == "train" or table.whole is train
        ):  # training rows that a cross-validation predicts
            continue
        shared = [row for row, inputs in enumerate(_inputs(table)) if inputs in known]
        if shared:
            yield (
                f"{len(shared):,} of {len(table):,} {split} rows are training rows, too "
                f"(the first: {table.place(shared[0])}); their scores are too good"
            )
    if not classes:
        return
    counts = _labels(train)
    yield from odd_spellings(counts)
    rare = [f"{label} ({count})" for label, count in counts.items() if count < FEW_ROWS]
    if rare:
        yield f"labels with fewer than {FEW_ROWS} training rows: {_some(rare)}"
    dev = _labels(tables["dev"]) if "dev" in tables else counts
    missing = [label for label in counts if label not in dev]
    if missing and dev:
        yield f"labels without a dev row, whose scores are unknown: {_some(missing)}"


LOOKALIKES = str.maketrans(
    "авекмнорстухіјѕАВЕКМНОРСТУХІЈЅαβεζηικμνορτυχΑΒΕΖΗΙΚΜΝΟΡΤΥΧ",
    "abekmhopctyxijsABEKMHOPCTYXIJSabezhikmvoptuxABEZHIKMNOPTYX",
)
"""Cyrillic and Greek letters that look like Latin ones, as small or as capital letters."""


def odd_spellings(labels: Iterable[str]) -> Iterator[str]:
    """A warning for each group of labels that differ in case, spaces, encoding or script alone."""
    groups: dict[str, list[str]] = {}
    for label in labels:
        plain = unicodedata.normalize("NFKC", label).casefold()
        # joiners, marks of direction, soft hyphens: nobody sees them
        plain = "".join(one for one in plain if unicodedata.category(one) != "Cf")
        groups.setdefault(" ".join(plain.translate(LOOKALIKES).split()), []).append(label)
    for group in groups.values():
        if len(group) > 1:
            # Letters and their accents may be one character or two, and letters of two scripts may
            # look the same.
            shown = {unicodedata.normalize("NFC", label).translate(LOOKALIKES) for label in group}
            alike = len(shown) < len(group)
            spelt = ", ".join(map(ascii if alike else repr, group))
            yield f"{spelt} are {len(group)} labels; if they mean the same, spell them alike"


def refuse_spelt_nan(table: TaskTable, labels: Sequence[str] = ()) -> None:
    """Refuse what pandas writes for a missing label, unless it is a label by configuration."""
    for row, value in enumerate(table.columns.get("label", [])):
        if isinstance(value, str) and value.strip().lower() == "nan" and value not in labels:
            raise UsageError(
                f"{table.place(row)}: label is {value!r}, as pandas writes a missing value; fill "
                "it in, or name it in labels = [...]"
            )


def are_tags(texts: Sequence[str], cells: Sequence[str]) -> bool:
    """Whether the cells that are filled have as many words as their texts: a tag for each."""
    both = [(text, cell) for text, cell in zip(texts, cells, strict=True) if cell.strip()]
    lengths = {(len(text.split()), len(cell.split())) for text, cell in both}
    if any(words != tags for words, tags in lengths) or all(text == cell for text, cell in both):
        return False
    # Two names may have as many words by chance, in texts of three lengths hardly.
    marked = any(ENTITY_TAG.search(cell) for _, cell in both)
    return len(lengths) > (1 if marked else 2)


def _inputs(table: TaskTable) -> Iterator[str]:
    columns = [table.columns[name] for name in INPUTS if table.has(name)]
    # Cells may be lists, which cannot be elements of a set.
    return (repr(values) for values in zip(*columns, strict=True))


def _labels(table: TaskTable) -> Counter[str]:
    """Rows per label; empty if labels are the numbers of a regression."""
    labels = [
        str(one)
        for label in table.columns.get("label", [])
        for one in (label if isinstance(label, list) else [label])
    ]
    # Labels that hardly ever repeat are numbers, not classes.
    return Counter(labels) if len(set(labels)) <= max(2, len(labels) // 2) else Counter()


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_LABELS]) + (", …" if len(names) > SHOWN_LABELS else "")
