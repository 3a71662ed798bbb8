"""Multiple choice (SWAG; paper, section 4.4; not in the reference's code).

In:  columns context, label (number of the correct ending, from 0), and the endings: one column
     `endings` with lists, or `ending0`, `ending1`, …; `prefix` is prepended to every ending.
Out: a `Problem` with one sequence per choice, scored by the head; softmax over the choices.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer, well_formed
from cloze.model.data.batch import on
from cloze.model.tasks.base import Exported, Gold, GroupedProblem, Logits, Prediction
from cloze.model.tasks.classification import metric_values
from cloze.model.tasks.features import Places, by_group, encode
from cloze.model.tasks.files.task_table import TaskTable, is_missing

ENDING_COLUMNS = tuple(f"ending{number}" for number in range(10))


class MultipleChoice(GroupedProblem):
    """The ending that continues a context."""

    required: ClassVar[tuple[str, ...]] = ("context",)
    optional: ClassVar[tuple[str, ...]] = ("prefix", "endings", *ENDING_COLUMNS, "label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    predicts: ClassVar = "other"
    reads: ClassVar = "pooled"
    exported_as: ClassVar = Exported("ForMultipleChoice", "multiple-choice")
    outputs = 1

    def _read(self) -> None:
        tables = self._tables
        self.contexts = {name: table.texts("context") for name, table in tables.items()}
        self.endings = {name: endings_of(table) for name, table in tables.items()}
        self._first = {
            name: offsets_of(np.array([len(row) for row in endings]))
            for name, endings in self.endings.items()
        }
        self._correct: dict[str, Places] = {}
        for name, table in tables.items():
            if not self.labelled(name):
                continue
            sizes, labels = self._sizes(name), table.columns["label"]
            names = table.class_names.get("label", ())  # a file's names are in the order of endings
            numbers = [
                names.index(label) if label in names else number_in(label) for label in labels
            ]
            for row, (number, size) in enumerate(zip(numbers, sizes, strict=True)):
                if not 0 <= number < size:
                    raise UsageError(
                        f"{table.place(row)}: label {labels[row]!r}, expected the number of an "
                        f"ending, 0 to {size - 1}"
                    )
            self._correct[name] = np.array(numbers, np.int64)

    def _encode(self, tokenizer: SubwordTokenizer) -> None:
        self.sequences = {
            name: encode(
                tokenizer,
                np.repeat(np.array(contexts, object), self._sizes(name)).tolist(),
                [ending for row in self.endings[name] for ending in row],
                max_seq_length=self.config.max_seq_length,
            )
            for name, contexts in self.contexts.items()
        }

    def gold(self, split: str) -> Sequence[Gold]:
        """Numbers of the correct endings."""
        return [int(label) for label in self._correct[split]]

    def shown(self, split: str, example: int) -> str:
        """The context and its endings."""
        context = self._tables[split].columns["context"][example]
        return " | ".join([str(context), *self.endings[split][example]])

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[questions, 2] int64: the correct choice, and the number of choices."""
        return np.stack([self._correct[split][units], self._sizes(split)[units]], axis=1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over the choices of each question."""
        grouped = by_group(logits[:, 0], targets[:, 1])
        return functional.cross_entropy(grouped, on(logits.device, targets[:, 0]), reduction="sum")

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """Number of the ending with the highest score."""
        # One group of scores per question.
        groups = np.split(logits[:, 0], self._first[split][1:-1])
        return [int(group.argmax()) for group in groups]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Accuracy."""
        return metric_values(self.metrics, self._correct[split], np.array(predictions))

    def _sizes(self, split: str) -> Places:
        return np.diff(self._first[split])


def endings_of(table: TaskTable) -> list[list[str]]:
    """The endings of every question, with its prefix."""
    if table.has("endings"):
        lists = table.columns["endings"]
    else:
        names = [name for name in ENDING_COLUMNS if table.has(name)]
        columns = [table.columns[name] for name in names]
        # A question may have fewer endings than others, but no gap between them.
        lists = [_filled(list(row)) for row in zip(*columns, strict=True)]
    prefixes = ["" if is_missing(prefix) else str(prefix) for prefix in _prefixes(table)]
    found = []
    for row, endings in enumerate(lists or [None]):
        texts = isinstance(endings, list) and all(isinstance(one, str) for one in endings)
        if not isinstance(endings, list) or not texts or len(endings) < 2:
            raise UsageError(
                f"{table.place(row)}: endings are {endings!r}, expected a list of two or more "
                "texts, or columns ending0, ending1, … without gaps"
            )
        found.append([well_formed(f"{prefixes[row]} {ending}".strip()) for ending in endings])
    return found


def number_in(label: JsonValue) -> int:
    """The number of an ending; -1 if `label` is none."""
    text = str(label).strip().removesuffix(".0")
    return int(text) if text.isdecimal() else -1


def _prefixes(table: TaskTable) -> list[JsonValue]:
    return table.columns.get("prefix", [None] * len(table))


def _filled(endings: list[JsonValue]) -> list[JsonValue]:
    """The endings without the missing ones after the last: a question may have fewer."""
    while endings and is_missing(endings[-1]):
        endings.pop()
    return endings
