"""GLUE's metrics, and F1 over several labels.

In:  gold values and predictions: label indices or scores [rows], or which labels [rows, labels].
Out: fractions, by the names used in configurations and `scores.json`.

Matthews, F1 and accuracy are scikit-learn's, the correlations scipy's, as in GLUE's own code.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

Values = NDArray[np.generic]


def accuracy(gold: Values, predicted: Values) -> float:
    """Share of examples with the correct label, or with all labels correct."""
    return float(accuracy_score(gold, predicted))


def f1(gold: Values, predicted: Values) -> float:
    """F1 of label 1 (MRPC, QQP)."""
    return float(f1_score(gold, predicted, zero_division=0.0))


def f1_macro(gold: Values, predicted: Values) -> float:
    """Mean of every label's F1."""
    return float(f1_score(gold, predicted, average="macro", zero_division=0.0))


def f1_micro(gold: Values, predicted: Values) -> float:
    """F1 over all labels of all examples pooled."""
    return float(f1_score(gold, predicted, average="micro", zero_division=0.0))


def matthews(gold: Values, predicted: Values) -> float:
    """Matthews correlation (CoLA); 0 where all predictions are equal."""
    return float(matthews_corrcoef(gold, predicted))


def pearson(gold: Values, predicted: Values) -> float:
    """Pearson correlation (STS-B); 0 where one side is constant."""
    return float(pearsonr(gold, predicted).statistic) if _vary(gold, predicted) else 0.0


def spearman(gold: Values, predicted: Values) -> float:
    """Spearman rank correlation (STS-B); 0 where one side is constant."""
    return float(spearmanr(gold, predicted).statistic) if _vary(gold, predicted) else 0.0


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


def _vary(gold: Values, predicted: Values) -> bool:
    return len(np.unique(gold)) > 1 and len(np.unique(predicted)) > 1
