"""Labelled files: a folder of train, dev and test files as a fine-tuning task.

In:  files found at a path.
Out: `LabelledFiles`: the kind of task, its columns and its labels; None where the files are
     not labelled. Like that of a corpus, the guess is written into a configuration.
"""

import csv
import io
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePath

import fsspec

from artifacts.filesystem import InputFile
from model.config import TaskKind

DELIMITERS = {".csv": ",", ".tsv": "\t"}
CONLL = (".conll", ".iob", ".bio")
SPLITS = {
    "train": "train",
    "training": "train",
    "dev": "dev",
    "valid": "dev",
    "validation": "dev",
    "test": "test",
}
"""A file's name, or its last part after `-`, `_` or `.`, and the split that it is."""

SEPARATORS = ("|", ";", ",")
"""Of several labels in one cell, the likeliest first."""

LABEL_NAMES = (
    *("label", "labels", "class", "category", "categories", "topic", "topics"),
    *("target", "sentiment", "score", "gold"),
)
MOST_LABELS = 50
SAMPLED_CHARACTERS = 1 << 20


@dataclass(frozen=True)
class LabelledFiles:
    """A task that the files seem to be."""

    kind: TaskKind
    paths: dict[str, str]
    """Split to file; `train` is always there."""
    columns: dict[str, str]
    """Our column's name to the file's."""
    labels: dict[str, int]
    """How often each label occurs in the rows looked at."""
    settings: dict[str, str | list[str]] = field(default_factory=dict)
    """What else the task must say, where a text may have several labels."""

    @property
    def description(self) -> str:
        """One line for a person."""
        counts = ", ".join(f"{label} {count:,}" for label, count in self.labels.items())
        columns = ", ".join(f"{ours} = {theirs}" for ours, theirs in self.columns.items())
        return f"{self.kind}, {columns or 'words and tags'}, labels: {counts}"


def labelled_files(files: list[InputFile]) -> LabelledFiles | None:
    """The task in `files`, None if they are not labelled; a single file is training data."""
    suffixes = {PurePath(file.path).suffix.lower() for file in files}
    if len(suffixes) != 1 or not suffixes <= {*DELIMITERS, *CONLL}:
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
    with fsspec.open(paths["train"], "rb") as opened:
        text = opened.read(SAMPLED_CHARACTERS).decode("utf-8-sig", "replace")
    whole = text[: text.rfind("\n") + 1] or text
    if suffix in DELIMITERS:
        return _table(whole, DELIMITERS[suffix], paths)
    tags = Counter(line.split()[-1] for line in whole.splitlines() if len(line.split()) > 1)
    return LabelledFiles("tagging", paths, {}, dict(tags.most_common()))


def _table(text: str, delimiter: str, paths: dict[str, str]) -> LabelledFiles | None:
    """The label is the column of that name, or the one with fewest values; text is the longest.

    A text may have several labels where they share a cell, or have a column of 0 and 1 each.
    """
    header, *rows = csv.reader(io.StringIO(text), delimiter=delimiter)
    rows = [row for row in rows if len(row) == len(header)]
    if len(header) < 2 or not rows:
        return None
    values = {name: [row[place] for row in rows] for place, name in enumerate(header)}
    named = [name for name in header if name.lower() in LABEL_NAMES]
    marked = {name: column.count("1") for name, column in values.items() if {*column} == {"0", "1"}}
    if len(marked) > 1 and not named:
        columns = {"text_a": max(header, key=lambda name: sum(map(len, values[name])))}
        own: dict[str, str | list[str]] = {"labels": [*marked]}
        return LabelledFiles("multi_label_classification", paths, columns, marked, own)
    label = named[0] if named else min(header, key=lambda name: len(set(values[name])))
    separator, labels = _separated(Counter(values[label]))
    numbers = all(value.strip().lstrip("-").replace(".", "", 1).isdigit() for value in labels)
    regression = not separator and numbers and any("." in value for value in labels)
    if not regression and len(labels) > MOST_LABELS:
        return None
    length = {name: sum(map(len, values[name])) / len(rows) for name in header if name != label}
    texts = sorted(length, key=lambda name: -length[name])[:2]
    pair = len(texts) == 2 and length[texts[1]] > length[texts[0]] / 3 and len(header) <= 4
    texts = [name for name in header if name in texts] if pair else texts[:1]
    columns = dict(zip(("text_a", "text_b"), texts, strict=False)) | {"label": label}
    kind: TaskKind = "pair_classification" if pair else "classification"
    if regression:
        kind = "regression"
    if separator:
        kind = "multi_label_classification"
    counts = {} if regression else dict(labels.most_common())
    settings: dict[str, str | list[str]] = {"label_separator": separator} if separator else {}
    return LabelledFiles(kind, paths, columns, counts, settings)


def _separated(cells: Counter[str]) -> tuple[str, Counter[str]]:
    """What separates several labels in a cell, and how often each label occurs.

    Where nothing does it is "", and the cells are the labels. Labels come together in different
    ways, so there are fewer of them than different cells.
    """
    for separator in SEPARATORS:
        labels: Counter[str] = Counter()
        for cell, rows in cells.items():
            for label in cell.split(separator):
                labels[label.strip()] += rows if label.strip() else 0
        labels = +labels
        together = any(separator in cell for cell in cells)
        if together and 1 < len(labels) < len(cells) and len(labels) <= MOST_LABELS:
            return separator, labels
    return "", cells
