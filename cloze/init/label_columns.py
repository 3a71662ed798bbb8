"""Which columns of a table are the texts and the label of a task.

In:  the cells of a table by column.
Out: the columns that could be the label, the likeliest first, those of the texts, and what is odd
     about them.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

SEPARATORS = ("|", ";", ",")
"""Separators of several labels in a cell, the most likely first."""

LABEL_NAMES = (
    *("label", "labels", "class", "category", "categories", "topic", "topics"),
    *("target", "sentiment", "score", "gold"),
)
YES_OR_NO = {"0", "1", "yes", "no", "true", "false", "y", "n", "t", "f"}
"""Cells of a column that is a property of a row more often than its label."""

MOST_LABELS = 50
"""Of a column that is a label by nothing but its values."""

MOST_BLANK = 0.1
"""Share of rows without a value up to which a column may be the label, unless its name says so."""

DECIMAL_COMMA = re.compile(r"-?\d+,\d+")

NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
"""pandas writes small decimals with an exponent: 1e-05."""

SHOWN_LABELS = 5

Columns = dict[str, list[str]]
"""The cells of each column, by its name."""


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table that have a name of their own."""

    values: Columns
    twice: Mapping[str, int]
    """How many columns have a name that several have; training refuses them, so none is
    proposed."""
    ragged: int
    """Rows with more or fewer cells than the header, which are not in `values`."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Which columns are left out."""
        return tuple(
            f"columns {f'that share the name {name!r}' if name else 'without a name'} are left out"
            for name in self.twice
        )


def columns_of(records: Sequence[list[str]]) -> TableColumns | None:
    """The columns of a header and rows; None if there are not two of them, or no rows."""
    header, *rows = records
    header = [name.strip() for name in header]
    whole = [row for row in rows if len(row) == len(header)]
    if len(header) < 2 or not whole:
        return None
    twice = {name: times for name, times in Counter(header).items() if times > 1}
    values = {
        name: [row[place] for row in whole]
        for place, name in enumerate(header)
        if name not in twice
    }
    return TableColumns(values, twice, len(rows) - len(whole))


def marked_labels(values: Columns) -> dict[str, int]:
    """Columns of 0 and 1, several and nothing else that is the label: the rows with 1."""
    marked = {name: column.count("1") for name, column in values.items() if {*column} == {"0", "1"}}
    named = any(name.lower() in LABEL_NAMES for name in values)
    return marked if len(marked) > 1 and not named else {}


def unusable_labels(values: Columns) -> dict[str, str]:
    """Columns that are the label by their name and cannot be, each with the reason."""
    named = (name for name in values if name.lower() in LABEL_NAMES)
    return {name: why for name in named if (why := _why_no_label(values[name]))}


def lone_labels(labels: Mapping[str, int]) -> Iterator[str]:
    """A warning of labels with one row, which cannot be learnt as well as judged."""
    alone = [label for label, rows in labels.items() if rows == 1]
    if alone:
        more = f" and {len(alone) - SHOWN_LABELS:,} more" if len(alone) > SHOWN_LABELS else ""
        yield (
            "labels with one row, which cross-validation refuses: "
            f"{', '.join(alone[:SHOWN_LABELS])}{more}; label two or more of each, or remove them"
        )


def as_trained(labels: Counter[str]) -> Counter[str]:
    """The labels as training spells whole numbers: 1.0 is 1."""
    if not are_numbers(labels):
        return labels
    found: Counter[str] = Counter()
    for label, rows in labels.items():
        found[label.strip().removesuffix(".0")] += rows
    return found


def _why_no_label(cells: list[str]) -> str:
    """Why a column cannot be the label; empty if it can."""
    found = distinct(cells)
    if not found:
        return "is blank in every row"
    if len(found) == 1:
        return f"has one value only, {next(iter(found))!r}"
    if len(found) > _most_labels(len(cells)) and not are_numbers(found):
        return f"has {len(found):,} values in {len(cells):,} rows, too many for labels"
    return ""


def _most_labels(rows: int) -> int:
    """Values that a column may have whose name says that it is the label."""
    # Dozens of intents are few beside hundreds of rows; what hardly recurs is no label.
    return max(MOST_LABELS, rows // 2)


def doubts(cells: list[str], label: str, ragged: int) -> Iterator[str]:
    """What training refuses, or takes in another way than was meant; `cells`: of the label."""
    if ragged:
        yield f"rows with more or fewer cells than the header, not counted here: {ragged:,}"
    if blank := sum(not is_filled(cell) for cell in cells):
        many = blank > MOST_BLANK * len(cells)
        happens = "are left out" if many else "training refuses"
        yield f"rows without a label, which {happens}: {blank:,}"
    labels = filled(cells)
    if any(cell != cell.strip() for cell in cells if is_filled(cell)) and not labels & {*cells}:
        yield "spaces around the labels stay part of them"
    if labels and all(map(DECIMAL_COMMA.fullmatch, labels)):
        yield "labels with a decimal comma are classes; for regression write 0.5 rather than 0,5"
    words = sorted(one for one in labels if not NUMBER.fullmatch(one))
    if words and len(words) < len(labels) - len(words):
        shown = ", ".join(words[:SHOWN_LABELS])
        yield f"labels are numbers but for {shown}: classes; for regression correct these rows"
    if "nan" in map(str.lower, words):
        yield "a label is spelt nan, which training refuses unless labels = [...] names it"
    if label in cells:
        yield f"the first line is taken for the columns' names, but {label!r} is also a label"


def label_columns(values: dict[str, list[str]]) -> list[str]:
    """The columns that could be the label, the likeliest first; a label has two values or more.

    Names decide, also those that end in such a word (`airline_sentiment`). Without them it is the
    column with the fewest values, and one of yes and no only if there is no other.
    """
    ranks: dict[str, tuple[int, int]] = {}
    for name, column in values.items():
        found = filled(column)
        blank = sum(not is_filled(value) for value in column) / len(column)
        words = re.split(r"[^a-z]+", name.lower())
        labels = len(separated(Counter(column))[1])
        if len(distinct(column)) < 2:
            continue
        most = _most_labels(len(column))
        if name.lower() in LABEL_NAMES and (labels <= most or are_numbers(found)):
            ranks[name] = 0, len(found)
        elif labels <= min(MOST_LABELS, len(column) / 2) and blank <= MOST_BLANK:
            is_flag = {value.lower() for value in found} <= YES_OR_NO
            ranks[name] = 1 if words[-1] in LABEL_NAMES else 2 + is_flag, len(found)
    # First by what the name says, then by the number of values: the fewer, the likelier a label.
    likeliest = sorted(ranks, key=lambda name: ranks[name])
    best = ranks[likeliest[0]][0] if likeliest else 0
    # Where a name says it, there is nothing to choose from.
    return likeliest[:1] if best < 2 else likeliest


def text_columns(values: dict[str, list[str]], label: str) -> tuple[dict[str, str], bool]:
    """The columns of the task by our names, and whether they are a pair of texts."""
    rows = len(values[label])
    length = {name: sum(map(len, values[name])) / rows for name in values if name != label}
    texts = sorted(length, key=lambda name: -length[name])[:2]
    # A pair has two texts of similar length, and hardly any other column.
    pair = len(texts) == 2 and length[texts[1]] > length[texts[0]] / 3 and len(values) <= 4
    texts = [name for name in values if name in texts] if pair else texts[:1]
    return dict(zip(("text_a", "text_b"), texts, strict=False)) | {"label": label}, pair


def is_filled(cell: str) -> bool:
    """Whether a cell is not blank."""
    return bool(cell.strip())


def filled(cells: list[str]) -> set[str]:
    """The values of a column that are not blank."""
    return {cell.strip() for cell in cells if is_filled(cell)}


def distinct(cells: list[str]) -> set[str]:
    """The labels of a column as training tells them apart: 1 and 1.0 are one."""
    return {*as_trained(Counter(filled(cells)))}


def are_numbers(cells: Iterable[str]) -> bool:
    """Whether all cells are numbers."""
    return all(NUMBER.fullmatch(cell.strip()) for cell in cells)


def separated(cells: Counter[str]) -> tuple[str, Counter[str]]:
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
