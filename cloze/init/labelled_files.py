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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Literal

from pydantic import JsonValue

from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import InputFile, open_to_read
from cloze.artifacts.progress import say
from cloze.model.config import TaskKind
from cloze.model.tasks.files.conll import conll_rows
from cloze.model.tasks.files.table_files import SAMPLED_CHARACTERS, file_rows, separator_of
from cloze.model.tasks.files.task_table import Wanted, are_tags, is_missing, odd_spellings
from cloze.model.tasks.files.text_file import decoded, text_in

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

SEPARATORS = ("|", ";", ",")
"""Separators of several labels in a cell, the most likely first."""

LABEL_NAMES = (
    *("label", "labels", "class", "category", "categories", "topic", "topics"),
    *("target", "sentiment", "score", "gold"),
)
ALWAYS_LABELS = {"label", "labels", "class", "target", "sentiment"}
"""Of these names, those that mean nothing else in a table of documents."""

TEXTS = {"text", "texts", "sentence"}
"""Names of a column of texts."""

YES_OR_NO = {"0", "1", "yes", "no", "true", "false", "y", "n", "t", "f"}
"""Cells of a column that is a property of a row more often than its label."""

MOST_LABELS = 50
"""Of a column that is a label by nothing but its values."""

MOST_BLANK = 0.1
"""Share of rows without a value up to which a column may be the label, unless its name says so."""

SAMPLED_BYTES = 8 << 20
"""Beginning of a file in which labels are counted."""

SAMPLED_ROWS, FIRST_ROWS = 20_000, 64
"""The same of a file of records; and rows among which the label's name must occur."""

DECIMAL_COMMA = re.compile(r"-?\d+,\d+")

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
    settings: dict[str, str | bool | int | list[str]] = field(default_factory=dict)
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
    suffixes = {PurePath(file.path).suffix.lower() for file in files}
    if len(suffixes) != 1 or not suffixes <= {*DELIMITED, *CONLL, *RECORDS}:
        return None
    (suffix,) = suffixes
    paths: dict[str, str] = {}
    for file in files:
        last = PurePath(file.path).stem.replace("-", ".").replace("_", ".").rsplit(".", 1)[-1]
        split = SPLITS.get(last.lower(), "train" if len(files) == 1 else "")
        if split:
            paths.setdefault(split, file.path)
    if "train" not in paths:
        return None
    if suffix in RECORDS:
        return _records(paths, trains=trains)
    with open_to_read(paths["train"]) as opened:
        content = opened.read(SAMPLED_BYTES)
    is_whole = len(content) < SAMPLED_BYTES
    text, remarks = decoded(paths["train"], content, is_whole=is_whole)
    if not text.strip():
        raise UsageError(f"{paths['train']}: empty file, expected a header line and rows")
    for remark in remarks:
        say(f"init: {remark}")
    if not is_whole:
        # The last line may be cut.
        text = text[: text.rfind("\n") + 1] or text
    if suffix in CONLL or (suffix == ".tsv" and SENTENCE_END.search(text.strip())):
        return _sentences(text, paths, is_whole=is_whole)
    separator, begins = separator_of(
        paths["train"], text[:SAMPLED_CHARACTERS], is_whole=len(text) <= SAMPLED_CHARACTERS
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
        _check_quoting(text, separator, paths["train"])
    count = len(records) - 1
    return found and replace(
        found,
        first_rows=0 if is_whole else count,
        rows=count - found.unlabelled if is_whole else None,
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
    count = len(read)
    return replace(
        found,
        first_rows=0 if is_whole else count,
        rows=count - found.unlabelled if is_whole else None,
    )


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
    first_rows = 0 if is_whole else len(lists)
    return LabelledFiles("tagging", paths, {}, dict(tags.most_common()), first_rows=first_rows)


def _table(
    records: list[list[str]], paths: dict[str, str], *, trains: bool
) -> LabelledFiles | None:
    """The label is a column with such a name, or the one with the fewest values; text the longest.

    A text has several labels if they share a cell, or if each has a column of 0 and 1.
    """
    header, *rows = records
    header = [name.strip() for name in header]
    ragged = sum(len(row) != len(header) for row in rows)
    rows = [row for row in rows if len(row) == len(header)]
    if len(header) < 2 or not rows:
        return None
    twice = [name for name, times in Counter(header).items() if times > 1]
    # Training refuses a name that two columns have, so none of them is proposed.
    values = {
        name: [row[place] for row in rows] for place, name in enumerate(header) if name not in twice
    }
    notes = tuple(
        f"columns {f'that share the name {name!r}' if name else 'without a name'} are left out"
        for name in twice
    )
    if trains and (again := [name for name in twice if name.lower() in (*ALWAYS_LABELS, *TEXTS)]):
        raise UsageError(
            f"{paths['train']}: {header.count(again[0])} columns are named {again[0]!r}, expected "
            "one; rename the others"
        )
    named = [name for name in values if name.lower() in LABEL_NAMES]
    marked = {name: column.count("1") for name, column in values.items() if {*column} == {"0", "1"}}
    if len(marked) > 1 and not named:
        columns = {"text_a": max(values, key=lambda name: sum(map(len, values[name])))}
        own: dict[str, str | bool | int | list[str]] = {"labels": [*marked]}
        return LabelledFiles("multi_label_classification", paths, columns, marked, own, notes)
    unusable = {name: why for name in named if (why := _why_no_label(values[name]))}
    for name, why in unusable.items():
        if trains and name.lower() in ALWAYS_LABELS and len(_filled(values[name])) < 2:
            raise UsageError(
                f"{paths['train']}: {name} {why}, expected two labels or more; fill them in, or "
                "rename the column to train on the texts alone"
            )
    notes += tuple(f"{name} {why}" for name, why in unusable.items())
    label, *others = _label_columns(values) or [""]
    if not label or len(values) < 2:  # dates, URLs, titles: nothing that recurs
        for reason in notes:
            say(f"init: {paths['train']}: not taken for a task's rows: {reason}")
        return None
    separator, labels = _separated(Counter(filter(_is_filled, values[label])))
    # Decimals are scores; whole numbers may stand for classes, also as pandas writes them: 1.0.
    regression = not separator and _are_numbers(labels) and any(float(one) % 1 for one in labels)
    columns, pair = _text_columns(values, label)
    _refuse_tags(values, label, paths["train"])
    kind: TaskKind = "pair_classification" if pair else "classification"
    if regression:
        kind = "regression"
    if separator:
        kind = "multi_label_classification"
    counts = {} if regression else dict(_as_trained(labels).most_common())
    settings: dict[str, str | bool | int | list[str]] = {}
    if separator:
        settings["label_separator"] = separator
    # One blank cell in a labelled table is a mistake; many are rows that nobody has labelled yet.
    blank = sum(not _is_filled(cell) for cell in values[label])
    unlabelled = blank if blank > MOST_BLANK * len(values[label]) else 0
    if unlabelled:
        settings["skip_unlabelled_rows"] = True
    if others:
        listed = ", ".join(f"{name} ({len({*values[name]})} values)" for name in others)
        notes += (f"the label is a guess; it could also be {listed}: set columns.label",)
    notes += tuple(odd_spellings(counts)) + tuple(_doubts(values[label], label, ragged))
    return LabelledFiles(kind, paths, columns, counts, settings, notes, unlabelled=unlabelled)


def _as_trained(labels: Counter[str]) -> Counter[str]:
    """The labels as training spells whole numbers: 1.0 is 1."""
    if not _are_numbers(labels):
        return labels
    found: Counter[str] = Counter()
    for label, rows in labels.items():
        found[label.strip().removesuffix(".0")] += rows
    return found


def _refuse_tags(values: dict[str, list[str]], label: str, path: str) -> None:
    """Refuse a column whose cells have a tag for each word of another one."""
    for name in values:
        for words, tags in ((name, label), (label, name)):
            if name != label and are_tags(values[words], values[tags]):
                example = next(filter(_is_filled, values[tags]))
                raise UsageError(
                    f"{path}: {tags} has a tag for each word of {words}, such as {example!r:.60}; "
                    "expected one label per row: to train tagging, write lists of words and tags "
                    "as .jsonl, or a word and its tag per line as .conll"
                )


def _why_no_label(cells: list[str]) -> str:
    """Why a column cannot be the label; empty if it can."""
    found = _filled(cells)
    if not found:
        return "is blank in every row"
    if len(found) == 1:
        return f"has one value only, {next(iter(found))!r}"
    if len(found) > _most_labels(len(cells)) and not _are_numbers(found):
        return f"has {len(found):,} values in {len(cells):,} rows, too many for labels"
    return ""


def _most_labels(rows: int) -> int:
    """Values that a column may have whose name says that it is the label."""
    # Dozens of intents are few beside hundreds of rows; what hardly recurs is no label.
    return max(MOST_LABELS, rows // 2)


def _doubts(cells: list[str], label: str, ragged: int) -> Iterator[str]:
    """What training refuses, or takes in another way than was meant; `cells`: of the label."""
    if ragged:
        yield f"rows with more or fewer cells than the header, not counted here: {ragged:,}"
    if blank := sum(not _is_filled(cell) for cell in cells):
        many = blank > MOST_BLANK * len(cells)
        happens = "are left out" if many else "training refuses"
        yield f"rows without a label, which {happens}: {blank:,}"
    labels = _filled(cells)
    if any(cell != cell.strip() for cell in cells if _is_filled(cell)) and not labels & {*cells}:
        yield "spaces around the labels stay part of them"
    if labels and all(map(DECIMAL_COMMA.fullmatch, labels)):
        yield "labels with a decimal comma are classes; for regression write 0.5 rather than 0,5"
    if label in cells:
        yield f"the first line is taken for the columns' names, but {label!r} is also a label"


def _label_columns(values: dict[str, list[str]]) -> list[str]:
    """The columns that could be the label, the likeliest first; a label has two values or more.

    Names decide, also those that end in such a word (`airline_sentiment`). Without them it is the
    column with the fewest values, and one of yes and no only if there is no other.
    """
    ranks: dict[str, tuple[int, int]] = {}
    for name, column in values.items():
        found = _filled(column)
        blank = sum(not _is_filled(value) for value in column) / len(column)
        words = re.split(r"[^a-z]+", name.lower())
        labels = len(_separated(Counter(column))[1])
        if len(found) < 2:
            continue
        most = _most_labels(len(column))
        if name.lower() in LABEL_NAMES and (labels <= most or _are_numbers(found)):
            ranks[name] = 0, len(found)
        elif labels <= min(MOST_LABELS, len(column) / 2) and blank <= MOST_BLANK:
            is_flag = {value.lower() for value in found} <= YES_OR_NO
            ranks[name] = 1 if words[-1] in LABEL_NAMES else 2 + is_flag, len(found)
    # First by what the name says, then by the number of values: the fewer, the likelier a label.
    likeliest = sorted(ranks, key=lambda name: ranks[name])
    best = ranks[likeliest[0]][0] if likeliest else 0
    # Where a name says it, there is nothing to choose from.
    return likeliest[:1] if best < 2 else likeliest


def _text_columns(values: dict[str, list[str]], label: str) -> tuple[dict[str, str], bool]:
    """The columns of the task by our names, and whether they are a pair of texts."""
    rows = len(values[label])
    length = {name: sum(map(len, values[name])) / rows for name in values if name != label}
    texts = sorted(length, key=lambda name: -length[name])[:2]
    # A pair has two texts of similar length, and hardly any other column.
    pair = len(texts) == 2 and length[texts[1]] > length[texts[0]] / 3 and len(values) <= 4
    texts = [name for name in values if name in texts] if pair else texts[:1]
    return dict(zip(("text_a", "text_b"), texts, strict=False)) | {"label": label}, pair


def _is_filled(cell: str) -> bool:
    return bool(cell.strip())


def _filled(cells: list[str]) -> set[str]:
    """The values of a column that are not blank."""
    return {cell.strip() for cell in cells if _is_filled(cell)}


def _are_numbers(cells: Iterable[str]) -> bool:
    return all(cell.strip().lstrip("-").replace(".", "", 1).isdigit() for cell in cells)


def _separated(cells: Counter[str]) -> tuple[str, Counter[str]]:
    """The separator of several labels in a cell ("" if there is none), and each label's frequency.

    Labels occur in different combinations, so there are fewer labels than distinct cells.
    """
    for separator in SEPARATORS:
        labels: Counter[str] = Counter()
        for cell, rows in cells.items():
            for label in cell.split(separator):
                labels[label.strip()] += rows if label.strip() else 0
        # without labels that are empty
        labels = +labels
        together = any(separator in cell for cell in cells)
        if together and 1 < len(labels) < len(cells) and len(labels) <= MOST_LABELS:
            return separator, labels
    return "", cells
