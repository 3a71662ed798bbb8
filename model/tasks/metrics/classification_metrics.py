"""GLUE's metrics, and F1 over several labels.

In:  gold values and predictions: label indices or scores [rows], or label indicators
     [rows, labels].
Out: fractions, under their names in configurations and `scores.json`.

Accuracy, F1 and Matthews come from scikit-learn, correlations from scipy, as in GLUE's own code.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy as np
import scipy  # imports `scipy.stats` on first use
from numpy.typing import NDArray

Values = NDArray[np.generic]


def _sklearn() -> ModuleType:
    """scikit-learn's metrics; the import takes longer than torch's, and prediction needs none."""
    import sklearn.metrics

    metrics: ModuleType = sklearn.metrics
    return metrics


def accuracy(gold: Values, predicted: Values) -> float:
    """Share of examples with the correct label, or with all labels correct."""
    return float(_sklearn().accuracy_score(gold, predicted))


def f1(gold: Values, predicted: Values) -> float:
    """F1 of label 1 (MRPC, QQP)."""
    return float(_sklearn().f1_score(gold, predicted, zero_division=0.0))


def f1_macro(gold: Values, predicted: Values) -> float:
    """Mean of the labels' F1."""
    return float(_sklearn().f1_score(gold, predicted, average="macro", zero_division=0.0))


def f1_micro(gold: Values, predicted: Values) -> float:
    """F1 over all labels of all examples, pooled."""
    return float(_sklearn().f1_score(gold, predicted, average="micro", zero_division=0.0))


def matthews(gold: Values, predicted: Values) -> float:
    """Matthews correlation (CoLA); 0 if all predictions are equal."""
    return float(_sklearn().matthews_corrcoef(gold, predicted))


def pearson(gold: Values, predicted: Values) -> float:
    """Pearson correlation (STS-B); 0 if either side is constant."""
    return _correlation(scipy.stats.pearsonr, gold, predicted)


def spearman(gold: Values, predicted: Values) -> float:
    """Spearman rank correlation (STS-B); 0 if either side is constant."""
    return _correlation(scipy.stats.spearmanr, gold, predicted)


def precision_recall_f1(gold: Values, predicted: Values) -> dict[str, list[float]]:
    """`precision`, `recall` and `f1` of each label of a multi-label task."""
    found = _sklearn().precision_recall_fscore_support(gold, predicted, zero_division=0.0)
    named = zip(("precision", "recall", "f1"), found[:3], strict=True)
    return {name: values.tolist() for name, values in named}


METRICS: dict[str, Callable[[Values, Values], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "f1_macro": f1_macro,
    "f1_micro": f1_micro,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def measure(metrics: tuple[str, ...], gold: Values, predicted: Values) -> dict[str, float]:
    """Every named metric."""
    return {name: METRICS[name](gold, predicted) for name in metrics}


def _correlation(correlate: Callable[..., Any], gold: Values, predicted: Values) -> float:
    vary = len(np.unique(gold)) > 1 and len(np.unique(predicted)) > 1
    return float(correlate(gold, predicted).statistic) if vary else 0.0
