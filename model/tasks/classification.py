"""Classification and regression of texts and text pairs (GLUE; reference: run_classifier.py).

In:  columns text_a, label, and text_b for pairs. Several labels per text: a column `label` whose
     cells hold any number of them, or a column of 0 and 1 for each label in the configuration.
Out: a `Problem` whose head reads the pooled [CLS]: dropout, one linear layer.

Loss: cross-entropy; squared error for regression, whose single output is in the label's unit,
whatever the unit: numbers that are large, or differ by little, are learnt standardised; binary
cross-entropy averaged over the labels if a text may have several, as in `transformers` for
`problem_type = "multi_label_classification"`. Such a label is predicted if its probability reaches
the task's threshold; a text may have none.

Accuracy, F1 and Matthews come from scikit-learn, correlations from scipy, as in GLUE's own code.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np
import scipy  # imports `scipy.stats` on first use
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor, nn
from torch.nn import functional

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import ApproachName, TaskConfig
from cloze.model.data.batch import on
from cloze.model.encoder.scaled_linear import ScaledLinear, unit_of
from cloze.model.tasks.base import (
    Exported,
    Floats,
    Gold,
    Learn,
    Logits,
    Predicted,
    Prediction,
    Problem,
)
from cloze.model.tasks.baselines import (
    bag_of_words,
    bag_of_words_by_label,
    frequent_label,
    majority_label,
    mean_label,
    overlap_share,
    word_overlap,
)
from cloze.model.tasks.features import Places, encode
from cloze.model.tasks.files.task_table import TaskTable, is_missing

Values = NDArray[np.generic]
"""Label indices or scores [rows], or label indicators [rows, labels]."""

MARKS = {"0": False, "1": True, "0.0": False, "1.0": True, "false": False, "true": True}
"""Cells of a label's own column."""


class Classification(Problem):
    """One label per text."""

    required: ClassVar[tuple[str, ...]] = ("text_a",)
    optional: ClassVar[tuple[str, ...]] = ("label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("accuracy",)
    uneven_metrics: ClassVar[tuple[str, ...]] = ("f1_macro", "balanced_accuracy", "accuracy")
    baselines: ClassVar[Mapping[str, Learn]] = {
        "majority": majority_label,
        "bag_of_words": bag_of_words,
    }
    predicts: ClassVar[Predicted] = "label"
    approaches: ClassVar[tuple[ApproachName, ...]] = (
        *("class_means", "linear", "contrastive"),
        "fine_tuning",
    )
    reads: ClassVar = "pooled"

    @classmethod
    def prepared(cls, table: TaskTable, config: TaskConfig) -> TaskTable:
        """The table with labels spelt alike, if all are whole numbers, or all true or false."""
        cells = table.columns.get("label", [])
        if not all(is_missing(cell) or common_spelling(cell) for cell in cells):
            return table
        # Configured spellings win: `1.0` in a file is the label `1` if that is how it is
        # configured.
        configured = {common_spelling(label): label for label in config.labels}
        labels: list[JsonValue] = [
            cell
            if is_missing(cell)
            else configured.get(common_spelling(cell), common_spelling(cell))
            for cell in cells
        ]
        return replace(table, columns={**table.columns, **({"label": labels} if labels else {})})

    def _encode(self, tokenizer: SubwordTokenizer) -> None:
        self.sequences = {
            name: encode(tokenizer, *texts, max_seq_length=self.config.max_seq_length)
            for name, texts in self._texts.items()
        }

    def known_metrics(self) -> tuple[str, ...]:
        """Those of labels; `f1` is that of the second of two."""
        two = ("f1",) if len(self.labels) == 2 else ()
        return ("accuracy", "balanced_accuracy", *two, "f1_macro", "f1_micro", "matthews")

    def _read(self) -> None:
        may_have_pairs = "text_b" in (*self.required, *self.optional)
        self._texts = {
            name: (
                table.texts("text_a"),
                table.texts("text_b") if may_have_pairs and table.has("text_b") else None,
            )
            for name, table in self._tables.items()
        }
        if self.config.compare_texts and (
            single := [name for name, (_, second) in self._texts.items() if second is None]
        ):
            raise UsageError(
                f"{self._tables[single[0]].path}: no column text_b, expected one, as task "
                f"{self.config.name} has compare_texts = true; name it in columns, or leave that "
                "out"
            )
        self.labels = self.label_names()
        self.outputs = max(len(self.labels), 1)
        self._targets = {
            name: self.label_targets(table)
            for name, table in self._tables.items()
            if self.labelled(name)
        }
        self._weights: Tensor | None = None
        if self.config.class_weights == "balanced" and "train" in self._targets:
            rows = self.label_counts("train")
            # scikit-learn's balanced: rows / (labels × rows with the label); a label without rows
            # counts one.
            weights = len(self._targets["train"]) / (len(rows) * np.maximum(rows, 1))
            self._weights = torch.from_numpy(weights.astype(np.float32))

    def label_names(self) -> tuple[str, ...]:
        """The configured labels, else those of the training data, in order."""
        if self.config.labels:
            return self.config.labels
        table = self._tables["train"]
        if "label" in table.class_names:
            return table.class_names["label"]
        found = label_order(str(label) for label in table.every("label"))
        if len(found) < 2:
            raise UsageError(
                f"task {self.config.name}: only the label {', '.join(found)} in the training data, "
                "expected at least two; name them with labels = [...], or use kind = 'regression'"
            )
        return found

    def label_targets(self, table: TaskTable) -> NDArray[np.generic]:
        """The label column in the form of `targets`."""
        known = {label: index for index, label in enumerate(self.labels)}
        # 1 and 1.0 are one label, whichever of them the training data has
        common = {same: index for label, index in known.items() if (same := common_spelling(label))}
        names = [str(label) for label in table.columns["label"]]
        indices = np.array(
            [known.get(name, common.get(common_spelling(name), -1)) for name in names]
        )
        unknown = np.flatnonzero(indices < 0)
        if len(unknown):
            row = int(unknown[0])
            raise UsageError(
                f"{table.place(row)}: unknown label {table.columns['label'][row]!r} "
                f"({len(unknown)} such rows), expected one of {', '.join(self.labels)}"
            )
        return indices

    def label_counts(self, split: str) -> NDArray[np.int64]:
        """[labels] rows with each label."""
        return np.bincount(self._targets[split], minlength=self.outputs)

    def gold(self, split: str) -> Sequence[Gold]:
        """Labels."""
        return [self.labels[index] for index in self._targets[split].tolist()]

    def shown(self, split: str, example: int) -> str:
        """The text, or both texts of a pair."""
        columns = self._tables[split].columns
        texts = [str(columns[name][example]) for name in ("text_a", "text_b") if name in columns]
        return " | ".join(texts)

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[rows] int64 label indices, or float32 numbers."""
        return self._targets[split][units]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy, with label weights if configured."""
        weights = None if self._weights is None else on(logits.device, self._weights)
        targets = on(logits.device, targets)
        return functional.cross_entropy(logits, targets, weight=weights, reduction="sum")

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The label with the largest logit."""
        return [self.labels[index] for index in logits.argmax(-1)]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """GLUE's metrics over label indices: F1 is that of the second label."""
        known = {label: index for index, label in enumerate(self.labels)}
        predicted = np.array([known[str(label)] for label in predictions])
        return metric_values(self.metrics, self._targets[split], predicted)


class PairClassification(Classification):
    """One label per pair of texts."""

    required: ClassVar[tuple[str, ...]] = ("text_a", "text_b")
    baselines: ClassVar[Mapping[str, Learn]] = {
        "majority": majority_label,
        "word_overlap": word_overlap,
    }


class Regression(Classification):
    """A number for a text or a pair of texts."""

    optional: ClassVar[tuple[str, ...]] = ("text_b", "label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("pearson", "spearman")
    uneven_metrics: ClassVar[tuple[str, ...]] = ()
    baselines: ClassVar[Mapping[str, Learn]] = {
        "majority": mean_label,
        "word_overlap": overlap_share,
    }
    predicts: ClassVar[Predicted] = "number"
    approaches: ClassVar[tuple[ApproachName, ...]] = ("linear", "fine_tuning")
    exported_as: ClassVar = Exported(problem_type="regression")

    @property
    def output_names(self) -> tuple[str, ...]:
        """That of its single output."""
        return ("score",)

    @classmethod
    def prepared(cls, table: TaskTable, config: TaskConfig) -> TaskTable:
        """The table as it is: labels are numbers."""
        return table

    def known_metrics(self) -> tuple[str, ...]:
        """Correlations."""
        return self.default_metrics

    def label_names(self) -> tuple[str, ...]:
        """None."""
        return ()

    def _read(self) -> None:
        super()._read()
        self._shift, self._scale = 0.0, 1.0
        if "train" in self._targets:
            self._shift, self._scale = unit_of(self._targets["train"])

    def start_head(self, head: nn.Linear) -> None:
        """Let the head learn standardised numbers, and give them in the labels' unit."""
        if isinstance(head, ScaledLinear):
            head.scale, head.shift = self._scale, self._shift

    def label_targets(self, table: TaskTable) -> NDArray[np.generic]:
        """[rows] float32."""
        values = np.empty(len(table))
        for row, label in enumerate(table.columns["label"]):
            try:
                values[row] = float(str(label))
            except ValueError:
                raise UsageError(
                    f"{table.place(row)}: label {label!r} is not a number, as regression needs; "
                    "write 1234.5, with a point and nothing else"
                ) from None
        if not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(values))[0])
            raise UsageError(f"{table.place(row)}: label is not finite, expected a number")
        return values.astype(np.float32)

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Squared error, of standardised numbers if they are learnt so."""
        targets = on(logits.device, targets)
        return functional.mse_loss(logits[:, 0], targets, reduction="sum") / self._scale**2

    def gold(self, split: str) -> Sequence[Gold]:
        """Numbers."""
        return [float(value) for value in self._targets[split].tolist()]

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The single output."""
        return [float(value) for value in logits[:, 0]]

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Correlations."""
        return metric_values(self.metrics, self._targets[split], np.array(predictions))


class MultiLabel(Classification):
    """Any number of labels per text: topics of an article, symptoms in a report."""

    optional: ClassVar[tuple[str, ...]] = ("text_b", "label", "id")
    default_metrics: ClassVar[tuple[str, ...]] = ("f1_micro", "f1_macro")
    uneven_metrics: ClassVar[tuple[str, ...]] = ()
    baselines: ClassVar[Mapping[str, Learn]] = {
        "majority": frequent_label,
        "bag_of_words": bag_of_words_by_label,
    }
    predicts: ClassVar[Predicted] = "labels"
    approaches: ClassVar[tuple[ApproachName, ...]] = ("linear", "fine_tuning")
    exported_as: ClassVar = Exported(problem_type="multi_label_classification")

    @classmethod
    def prepared(cls, table: TaskTable, config: TaskConfig) -> TaskTable:
        """The table with one column `label` of lists, whichever way the file holds the labels."""
        # Either a column `label` with all labels of a row, or one column of marks for each label.
        own = [name for name in config.labels if table.has(name)]
        lists: list[JsonValue] = []
        if table.has("label"):
            for cell in table.columns["label"]:
                if isinstance(cell, list):  # JSON, Parquet
                    lists.append([number_of(str(label)) or str(label) for label in cell])
                else:
                    words = ("" if cell is None else str(cell)).split(config.label_separator)
                    lists.append([word.strip() for word in words if word.strip()])
        elif not own:
            return table
        elif missing := [name for name in config.labels if name not in own]:
            raise UsageError(
                f"{table.path}: columns of 0 and 1 for {', '.join(own)}, but none for "
                f"{', '.join(missing)}; add them, or correct labels = [...]"
            )
        else:
            marks: dict[str, list[bool | None]] = {}
            for name in own:
                values = table.columns[name]
                marks[name] = [MARKS.get(str(value).strip().lower()) for value in values]
                if None in marks[name]:
                    row = marks[name].index(None)
                    where = table.place(row)
                    raise UsageError(f"{where}: {name} is {values[row]!r}, expected 0 or 1")
            lists += [[name for name in own if marks[name][row]] for row in range(len(table))]
        kept = {name: values for name, values in table.columns.items() if name not in own}
        return replace(table, columns={**kept, "label": named_indicators(table, lists, config)})

    def known_metrics(self) -> tuple[str, ...]:
        """The same, whatever the labels."""
        return self.config.family.metrics

    def label_names(self) -> tuple[str, ...]:
        """The configured labels, else those of the training data, in order."""
        if self.config.labels:
            return self.config.labels
        table = self._tables["train"]
        if "label" in table.class_names:
            return table.class_names["label"]
        found = label_order(label for labels in table.every("label") for label in _listed(labels))
        if len(found) < 2:
            raise UsageError(
                f"task {self.config.name}: labels {', '.join(found) or 'none'} in {table.path}, "
                "expected at least two; name them with labels = [...], set label_separator, or use "
                "kind = 'classification'"
            )
        return found

    def label_targets(self, table: TaskTable) -> NDArray[np.generic]:
        """[rows, labels] float32: 1 if the row has the label."""
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

    def label_counts(self, split: str) -> NDArray[np.int64]:
        """[2, labels] rows without each label, and rows with it."""
        # Labels of a text are independent questions, so each has two counts.
        present = self._present(split)
        return np.stack(((~present).sum(0), present.sum(0)))

    def gold(self, split: str) -> Sequence[Gold]:
        """Lists of labels, in the order of the head's outputs."""
        return [self._names(row) for row in self._present(split)]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Binary cross-entropy, weighted by label and answer if configured."""
        targets = on(logits.device, targets)
        weights = None
        if self._weights is not None:
            absent, present = on(logits.device, self._weights)
            weights = torch.where(targets > 0, present, absent)
        summed = functional.binary_cross_entropy_with_logits(
            logits, targets, weight=weights, reduction="sum"
        )
        # The mean over labels, so that the rate does not depend on their number.
        return summed / self.outputs

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """The labels whose probability reaches the threshold."""
        return self.labels_above(logits, self.config.thresholds or self.config.threshold)

    def labels_above(
        self, logits: Logits, thresholds: Sequence[float] | Floats | float
    ) -> list[Prediction]:
        """The labels whose probability reaches its threshold: of all, of each, or by row."""
        chosen = self.probabilities(logits) >= thresholds
        return [[*self._names(row)] for row in chosen]

    def at_temperatures(self, saved: TaskConfig, temperatures: Sequence[float]) -> TaskConfig:
        """The thresholds follow the probabilities, so that the predictions stay the same."""
        thresholds = np.broadcast_to(saved.thresholds or saved.threshold, len(self.labels))
        # The logit at which a probability would just reach its threshold. Divided by the
        # temperature, like all logits from now on, it gives the threshold that the same texts
        # reach.
        logits = np.log(thresholds) - np.log1p(-thresholds)
        moved = 1.0 / (1.0 + np.exp(-logits / np.asarray(temperatures)))
        return saved.model_copy(update={"thresholds": tuple(moved.tolist())})

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """The metrics, then precision, recall and F1 of every label."""
        predicted = np.array(
            [[name in _listed(one) for name in self.labels] for one in predictions]
        )
        gold = self._present(split)
        scores = metric_values(self.metrics, gold, predicted)
        for name, values in precision_recall_f1(gold, predicted).items():
            for label, value in zip(self.labels, values, strict=True):
                scores[f"label_{name}_{label}"] = value
        return scores

    def _present(self, split: str) -> NDArray[np.bool_]:
        return np.asarray(self._targets[split], np.float32) > 0

    def _names(self, chosen: NDArray[np.bool_]) -> list[str]:
        return [label for label, is_chosen in zip(self.labels, chosen, strict=True) if is_chosen]


def named_indicators(
    table: TaskTable, lists: list[JsonValue], config: TaskConfig
) -> list[JsonValue]:
    """The lists of labels; lists of 0 and 1, one for each label, become those of the labels."""
    # `["1", "0", "1"]` may be three marks or labels called 0 and 1: marks repeat within a row.
    cells = [_listed(cell) for cell in lists]
    widths = {len(cell) for cell in cells}
    if len(widths) != 1 or not all({*cell} <= {"0", "1"} for cell in cells):
        return lists
    (width,) = widths
    if width < 2 or not any(cell.count(mark) > 1 for cell in cells for mark in "01"):
        return lists  # no list repeats a label
    if width != len(config.labels):
        raise UsageError(
            f"{table.place(0)}: label is {lists[0]!r:.100}, {width} marks of 0 and 1; name the "
            f"labels that they stand for, in order: labels = [...] (now {len(config.labels)})"
        )
    return [
        [label for label, mark in zip(config.labels, cell, strict=True) if mark == "1"]
        for cell in cells
    ]


def _listed(labels: JsonValue) -> list[str]:
    return [str(label) for label in labels] if isinstance(labels, list) else []


def number_of(label: str) -> str:
    """The spelling that every spelling of a whole number has in common; "" if it is none."""
    # 1, 1.0 and 1. are the same number; -1.5 and 01a are labels as they are.
    return re.sub(r"\.0*$", "", label) if re.fullmatch(r"-?\d+(\.0*)?", label) else ""


def common_spelling(label: JsonValue) -> str:
    """The spelling that a whole number or a truth value has in every format; "" for others."""
    text = str(label).strip()
    return text.lower() if text.lower() in ("true", "false") else number_of(text)


def label_order(labels: Iterable[str]) -> tuple[str, ...]:
    """The different labels, sorted: by value if all are whole numbers, else by spelling."""
    found = sorted(set(labels))
    # by number, so that 10 comes after 9
    return tuple(sorted(found, key=int) if all(map(number_of, found)) else found)


Metric = Callable[[Values, Values], float]
"""From gold and predicted values to a score."""


def _from_sklearn(function: str, **options: object) -> Metric:
    """A score of scikit-learn, which takes longer to import than torch; prediction needs none."""

    def metric(gold: Values, predicted: Values) -> float:
        import sklearn.metrics

        return float(getattr(sklearn.metrics, function)(gold, predicted, **options))

    return metric


def _correlation(function: str) -> Metric:
    """A correlation of scipy; 0 if either side is constant."""

    def metric(gold: Values, predicted: Values) -> float:
        # SciPy warns and returns NaN for a constant, which scores nothing.
        vary = len(np.unique(gold)) > 1 and len(np.unique(predicted)) > 1
        return float(getattr(scipy.stats, function)(gold, predicted).statistic) if vary else 0.0

    return metric


METRICS: dict[str, Metric] = {
    "accuracy": _from_sklearn("accuracy_score"),
    "balanced_accuracy": _from_sklearn("balanced_accuracy_score"),
    "f1": _from_sklearn("f1_score", zero_division=0.0),
    "f1_macro": _from_sklearn("f1_score", average="macro", zero_division=0.0),
    "f1_micro": _from_sklearn("f1_score", average="micro", zero_division=0.0),
    "matthews": _from_sklearn("matthews_corrcoef"),
    "pearson": _correlation("pearsonr"),
    "spearman": _correlation("spearmanr"),
}
"""`accuracy`: the share of examples with the correct label, or with all labels correct;
`balanced_accuracy`: the mean of the labels' recalls; `f1`: of label 1 (MRPC, QQP); `f1_macro`: the
mean of the labels' F1; `f1_micro`: F1 over all labels of all examples, pooled; `matthews` (CoLA): 0
if all predictions are equal; the correlations: STS-B.
"""


def precision_recall_f1(gold: Values, predicted: Values) -> dict[str, list[float]]:
    """`precision`, `recall` and `f1` of each label of a multi-label task."""
    import sklearn.metrics

    found = sklearn.metrics.precision_recall_fscore_support(gold, predicted, zero_division=0.0)
    named = zip(("precision", "recall", "f1"), found[:3], strict=True)
    return {name: values.tolist() for name, values in named}


def metric_values(metrics: tuple[str, ...], gold: Values, predicted: Values) -> dict[str, float]:
    """Every named metric."""
    return {name: METRICS[name](gold, predicted) for name in metrics}
