"""Recognise a folder of train, dev and test files as a fine-tuning task.

In:  the files at a path.
Out: `LabelledFiles`: the kind of task, its columns and its labels; None if the files are not
     labelled. The guess is written to a configuration, where users can correct it.
"""

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Literal

from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import InputFile, open_to_read
from cloze.artifacts.progress import say
from cloze.model.config import TaskKind
from cloze.model.tasks.conll import read_conll
from cloze.model.tasks.table_files import decoded, separated
from cloze.model.tasks.task_table import Wanted

DELIMITED = (".csv", ".tsv")
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
MOST_LABELS = 50
SAMPLED_BYTES = 1 << 20

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
    """Frequency of each label in the sampled rows."""
    settings: dict[str, str | list[str]] = field(default_factory=dict)
    """Further settings of the task if a text may have several labels."""

    @property
    def description(self) -> str:
        """A one-line description for people."""
        counts = ", ".join(f"{label} {count:,}" for label, count in self.labels.items())
        columns = ", ".join(f"{ours} = {theirs}" for ours, theirs in self.columns.items())
        return f"{self.kind}, {columns or 'words and tags'}, labels: {counts}"


def labelled_files(files: list[InputFile]) -> LabelledFiles | None:
    """The task in `files`, or None if they are not labelled; a single file is training data."""
    suffixes = {PurePath(file.path).suffix.lower() for file in files}
    if len(suffixes) != 1 or not suffixes <= {*DELIMITED, *CONLL}:
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
        return _sentences(text, paths)
    separator, text = separated(paths["train"], text)
    # the task's reader takes quotes in a .tsv as text
    quoting: Literal[0, 3] = csv.QUOTE_NONE if suffix == ".tsv" else csv.QUOTE_MINIMAL
    rows = csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting)
    return _table([row for row in rows if row not in ([], [""])], paths)


def _sentences(text: str, paths: dict[str, str]) -> LabelledFiles | None:
    wanted = Wanted(required=("words",), optional=("tags",), sentences=True)
    table = read_conll(paths["train"], text, wanted)
    if not table.has("tags"):
        return None
    tags = Counter(
        str(tag) for of_row in table.columns["tags"] if isinstance(of_row, list) for tag in of_row
    )
    return LabelledFiles("tagging", paths, {}, dict(tags.most_common()))


def _table(records: list[list[str]], paths: dict[str, str]) -> LabelledFiles | None:
    """The label is a column with such a name, or the one with the fewest values; text the longest.

    A text has several labels if they share a cell, or if each has a column of 0 and 1.
    """
    header, *rows = records
    header = [name.strip() for name in header]
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
    if not named and not 2 <= len(labels) <= len(rows) / 2:
        return None  # a date, a URL, a title: nothing that recurs
    numbers = all(value.strip().lstrip("-").replace(".", "", 1).isdigit() for value in labels)
    # Decimals are scores; whole numbers may stand for classes.
    regression = not separator and numbers and any("." in value for value in labels)
    if not regression and len(labels) > MOST_LABELS:
        return None
    length = {name: sum(map(len, values[name])) / len(rows) for name in header if name != label}
    texts = sorted(length, key=lambda name: -length[name])[:2]
    # A pair has two texts of similar length, and hardly any other column.
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
