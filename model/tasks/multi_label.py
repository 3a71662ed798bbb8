"""Any number of labels for a text: toxic comments, topics of an article, symptoms of a report.

In:  columns text_a, text_b for pairs, and the labels: a column `label` whose cells hold several of
     them, or a column of 0 and 1 for each label that the task names.
Out: a `Problem` whose head reads the pooled [CLS] and decides on each label independently.

Loss: binary cross-entropy, averaged over the labels, as `transformers` has it for
`problem_type = "multi_label_classification"`. A label is predicted where its probability reaches
the task's threshold; a text may have none.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional

from artifacts.errors import UsageError
from model.config import TaskConfig
from model.data.batch import on
from model.tasks.base import Gold, Logits, Prediction
from model.tasks.classification import Classification
from model.tasks.metrics.classification_metrics import measure, precision_recall_f1
from model.tasks.task_table import TaskTable

MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""What a cell of a label's own column says."""


class MultiLabel(Classification):
    """Which labels a text has."""

    optional: ClassVar[tuple[str, ...]] = ("text_b", "label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("f1_micro", "f1_macro")
    exclusive: ClassVar[bool] = False

    @classmethod
    def prepared(cls, table: TaskTable, config: TaskConfig) -> TaskTable:
        """The table with one column `label` of lists, however the file writes the labels."""
        own = [name for name in config.labels if table.has(name)]
        if table.has("label"):
            lists = [_split(cell, config.label_separator) for cell in table.columns["label"]]
        elif not own:
            return table
        elif missing := [name for name in config.labels if name not in own]:
            raise UsageError(
                f"{table.path}: columns of 0 and 1 for {', '.join(own)}, but none for "
                f"{', '.join(missing)}; add them, or name the right labels = [...]"
            )
        else:
            lists = [_marked(table, row, own) for row in range(len(table))]
        kept = {name: values for name, values in table.columns.items() if name not in own}
        return replace(table, columns={**kept, "label": lists})

    def gold(self, split: str) -> Sequence[Gold]:
        """Lists of labels, in the order of the head's outputs."""
        return [self._names(row) for row in self._present(split)]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy, weighted by label and answer where the task says so."""
        targets = on(logits.device, targets)
        weights = None
        if self._weights is not None:
            absent, present = on(logits.device, self._weights)
            weights = torch.where(targets > 0, present, absent)
        summed = functional.binary_cross_entropy_with_logits(
            logits, targets, weight=weights, reduction="sum"
        )
        return summed / self.outputs

    def probabilities(self, logits: Logits) -> NDArray[np.float64]:
        """Each label's, [rows, labels]; they need not come to 1."""
        return 1.0 / (1.0 + np.exp(-logits.astype(np.float64)))

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The labels whose probability reaches the threshold."""
        chosen = self.probabilities(logits) >= self.config.threshold
        return [[*self._names(row)] for row in chosen]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """The metrics, then precision, recall and F1 of every label."""
        predicted = np.array(
            [[name in _listed(one) for name in self.labels] for one in predictions]
        )
        gold = self._present(split)
        scores = measure(self.metrics, gold, predicted)
        for name, values in precision_recall_f1(gold, predicted).items():
            for label, value in zip(self.labels, values, strict=True):
                scores[f"label_{name}_{label}"] = value
        return scores

    def _label_names(self) -> tuple[str, ...]:
        if self.config.labels:
            return self.config.labels
        table = self._tables["train"]
        found = sorted({label for labels in table.every("label") for label in _listed(labels)})
        if len(found) < 2:
            raise UsageError(
                f"task {self.config.name}: labels {', '.join(found) or 'none'} in {table.path}, "
                "expected at least two; name them with labels = [...], say what separates them "
                "with label_separator, or use kind = 'classification'"
            )
        return tuple(found)

    def _numbers(self, table: TaskTable) -> NDArray[np.generic]:
        """[rows, labels] float32: 1 where the row has the label."""
        known = {label: place for place, label in enumerate(self.labels)}
        targets = np.zeros((len(table), len(known)), np.float32)
        for row, labels in enumerate(table.columns["label"]):
            for label in _listed(labels):
                if label not in known:
                    raise UsageError(
                        f"{table.place(row)}: unknown label {label!r}, expected labels among "
                        f"{', '.join(self.labels)}, separated by {self.config.label_separator!r} "
                        "(label_separator)"
                    )
                targets[row, known[label]] = 1.0
        return targets

    def _balanced_weights(self) -> NDArray[np.float64]:
        """[2, labels]: of the rows without a label, and of those with it."""
        present = self._present("train")
        rows = np.stack(((~present).sum(0), present.sum(0)))
        weights: NDArray[np.float64] = len(present) / (2 * np.maximum(rows, 1))
        return weights

    def _present(self, split: str) -> NDArray[np.bool_]:
        return np.asarray(self._targets[split], np.float32) > 0

    def _names(self, chosen: NDArray[np.bool_]) -> list[str]:
        return [label for label, is_chosen in zip(self.labels, chosen, strict=True) if is_chosen]


def _split(cell: JsonValue, separator: str) -> JsonValue:
    """The labels in a cell: a list (JSON, Parquet), or text that separates them."""
    if isinstance(cell, list):
        return [str(label) for label in cell]
    words = (word.strip() for word in ("" if cell is None else str(cell)).split(separator))
    return [word for word in words if word]


def _marked(table: TaskTable, row: int, names: Sequence[str]) -> JsonValue:
    """The labels whose own column has a 1."""
    labels: list[JsonValue] = []
    for name in names:
        value = table.columns[name][row]
        mark = MARKS.get(str(value).strip().lower())
        if mark is None:
            raise UsageError(f"{table.place(row)}: {name} is {value!r}, expected 0 or 1")
        if mark:
            labels.append(name)
    return labels


def _listed(labels: JsonValue) -> list[str]:
    return [str(label) for label in labels] if isinstance(labels, list) else []
