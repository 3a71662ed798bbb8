"""The interface of task families to trials.

In:  a task's configuration, its tables, a tokenizer.
Out: `Problem`: sequences to read, targets to learn, predictions to score.

A family is a file with one `Problem`: classification, tagging, span, multiple_choice, retrieval.
Everything else (batches, optimizer, seeds, feature-based use, reports) depends on problems only.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor

from artifacts.tokenizer import SubwordTokenizer
from model.config import TaskConfig
from model.data.shards import ragged_indices
from model.tasks.features import Places, Sequences
from model.tasks.task_table import TaskTable

Logits = NDArray[np.float32]

Prediction = JsonValue
"""A prediction for one example: a label, a number, tags, an answer with its margin."""

Gold = str | int | float | list[str] | tuple[str, ...]
"""The label of one example; a tuple holds alternative answers."""


class Problem(ABC):
    """One task, read and tokenised."""

    required: ClassVar[tuple[str, ...]]
    """Columns that every file must have."""

    optional: ClassVar[tuple[str, ...]] = ()
    """Columns that a file may have; labels are optional in test files."""

    default_metrics: ClassVar[tuple[str, ...]]
    """Metrics if the configuration names none, the headline first."""

    reads: ClassVar[Literal["pooled", "tokens", "vectors"]]
    """Input of the head: the pooled [CLS] of each sequence, or the vectors of some tokens;
    `vectors`: there is no head, and the outputs are the sequence vectors themselves.
    """

    joint: ClassVar[bool] = False
    """Whether the loss couples the whole batch, so that it is not the sum over its parts."""

    head_dropout: ClassVar[bool] = True
    """Dropout before the head (reference: 0.1 for classifiers, none for spans)."""

    exclusive: ClassVar[bool] = True
    """Whether an example, or each of its words, has exactly one label."""

    @classmethod
    def prepared(cls, table: TaskTable, config: TaskConfig) -> TaskTable:
        """A split's table in the canonical form of the family."""
        return table

    @abstractmethod
    def __init__(
        self, config: TaskConfig, tables: Mapping[str, TaskTable], tokenizer: SubwordTokenizer
    ) -> None:
        """Read and tokenise the task's tables, given by split."""

    config: TaskConfig
    sequences: dict[str, Sequences]
    outputs: int
    labels: tuple[str, ...] = ()
    used_ids: Places | None = None
    """[U] original ids of a pruned vocabulary; None: the sequences hold the original ids."""

    notes: tuple[str, ...] = ()
    """Remarks on the data for the report: rows left out, texts truncated."""

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, the headline first."""
        return self.config.metrics or self.default_metrics

    @property
    def headline(self) -> str:
        """The metric that selects models."""
        return self.metrics[0]

    def units(self, split: str) -> int:
        """Number of training examples, the units of the batch size."""
        return len(self.sequences[split])

    def unit_tokens(self, split: str) -> Places:
        """[units] tokens of each unit's sequences."""
        return self.sequences[split].lengths

    def rows(self, split: str, units: Places) -> Places:
        """The sequences of these units, in order."""
        return units

    def positions(self, split: str, rows: Places) -> Places:
        """Positions in the packed tokens of `rows` that the head reads (if `reads == "tokens"`)."""
        raise NotImplementedError(f"{type(self).__name__}: its head reads whole sequences")

    def reads_of(self, split: str) -> Places:
        """[sequences] rows of logits of each sequence."""
        return np.ones(len(self.sequences[split]), np.int64)

    @abstractmethod
    def examples(self, split: str) -> int:
        """Number of examples in the file."""

    @abstractmethod
    def labelled(self, split: str) -> bool:
        """Whether the split has labels."""

    @abstractmethod
    def gold(self, split: str) -> Sequence[Gold]:
        """The labels of a split that has them, in the file's order."""

    @abstractmethod
    def shown(self, split: str, example: int) -> str:
        """An example as readable text."""

    def thresholded(
        self, dev: Sequence[Prediction] | None, predictions: Sequence[Prediction]
    ) -> list[Prediction]:
        """Predictions after applying a threshold found on dev's predictions, where there is one."""
        return list(predictions)

    def calibrated(self, dev: Sequence[Prediction] | None) -> TaskConfig:
        """The configuration that a saved model predicts with: labels and threshold filled in."""
        return self.config.model_copy(update={"labels": self.labels})

    @abstractmethod
    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """The targets of these units for `loss`."""

    @abstractmethod
    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Loss summed over `targets`, which are on the CPU.

        logits: [rows or positions, outputs] fp32 on any device.
        """

    @abstractmethod
    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """One prediction an example, in the file's order. logits: those of the whole split."""

    @abstractmethod
    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Every metric, as fractions."""

    def submission(self, split: str, predictions: Sequence[Prediction]) -> dict[str, bytes]:
        """Files by name in the format of the task's official server; none without one."""
        return {}


class GroupedProblem(Problem):
    """A family whose units are several sequences each, one unit after another."""

    _first: dict[str, Places]
    """[units + 1] by split: the first sequence of each unit, and the number of all."""

    def units(self, split: str) -> int:
        """Rows of the file."""
        return len(self._first[split]) - 1

    def unit_tokens(self, split: str) -> Places:
        """Tokens of all sequences of each unit."""
        return np.add.reduceat(self.sequences[split].lengths, self._first[split][:-1])

    def rows(self, split: str, units: Places) -> Places:
        """All sequences of these units, unit by unit."""
        return ragged_indices(self._first[split][units], np.diff(self._first[split])[units])
