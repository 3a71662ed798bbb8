"""Multiple choice (SWAG; paper, section 4.4; not in the reference's code).

In:  columns context, label (the right ending's number from 0), and the endings: one column
     `endings` with lists, or `ending0`, `ending1`, …; `prefix` is put before every ending.
Out: a `Problem` that reads one sequence per choice; the head gives each a score, softmax over them.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from artifacts.errors import UsageError
from artifacts.tokenizer import SubwordTokenizer, well_formed
from model.config import TaskConfig
from model.data.batch import on
from model.tasks.base import Gold, GroupedProblem, Logits, Prediction
from model.tasks.features import Places, by_group, offsets_of, pair_sequences
from model.tasks.metrics.classification_metrics import measure
from model.tasks.task_table import TaskTable

ENDING_COLUMNS = tuple(f"ending{number}" for number in range(10))


class MultipleChoice(GroupedProblem):
    """Which ending fits."""

    required: ClassVar[tuple[str, ...]] = ("context",)
    optional: ClassVar[tuple[str, ...]] = ("prefix", "endings", *ENDING_COLUMNS, "label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    reads: ClassVar = "pooled"
    outputs = 1

    def __init__(
        self, config: TaskConfig, tables: Mapping[str, TaskTable], tokenizer: SubwordTokenizer
    ) -> None:
        self.config = config
        self._tables = tables
        self.endings = {name: endings_of(table) for name, table in tables.items()}
        self._first = {
            name: offsets_of(np.array([len(row) for row in endings]))
            for name, endings in self.endings.items()
        }
        self.sequences = {
            name: pair_sequences(
                tokenizer,
                np.repeat(np.array(table.texts("context"), object), self._sizes(name)).tolist(),
                [ending for row in self.endings[name] for ending in row],
                max_seq_length=self.config.max_seq_length,
            )
            for name, table in tables.items()
        }
        self._right = {
            name: _right(table, self._sizes(name))
            for name, table in tables.items()
            if table.has("label")
        }

    def examples(self, split: str) -> int:
        """Questions."""
        return len(self.endings[split])

    def labelled(self, split: str) -> bool:
        """Whether the file has the column `label`."""
        return split in self._right

    def gold(self, split: str) -> Sequence[Gold]:
        """Numbers of the right endings."""
        return [int(label) for label in self._right[split]]

    def shown(self, split: str, example: int) -> str:
        """The context and its endings."""
        context = self._tables[split].columns["context"][example]
        return " | ".join([str(context), *self.endings[split][example]])

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[questions, 2] int64: the right choice, and how many there are."""
        return np.stack([self._right[split][units], self._sizes(split)[units]], axis=1)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy over the choices of each question."""
        grouped = by_group(logits[:, 0], targets[:, 1])
        return functional.cross_entropy(grouped, on(logits.device, targets[:, 0]), reduction="sum")

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """Number of the best ending."""
        groups = np.split(logits[:, 0], self._first[split][1:-1])
        return [int(group.argmax()) for group in groups]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Accuracy."""
        return measure(self.metrics, self._right[split], np.array(predictions))

    def _sizes(self, split: str) -> Places:
        return np.diff(self._first[split])


def endings_of(table: TaskTable) -> list[list[str]]:
    """The endings of every question, with their prefix."""
    if table.has("endings"):
        lists = table.columns["endings"]
    else:
        names = [name for name in ENDING_COLUMNS if table.has(name)]
        lists = [list(row) for row in zip(*(table.texts(name) for name in names), strict=True)]
    prefixes = table.texts("prefix") if table.has("prefix") else [""] * len(table)
    found = []
    for row, endings in enumerate(lists or [None]):
        if not isinstance(endings, list) or len(endings) < 2:
            raise UsageError(
                f"{table.place(row)}: endings are {endings!r}, expected a list of two or more, "
                "or columns ending0, ending1, …"
            )
        found.append([well_formed(f"{prefixes[row]} {ending}".strip()) for ending in endings])
    return found


def _right(table: TaskTable, sizes: Places) -> Places:
    right = np.empty(len(table), np.int64)
    for row, label in enumerate(table.columns["label"]):
        number = int(str(label)) if str(label).isdigit() else -1
        if not 0 <= number < sizes[row]:
            raise UsageError(
                f"{table.place(row)}: label {label!r}, expected the number of an ending, "
                f"0 to {sizes[row] - 1}"
            )
        right[row] = number
    return right
