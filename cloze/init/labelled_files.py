"""Recognise a folder of train, dev and test files as a fine-tuning task.

In:  the files at a path.
Out: `LabelledFiles`: the kind of task, its columns and its labels; None if the files are not
     labelled. The guess is written to a configuration, where users can correct it.
"""

import csv
import io
import itertools
import re
from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

from pydantic import JsonValue

from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import InputFile
from cloze.artifacts.progress import say
from cloze.init.label_columns import (
    MOST_BLANK,
    SEPARATORS,
    Columns,
    TableColumns,
    are_numbers,
    as_trained,
    columns_of,
    distinct,
    doubts,
    is_filled,
    label_columns,
    lone_labels,
    marked_labels,
    separated,
    text_columns,
    unusable_labels,
)
from cloze.model.config import TaskKind
from cloze.model.tasks.files.conll import conll_rows
from cloze.model.tasks.files.table_files import SAMPLED_CHARACTERS, file_rows, separator_of
from cloze.model.tasks.files.task_table import Wanted, are_tags, is_missing, odd_spellings
from cloze.model.tasks.files.text_file import decoded, suffix_of, text_in, unpacked

DELIMITED = (".csv", ".tsv")
RECORDS = (".jsonl", ".ndjson", ".json", ".parquet", ".arrow")
CONLL = (".conll", ".conllu", ".iob", ".iob2", ".bio")
SPLITS = {
    "train": "train",
    "training": "train",
    "dev": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
}
"""Splits by a file's name or its last part after `-`, `_` or `.`."""

ALWAYS_LABELS = {"label", "labels", "class", "target", "sentiment"}
"""Of these names, those that mean nothing else in a table of documents."""

TEXTS = {"text", "texts", "sentence"}
"""Names of a column of texts."""

SAMPLED_BYTES = 8 << 20
"""Beginning of a file in which labels are counted."""

SAMPLED_ROWS, FIRST_ROWS = 20_000, 64
"""The same of a file of records; and rows among which the label's name must occur."""

Settings = dict[str, str | bool | int | list[str]]

SENTENCE_END = re.compile(r"\n\s*\n")
"""Tables have no blank lines."""


@dataclass(frozen=True)
class LabelledFiles:
    """A guess at the files' task."""

    kind: TaskKind
    paths: dict[str, str]
    """Files by split; `train` always exists."""
    columns: dict[str, str]
    """The file's column names by ours."""
    labels: dict[str, int]
    """Frequency of each label in the rows read."""
    settings: Settings = field(default_factory=dict)
    """Further settings of the task: of several labels a text, of rows without one."""
    notes: tuple[str, ...] = ()
    """What to check, one line each: other columns that could be the label, odd labels."""
    first_rows: int = 0
    """The labels are those of so many rows at the beginning; 0: of the whole file."""

    rows: int | None = None
    """Training rows; None if there are more than were read."""

    unlabelled: int = 0
    """Rows that are left out, as they have no label, of those read."""

    @property
    def description(self) -> str:
        """A one-line description for people."""
        counts = ", ".join(f"{label} {count:,}" for label, count in self.labels.items())
        columns = ", ".join(f"{ours} = {theirs}" for ours, theirs in self.columns.items())
        of = f" of the first {self.first_rows:,} rows" if self.first_rows else ""
        labels = f", labels{of}: {counts}" if counts else ""  # none of a regression
        return f"{self.kind}, {columns or 'words and tags'}{labels}"


def labelled_files(files: list[InputFile], *, trains: bool = False) -> LabelledFiles | None:
    """The task in `files`, or None if they are not labelled; a single file is training data.

    trains: whether an encoder is to be trained on them. A column named `label` without two labels
    is then an error: as documents, the rows would train something else than was asked for.
    """
    suffixes = {suffix_of(file.path) for file in files}
    if len(suffixes) != 1 or not suffixes <= {*DELIMITED, *CONLL, *RECORDS}:
        return None
    (suffix,) = suffixes
    paths: dict[str, str] = {}
    for file in files:
        name = file.path.rsplit("/", 1)[-1].lower()
        # without `.csv`, and without `.gz` behind it
        stem = name[: name.rindex(suffix)].replace("-", ".").replace("_", ".")
        last = stem.rsplit(".", 1)[-1]
        split = SPLITS.get(last, "train" if len(files) == 1 else "")
        if split:
            paths.setdefault(split, file.path)
    if "train" not in paths:
        return None
    if suffix in RECORDS:
        return _records(paths, trains=trains)
    return _delimited(paths, suffix, trains=trains)


def _delimited(paths: dict[str, str], suffix: str, *, trains: bool) -> LabelledFiles | None:
    """A table with a header, or CoNLL's columns."""
    path = paths["train"]
    text, is_whole = _beginning(path)
    if suffix in CONLL or (suffix == ".tsv" and SENTENCE_END.search(text.strip())):
        return _sentences(text, paths, is_whole=is_whole)
    separator, begins = separator_of(
        path, text[:SAMPLED_CHARACTERS], is_whole=len(text) <= SAMPLED_CHARACTERS
    )
    text = text.partition("\n")[2] if begins else text
    # the task's reader takes quotes in a .tsv as text
    quoting: Literal[0, 3] = csv.QUOTE_NONE if suffix == ".tsv" else csv.QUOTE_MINIMAL
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting)
    records = [row for row in rows if row]
    if not is_whole:
        del records[-1:]  # cut off within a cell of several lines
    found = _table(records, paths, trains=trains)
    if found and is_whole and suffix == ".csv":
        _check_quoting(text, separator, path)
    return found and _counted(found, len(records) - 1, is_whole=is_whole)


def _beginning(path: str) -> tuple[str, bool]:
    """The text of a file up to a line's end, and whether it is all of it."""
    with unpacked(path) as opened:
        content = opened.read(SAMPLED_BYTES)
    is_whole = len(content) < SAMPLED_BYTES
    text, remarks = decoded(path, content, is_whole=is_whole)
    if not text.strip():
        raise UsageError(f"{path}: empty file, expected a header line and rows")
    for remark in remarks:
        say(f"init: {remark}")
    # The last line may be cut.
    return text if is_whole else text[: text.rfind("\n") + 1] or text, is_whole


def _counted(found: LabelledFiles, rows: int, *, is_whole: bool) -> LabelledFiles:
    """With the number of training rows if the `rows` that were read are all."""
    return replace(
        found,
        first_rows=0 if is_whole else rows,
        rows=rows - found.unlabelled if is_whole else None,
    )


def _records(paths: dict[str, str], *, trains: bool) -> LabelledFiles | None:
    """Objects with a key that means nothing but a label; what else recurs describes documents."""
    try:
        rows = (row for _, row in file_rows(paths["train"], Wanted(required=())))
        read = [*itertools.islice(rows, FIRST_ROWS)]
        if not any(name.lower() in ALWAYS_LABELS for row in read for name in row):
            return None
        read += itertools.islice(rows, SAMPLED_ROWS - FIRST_ROWS)
        is_whole = next(rows, None) is None
    except UsageError:  # whoever reads the file as a corpus says what is wrong with it
        return None
    names = [*dict.fromkeys(name for row in read for name in row)]
    columns = {name: [_as_cell(row.get(name)) for row in read] for name in names}
    # without objects, and lists of them
    flat = {name: [*map(str, cells)] for name, cells in columns.items() if None not in cells}
    for name in names:
        if name.lower() in ALWAYS_LABELS and name not in flat:
            say(f"init: {paths['train']}: not taken for a task's rows: {name} holds objects")
    found = _table([[*flat], *map(list, zip(*flat.values(), strict=True))], paths, trains=trains)
    label = found.columns.get("label", "") if found else ""
    if found is None or label.lower() not in ALWAYS_LABELS:
        return None
    if any(isinstance(row.get(label), list) for row in read):
        # a list needs no separator, and may be empty: a text without a label
        each = Counter(one for cell in flat[label] for one in cell.split(SEPARATORS[0]) if one)
        labels = dict(each.most_common())
        kind: TaskKind = "multi_label_classification"
        found = replace(found, kind=kind, labels=labels, settings={}, unlabelled=0)
    return _counted(found, len(read), is_whole=is_whole)


def _as_cell(value: JsonValue) -> str | None:
    """A value as a table has it, a list of labels with a separator; None for what no cell holds."""
    if is_missing(value):
        return ""
    if isinstance(value, list) and all(isinstance(one, str | int | float) for one in value):
        return SEPARATORS[0].join(map(str, value))
    return None if isinstance(value, list | dict) else str(value)


def _check_quoting(text: str, separator: str, path: str) -> None:
    """Refuse what training would refuse."""
    try:
        for _ in csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True):
            pass
    except csv.Error as error:
        raise UsageError(
            f"{path}: {error}; a .csv is quoted as in RFC 4180, name the file .tsv if its "
            "quotation marks are text"
        ) from None


def _sentences(text: str, paths: dict[str, str], *, is_whole: bool) -> LabelledFiles | None:
    wanted = Wanted(required=("words",), optional=("tags",), sentences=True)
    read, _ = conll_rows(text_in(paths["train"], text), wanted)
    lists = [row.get("tags") for _, row in read()]
    tags = Counter(str(tag) for of_row in lists if isinstance(of_row, list) for tag in of_row)
    if not tags:
        return None
    counts = dict(tags.most_common())
    if not is_whole:
        return LabelledFiles("tagging", paths, {}, counts, first_rows=len(lists))
    return LabelledFiles("tagging", paths, {}, counts, rows=len(lists))


def _table(
    records: list[list[str]], paths: dict[str, str], *, trains: bool
) -> LabelledFiles | None:
    """The label is a column with such a name, or the one with the fewest values; text the longest.

    A text has several labels if they share a cell, or if each has a column of 0 and 1.
    """
    path = paths["train"]
    columns = columns_of(records)
    if columns is None:
        return None
    if trains:
        _refuse_twins(columns, path)
        _refuse_label_without_two(columns, path)
    values, notes = columns.values, columns.notes
    if marked := marked_labels(values):
        text = {"text_a": max(values, key=lambda name: sum(map(len, values[name])))}
        own: Settings = {"labels": [*marked]}
        return LabelledFiles("multi_label_classification", paths, text, marked, own, notes)
    notes += tuple(f"{name} {why}" for name, why in unusable_labels(values).items())
    label, *others = label_columns(values) or [""]
    if not label or len(values) < 2:  # dates, URLs, titles: nothing that recurs
        for reason in notes:
            say(f"init: {path}: not taken for a task's rows: {reason}")
        return None
    _refuse_tags(values, label, path)
    if others:
        listed = ", ".join(f"{name} ({len({*values[name]})} values)" for name in others)
        notes += (f"the label is a guess; it could also be {listed}: set columns.label",)
    found = _labelled(values, label, paths)
    odd = (*odd_spellings(found.labels), *doubts(values[label], label, columns.ragged))
    if "label_separator" not in found.settings:
        odd += tuple(lone_labels(found.labels))
    return replace(found, notes=(*notes, *odd))


def _labelled(values: Columns, label: str, paths: dict[str, str]) -> LabelledFiles:
    """The task of a table whose label is this column, without notes."""
    cells = values[label]
    separator, labels = separated(Counter(filter(is_filled, cells)))
    # Decimals are scores; whole numbers may stand for classes, also as pandas writes them: 1.0.
    regression = not separator and are_numbers(labels) and any(float(one) % 1 for one in labels)
    columns, pair = text_columns(values, label)
    kind: TaskKind = "pair_classification" if pair else "classification"
    if regression:
        kind = "regression"
    if separator:
        kind = "multi_label_classification"
    counts = {} if regression else dict(as_trained(labels).most_common())
    settings: Settings = {"label_separator": separator} if separator else {}
    # One blank cell in a labelled table is a mistake; many are rows that nobody has labelled yet.
    blank = sum(not is_filled(cell) for cell in cells)
    unlabelled = blank if blank > MOST_BLANK * len(cells) else 0
    if unlabelled:
        settings["skip_unlabelled_rows"] = True
    return LabelledFiles(kind, paths, columns, counts, settings, unlabelled=unlabelled)


def _refuse_twins(columns: TableColumns, path: str) -> None:
    """Refuse two columns of texts or labels with one name."""
    again = [name for name in columns.twice if name.lower() in (*ALWAYS_LABELS, *TEXTS)]
    if again:
        raise UsageError(
            f"{path}: {columns.twice[again[0]]} columns are named {again[0]!r}, expected one; "
            "rename the others"
        )


def _refuse_label_without_two(columns: TableColumns, path: str) -> None:
    """Refuse a column that is the label by its name, and has less than two."""
    for name, why in unusable_labels(columns.values).items():
        if name.lower() in ALWAYS_LABELS and len(distinct(columns.values[name])) < 2:
            raise UsageError(
                f"{path}: {name} {why}, expected two labels or more; fill them in, or rename the "
                "column to train on the texts alone"
            )


def _refuse_tags(values: dict[str, list[str]], label: str, path: str) -> None:
    """Refuse a column whose cells have a tag for each word of another one."""
    for name in values:
        for words, tags in ((name, label), (label, name)):
            if name != label and are_tags(values[words], values[tags]):
                example = next(filter(is_filled, values[tags]))
                raise UsageError(
                    f"{path}: {tags} has a tag for each word of {words}, such as {example!r:.60}; "
                    "expected one label per row: to train tagging, write lists of words and tags "
                    "as .jsonl, or a word and its tag per line as .conll"
                )
