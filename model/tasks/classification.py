"""Classification and regression of texts and pairs of texts (GLUE; reference: run_classifier.py).

In:  columns text_a, label, and text_b for pairs.
Out: a `Problem` whose head reads the pooled [CLS]: dropout, one linear layer.

Loss: cross-entropy, or squared error for regression, whose one output is in the label's own unit.
"""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from model.tasks.base import Logits, Prediction, Problem, Texts
from model.tasks.features import Places, Sequences, pair_sequences, single_sequences
from model.tasks.labels import label_indices, label_set, scores_column
from model.tasks.metrics.glue_metrics import measure


class Classification(Problem):
    """Which label a text has."""

    required: ClassVar[tuple[str, ...]] = ("text_a",)
    optional: ClassVar[tuple[str, ...]] = ("label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    reads: ClassVar = "pooled"

    def __init__(self, texts: Texts) -> None:
        self.config = texts.config
        self._tables = texts.tables
        self.sequences = {name: self._sequences(texts, name) for name in texts.tables}
        self.labels = self._label_names(texts)
        self.outputs = max(len(self.labels), 1)
        self.gold = {
            name: self._gold(texts, name)
            for name in texts.tables
            if texts.tables[name].has("label")
        }

    def examples(self, split: str) -> int:
        """Rows of the file."""
        return len(self.sequences[split])

    def labelled(self, split: str) -> bool:
        """Whether the file has the column `label`."""
        return split in self.gold

    def answers(self, split: str) -> list[Prediction]:
        """Labels."""
        return [self.labels[index] for index in self.gold[split].tolist()]

    def shown(self, split: str, example: int) -> str:
        """The text, or both."""
        columns = self._tables[split].columns
        texts = [columns[name][example] for name in ("text_a", "text_b") if name in columns]
        return " | ".join(texts)

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[rows] int64 label indices."""
        return self.gold[split][units]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy."""
        return functional.cross_entropy(logits, targets, reduction="sum")

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The label of the largest logit."""
        return [self.labels[index] for index in logits.argmax(-1)]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """GLUE's metrics over label indices: F1 is that of the second label."""
        known = {label: index for index, label in enumerate(self.labels)}
        guessed = np.array([known[label] for label in predictions])
        return measure(self.metrics, self.gold[split], guessed)

    def _label_names(self, texts: Texts) -> tuple[str, ...]:
        return label_set(texts.config, texts.tables)

    def _gold(self, texts: Texts, split: str) -> NDArray[np.generic]:
        return label_indices(texts.tables[split], self.labels)

    def _sequences(self, texts: Texts, split: str) -> Sequences:
        return single_sequences(
            texts.tokenizer,
            texts.tables[split].texts("text_a"),
            max_seq_length=texts.config.max_seq_length,
        )


class PairClassification(Classification):
    """Which label a pair of texts has."""

    required: ClassVar[tuple[str, ...]] = ("text_a", "text_b")

    def _sequences(self, texts: Texts, split: str) -> Sequences:
        return _pairs(texts, split)


class Regression(Classification):
    """A number for a text or a pair of texts."""

    optional: ClassVar[tuple[str, ...]] = ("text_b", "label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman")

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Squared error."""
        return functional.mse_loss(logits[:, 0], targets, reduction="sum")

    def answers(self, split: str) -> list[Prediction]:
        """Numbers."""
        return [float(value) for value in self.gold[split].tolist()]

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The one output."""
        return [float(value) for value in logits[:, 0]]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Correlations."""
        return measure(self.metrics, self.gold[split], np.array(predictions))

    def _label_names(self, texts: Texts) -> tuple[str, ...]:
        return ()

    def _gold(self, texts: Texts, split: str) -> NDArray[np.generic]:
        return scores_column(texts.tables[split]).astype(np.float32)

    def _sequences(self, texts: Texts, split: str) -> Sequences:
        if texts.tables[split].has("text_b"):
            return _pairs(texts, split)
        return super()._sequences(texts, split)


def _pairs(texts: Texts, split: str) -> Sequences:
    table = texts.tables[split]
    return pair_sequences(
        texts.tokenizer,
        table.texts("text_a"),
        table.texts("text_b"),
        max_seq_length=texts.config.max_seq_length,
    )
