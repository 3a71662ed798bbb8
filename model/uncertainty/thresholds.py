"""Thresholds of labels of which a text may have several: where F1 is largest on held-out rows.

In:  held-out rows, and the threshold of every label so far.
Out: a threshold for each label, if these are better for rows that they were not fitted to.

A rare label seldom reaches a probability of 0.5; of the texts with 0.3, it may be worth naming all.
"""

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.rng import address, permutation
from cloze.model.uncertainty.held_out import Floats, HeldOutRows

States = NDArray[np.bool_]

FEWEST_ROWS = 10
"""With fewer held-out rows that have a label, or lack it, its threshold stays as it is."""

PARTS = 5
"""The rows of each part are judged by the thresholds that suit the others."""


def tuned_thresholds(rows: HeldOutRows, default: float) -> tuple[Floats, Floats] | None:
    """[L] thresholds from all rows, and [N, L] from the rows that are not of the same part.

    None if the mean F1 of the labels is no larger with the latter than with `default`.
    """
    shares, present = rows.probabilities(), rows.targets > 0
    fitted = np.full(shares.shape, default)
    order = permutation(address("thresholds"), len(rows))
    for part in np.array_split(order, min(PARTS, len(rows))):
        others = np.setdiff1d(order, part)
        fitted[part] = _best(shares[others], present[others], default)
    if _mean_f1(shares >= fitted, present) <= _mean_f1(shares >= default, present):
        return None
    return _best(shares, present, default), fitted


def _best(shares: Floats, present: States, default: float) -> Floats:
    """[L] where F1 is largest for these rows."""
    found = np.full(shares.shape[1], default)
    for label in range(shares.shape[1]):
        given = present[:, label]
        if min(given.sum(), (~given).sum()) < FEWEST_ROWS:
            continue
        order = np.argsort(-shares[:, label], kind="stable")
        chances = shares[order, label]
        # Naming the label for the first k rows is right for `hits` of them: F1 = 2 hits / (k +
        # rows with the label).
        hits = np.cumsum(given[order])
        scores = 2 * hits / (np.arange(1, len(order) + 1) + given.sum())
        # A threshold cannot divide rows of the same probability.
        scores[:-1][chances[:-1] == chances[1:]] = 0.0
        last = int(scores.argmax())
        below = chances[last + 1] if last + 1 < len(chances) else 0.0
        # Between the last row that has the label and the first that has not.
        found[label] = np.clip((chances[last] + below) / 2, 1e-6, 1 - 1e-6)
    return found


def _mean_f1(named: States, present: States) -> float:
    """Over labels; 0 for one that is neither given nor named."""
    hits = (named & present).sum(0)
    return float((2 * hits / np.maximum(named.sum(0) + present.sum(0), 1)).mean())
