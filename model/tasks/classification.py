"""Classification and regression of texts and pairs of texts (GLUE; reference: run_classifier.py).

In:  columns text_a, label, and text_b for pairs.
Out: a `Problem` whose head reads the pooled [CLS]: dropout, one linear layer.

Loss: cross-entropy, or squared error for regression, whose one output is in the label's own unit.
"""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from artifacts.errors import UsageError
from artifacts.tokenizer import SubwordTokenizer
from model.config import TaskConfig
from model.data.batch import on
from model.glue import submission_name
from model.tasks.base import Gold, Logits, Prediction, Problem
from model.tasks.features import Places, pair_sequences, single_sequences
from model.tasks.metrics.classification_metrics import measure
from model.tasks.task_table import TaskTable

STS_B_RANGE = (0.0, 5.0)
"""Submitted scores are clipped to it; the server refuses others."""


class Classification(Problem):
    """Which label a text has."""

    required: ClassVar[tuple[str, ...]] = ("text_a",)
    optional: ClassVar[tuple[str, ...]] = ("label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    reads: ClassVar = "pooled"

    def __init__(
        self, config: TaskConfig, tables: Mapping[str, TaskTable], tokenizer: SubwordTokenizer
    ) -> None:
        self.config = config
        self._tables = tables
        self.sequences = {}
        for name, table in tables.items():
            text_a, longest = table.texts("text_a"), self.config.max_seq_length
            if "text_b" in self.required or ("text_b" in self.optional and table.has("text_b")):
                self.sequences[name] = pair_sequences(
                    tokenizer, text_a, table.texts("text_b"), max_seq_length=longest
                )
            else:
                self.sequences[name] = single_sequences(tokenizer, text_a, max_seq_length=longest)
        self.labels = self._label_names()
        self.outputs = max(len(self.labels), 1)
        self._targets = {
            name: self._numbers(table) for name, table in tables.items() if table.has("label")
        }
        self._weights: Tensor | None = None
        if self.config.class_weights == "balanced" and "train" in self._targets:
            self._weights = torch.from_numpy(self._balanced_weights().astype(np.float32))

    def examples(self, split: str) -> int:
        """Rows of the file."""
        return len(self.sequences[split])

    def labelled(self, split: str) -> bool:
        """Whether the file has the column `label`."""
        return split in self._targets

    def gold(self, split: str) -> Sequence[Gold]:
        """Labels."""
        return [self.labels[index] for index in self._targets[split].tolist()]

    def shown(self, split: str, example: int) -> str:
        """The text, or both."""
        columns = self._tables[split].columns
        texts = [str(columns[name][example]) for name in ("text_a", "text_b") if name in columns]
        return " | ".join(texts)

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[rows] int64 label indices, or float32 numbers."""
        return self._targets[split][units]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy, weighted by label where the task says so."""
        weights = None if self._weights is None else on(logits.device, self._weights)
        targets = on(logits.device, targets)
        return functional.cross_entropy(logits, targets, weight=weights, reduction="sum")

    def probabilities(self, logits: Logits) -> NDArray[np.float64]:
        """Softmax, [rows, labels]."""
        powers = np.exp(logits.astype(np.float64) - logits.max(-1, keepdims=True))
        shares: NDArray[np.float64] = powers / powers.sum(-1, keepdims=True)
        return shares

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The label of the largest logit."""
        return [self.labels[index] for index in logits.argmax(-1)]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """GLUE's metrics over label indices: F1 is that of the second label."""
        known = {label: index for index, label in enumerate(self.labels)}
        predicted = np.array([known[str(label)] for label in predictions])
        return measure(self.metrics, self._targets[split], predicted)

    def submission(self, split: str, predictions: Sequence[Prediction]) -> dict[str, bytes]:
        """GLUE's `index<TAB>prediction` under a header, for an unlabelled test file."""
        if not self.config.glue or self.labelled(split):
            return {}
        rows = [f"{row}\t{self._submitted(value)}\n" for row, value in enumerate(predictions)]
        name = f"{submission_name(self.config.glue, split)}.tsv"
        return {name: "".join(["index\tprediction\n", *rows]).encode()}

    def _submitted(self, prediction: Prediction) -> str:
        return str(prediction)

    def _balanced_weights(self) -> NDArray[np.float64]:
        """[labels] as defined by `class_weights`."""
        rows = np.bincount(self._targets["train"], minlength=self.outputs)
        weights: NDArray[np.float64] = rows.sum() / (self.outputs * np.maximum(rows, 1))
        return weights

    def _label_names(self) -> tuple[str, ...]:
        """The configured labels, or those of the training data in order."""
        if self.config.labels:
            return self.config.labels
        found = sorted({str(label) for label in self._tables["train"].every("label")})
        if len(found) < 2:
            raise UsageError(
                f"task {self.config.name}: only the label {', '.join(found)} in the training data, "
                "expected at least two; name them with labels = [...], or use kind = 'regression'"
            )
        return tuple(found)

    def _numbers(self, table: TaskTable) -> NDArray[np.generic]:
        """The label column in the form of `targets`."""
        known = {label: index for index, label in enumerate(self.labels)}
        indices = np.array([known.get(str(label), -1) for label in table.columns["label"]])
        unknown = np.flatnonzero(indices < 0)
        if len(unknown):
            row = int(unknown[0])
            raise UsageError(
                f"{table.place(row)}: unknown label {table.columns['label'][row]!r} "
                f"({len(unknown)} such rows), expected one of {', '.join(self.labels)}"
            )
        return indices


class PairClassification(Classification):
    """Which label a pair of texts has."""

    required: ClassVar[tuple[str, ...]] = ("text_a", "text_b")


class Regression(Classification):
    """A number for a text or a pair of texts."""

    optional: ClassVar[tuple[str, ...]] = ("text_b", "label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman")

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Squared error."""
        return functional.mse_loss(logits[:, 0], on(logits.device, targets), reduction="sum")

    def gold(self, split: str) -> Sequence[Gold]:
        """Numbers."""
        return [float(value) for value in self._targets[split].tolist()]

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The one output."""
        return [float(value) for value in logits[:, 0]]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Correlations."""
        return measure(self.metrics, self._targets[split], np.array(predictions))

    def _submitted(self, prediction: Prediction) -> str:
        lowest, highest = STS_B_RANGE
        return f"{min(max(float(str(prediction)), lowest), highest):.3f}"

    def _label_names(self) -> tuple[str, ...]:
        return ()

    def _numbers(self, table: TaskTable) -> NDArray[np.generic]:
        values = np.empty(len(table))
        for row, label in enumerate(table.columns["label"]):
            try:
                values[row] = float(str(label))
            except ValueError:
                raise UsageError(
                    f"{table.place(row)}: label {label!r} is not a number, which regression wants"
                ) from None
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise UsageError(f"{table.place(row)}: label is not finite, expected a number")
        return values.astype(np.float32)
