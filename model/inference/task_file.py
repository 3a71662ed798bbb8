"""A task's file as `cloze predict` reads it: twice, and never with all of its texts in memory.

In:  a file in the format of the task's training files; labels may be missing.
Out: its rows with all of their columns, in order; the scores of predictions, if it is labelled.

The first reading finds what only the whole file tells: its columns, whether any row is malformed,
and the labels. Labels are kept for scoring, beside the shapes of the inputs without their texts.
The second reading gives the rows.
"""

from array import array
from collections.abc import Sequence
from dataclasses import replace

from pydantic import JsonValue

from cloze.artifacts.errors import UsageError
from cloze.model.config import TaskConfig
from cloze.model.tasks.files.json_rows import as_json
from cloze.model.tasks.files.table_files import file_rows
from cloze.model.tasks.files.task_table import ColumnNames, Numbered, Row, TaskTable, is_missing
from cloze.model.tasks.problems import canonical, family_of, load_problem, wanted_columns

SPLIT = "test"
RENAME = "rename the column that holds it: a trained model knows its columns by their names"
ANSWERS = ("label", "tags", "answers", "is_impossible")
"""Columns that are ignored when predicting."""

MOST_LABELS = 1 << 22
"""Labels that are kept for scoring, counting each of a list: some hundred megabytes."""

Answered = dict[str, JsonValue]
"""A prediction for one row."""

INPUT = "x"
"""Stands for every text of an input where only its shape is kept."""


class TaskFile:
    """A file that was read once."""

    def __init__(self, path: str, task: TaskConfig) -> None:
        self.path = path
        self._task = task
        self._rows = file_rows(path, replace(wanted_columns(task, SPLIT), remedy=RENAME))
        if (twice := self._rows.repeated) is not None:
            which = f"named {twice!r}" if twice else "without a name"
            raise UsageError(
                f"{path}: several columns {which}; all columns are returned by name: rename or "
                "remove the others"
            )
        parts = task.family.parts
        self._parts = parts and self._rows.wanted.in_file(parts)
        # One pass for all: which columns the rows have together, and the labels, as long as they
        # are few.
        found = ColumnNames()
        labels: _Labels | None = _Labels(task)
        for number, row in self._rows:
            found.add(row)
            if labels and not labels.add(number, row):
                labels = None
        self.columns = self._rows.columns or found
        self._labels = labels if labels and labels.are_there() else None
        self._label = _label_in_file(task)
        self.separator = self._rows.separator
        self.marked = self._rows.marked
        self.remarks = self._rows.said()
        if self._labels and self._labels.blank:
            self.remarks += (
                f"{path}: rows without a label are not scored: {self._labels.blank:,}",
            )
        if labels is None:
            many = f"more than {MOST_LABELS:,} labels"
            self.remarks += (f"{path}: not scored, as it has {many}; score a part of it",)

    def __iter__(self) -> Numbered:
        return iter(self._rows)

    @property
    def is_scored(self) -> bool:
        """Whether there are labels, and few enough to be kept."""
        return self._labels is not None

    def window(self, rows: Sequence[tuple[int, Row]]) -> TaskTable:
        """Some of its rows."""
        numbers, columns = zip(*rows, strict=True)
        return self._rows.window(columns, numbers, self.columns)

    def shown(self, row: Row) -> dict[str, JsonValue]:
        """All columns of a row by the file's names; by ours, if it has none; fit for JSON."""
        wanted = self._rows.wanted
        if wanted.headless:
            present = wanted.present(self.path, self.columns.names)
            return {our: as_json(row.get(their)) for our, their in present.items()}
        return {name: as_json(row.get(name)) for name in self.columns.names}

    def score(self, answers: Sequence[Answered]) -> dict[str, float]:
        """The task's metrics of the answers that `has_label` of; empty if there are no labels."""
        if self._labels is None:
            return {}
        table = self._rows.named(self._labels.table(self.path))
        return scored(self._task, canonical(self._task, SPLIT, table), answers)

    def has_label(self, row: Row) -> bool:
        """Whether the row's answer is scored: not one without label, or without words to tag."""
        is_blank = bool(self._label) and is_missing(row.get(self._label))
        return not is_blank and (not self._parts or row.get(self._parts) != [])


def scored(task: TaskConfig, table: TaskTable, answers: Sequence[Answered]) -> dict[str, float]:
    """The task's metrics, as fractions, the headline first; empty if there are no labels."""
    problem = load_problem(task, None, {SPLIT: table})
    if not problem.labelled(SPLIT):
        return {}
    found = problem.score(SPLIT, [answer.get("prediction", answer) for answer in answers])
    return {problem.headline: found[problem.headline], **found}


def to_score(answer: Answered) -> Answered:
    """What scoring needs of an answer."""
    return {name: answer[name] for name in ("prediction", "text") if name in answer}


def _label_in_file(task: TaskConfig) -> str:
    """The column of a row's only label; empty if rows may have several, or none."""
    is_one = family_of(task.kind).predicts in ("label", "number")
    return wanted_columns(task, SPLIT).in_file("label") if is_one else ""


class _Labels:
    """The labels of rows, and the shapes of their inputs."""

    def __init__(self, task: TaskConfig) -> None:
        wanted = wanted_columns(task, SPLIT)
        self._names = {name: wanted.in_file(name) for name in (*wanted.required, *wanted.optional)}
        own = task.labels if family_of(task.kind).predicts == "labels" else ()
        self._answers = {*ANSWERS, *own}
        self._required = wanted.required
        self._label_column = _label_in_file(task)
        self.blank = 0
        """Rows without a label, which are not kept."""
        self._parts = task.family.parts and self._names[task.family.parts]
        self._columns: dict[str, list[JsonValue]] = {name: [] for name in self._names}
        self._filled: set[str] = set()
        self._lines = array("Q")
        self._room = MOST_LABELS
        # Labels are few and rows many: each distinct string, and each shape of an input, is kept
        # once and shared by all rows that have it.
        self._known: dict[str, str] = {}
        self._shapes: dict[int, JsonValue] = {}

    def add(self, number: int, row: Row) -> bool:
        """Keep a row; whether there was room for its labels."""
        if self._parts and row.get(self._parts) == []:
            return True
        if self._label_column and is_missing(row.get(self._label_column)):
            self.blank += 1
            return True
        self._room -= 1
        self._lines.append(number)
        for our, their in self._names.items():
            cell = row.get(their)
            if cell is not None:
                self._filled.add(our)
            keep = self._label if our in self._answers else self._shape
            self._columns[our].append(keep(cell))
        return self._room > 0

    def are_there(self) -> bool:
        """Whether any row has a label."""
        return bool(self._filled & self._answers)

    def table(self, path: str) -> TaskTable:
        """The rows without their texts."""
        kept = {
            name: cells
            for name, cells in self._columns.items()
            if name in self._filled or name in self._required
        }
        return TaskTable(path, kept, self._lines)

    def _label(self, cell: JsonValue) -> JsonValue:
        """The cell, of which every string is kept once."""
        if isinstance(cell, str):
            # Long strings count as several labels, so that the limit holds for memory and not just
            # for rows.
            self._room -= len(cell) // 64
            return self._known.setdefault(cell, cell)
        if isinstance(cell, list):
            self._room -= len(cell)
            return [self._label(one) for one in cell]
        if isinstance(cell, dict):
            self._room -= 4 + len(cell)
            return {self._known.setdefault(k, k): self._label(one) for k, one in cell.items()}
        return cell

    def _shape(self, cell: JsonValue) -> JsonValue:
        """A cell of as many texts, which are all the same."""
        if isinstance(cell, list) and all(isinstance(one, str) for one in cell):
            return self._shapes.setdefault(len(cell), [INPUT] * len(cell))
        return INPUT if isinstance(cell, str) and not is_missing(cell) else cell
