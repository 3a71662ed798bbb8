"""Label sets and intervals that hold the truth with a given probability (Vovk et al. 2005).

In:  how far the model was off on held-out rows: nonconformity scores.
Out: for any confidence, the labels that are not further off than that share of the held-out rows
     were; for numbers, the interval of such answers. Coverage and size of the sets, and the risk of
     answering only the surest rows, as measured.

If held-out and new rows are exchangeable, the truth is in the set with at least the given
probability, averaged over both (split conformal prediction). With scores of a cross-validation,
whose models have seen fewer rows than the final one, this holds approximately.

A row's score is 1 minus the probability of its label (Sadinle et al. 2019); of each label's state,
if a text may have several; the absolute error of a number.
"""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.results import Coverage, Reliance, RiskPoint, Split
from cloze.artifacts.rng import address, permutation
from cloze.model.uncertainty.held_out import Floats, HeldOutRows

LEVELS = (0.8, 0.9, 0.95)
"""Confidences that the report shows."""

PARTS = 5
"""Without other labelled rows, each of so many parts is judged by the scores of the others."""

CURVE_POINTS = 20

States = NDArray[np.bool_]


def nonconformity(rows: HeldOutRows) -> Floats:
    """[N, 1] of each row's label, or [N, L] of the state of every label."""
    shares = rows.probabilities()
    if rows.exclusive:
        return 1.0 - shares[np.arange(len(rows)), rows.targets][:, None]
    # Of several labels, each is a question with two answers; the score is that of the right one.
    return np.where(rows.targets > 0, 1.0 - shares, shares)


def limits(scores: Sequence[Sequence[float]] | Floats, confidence: float) -> Floats:
    """[1 or L] the largest score allowed, from scores by label; infinite for too few rows."""
    found = []
    # Among n held-out rows and a new one, all exchangeable, the new one's score is among the k
    # smallest of n + 1 with probability k / (n + 1). So k = ⌈(n + 1) · confidence⌉, and the limit
    # is the k-th smallest score; beyond n, no finite limit would do.
    for column in np.atleast_2d(np.asarray(scores, np.float64)):
        # tolerance: (9 + 1) * 0.9 is a little more than 9 in floating point
        place = math.ceil((len(column) + 1) * confidence - 1e-9)
        found.append(math.inf if place > len(column) else np.sort(column)[max(place, 1) - 1])
    return np.array(found)


def label_sets(probabilities: Floats, limit: Floats) -> States:
    """[N, L] whether each label is in the set of its row."""
    sets: States = 1.0 - probabilities <= limit
    return sets


def label_states(probabilities: Floats, limit: Floats) -> tuple[States, States]:
    """[N, L] twice: whether a row may have a label, and whether it may lack it."""
    return 1.0 - probabilities <= limit, probabilities <= limit


def reliance(fitted_to: HeldOutRows, judged_on: HeldOutRows | None, *, split: Split) -> Reliance:
    """Coverage and size of the sets, and errors by the share of rows answered.

    Of the rows `judged_on`; None: of those that the scores are from, in parts.
    """
    # A row must not be covered by a limit that it has helped to set.
    pairs = [(fitted_to, judged_on)] if judged_on else _in_parts(fitted_to)
    found = []
    for level in LEVELS:
        covered, sizes = zip(*(_judged(scored, rows, level) for scored, rows in pairs), strict=True)
        every, size = np.concatenate(covered), np.concatenate(sizes)
        found.append(
            Coverage(
                confidence=level,
                coverage=float(every.mean()),
                size=float(size.mean()),
                empty=float((size == 0).mean()),
                single=float((size == 1).mean()),
            )
        )
    return Reliance(split=split, coverage=tuple(found), risk=risk(judged_on or fitted_to))


def _in_parts(rows: HeldOutRows) -> list[tuple[HeldOutRows, HeldOutRows]]:
    order = permutation(address("conformal"), len(rows))
    parts = np.array_split(order, min(PARTS, len(rows)))
    return [(rows.take(np.setdiff1d(order, part)), rows.take(part)) for part in parts]


def _judged(scored: HeldOutRows, rows: HeldOutRows, level: float) -> tuple[Floats, Floats]:
    """[rows × 1 or L] whether the truth is in its set, and the size of that set."""
    limit = limits(nonconformity(scored).T, level)
    covered = (nonconformity(rows) <= limit).astype(np.float64)
    shares = rows.probabilities()
    if rows.exclusive:
        return covered.ravel(), label_sets(shares, limit).sum(-1).astype(np.float64)
    present, absent = label_states(shares, limit)
    return covered.ravel(), (present.astype(np.float64) + absent).ravel()


def risk(rows: HeldOutRows) -> tuple[RiskPoint, ...]:
    """The share of wrong answers among the surest rows, by how many are answered."""
    shares = rows.probabilities()
    if rows.exclusive:
        # How sure an answer is: the probability of the label that is answered.
        sure, wrong = shares.max(-1), shares.argmax(-1) != rows.targets
    else:
        sure = np.maximum(shares, 1 - shares).ravel()
        wrong = ((shares >= 0.5) != (rows.targets > 0)).ravel()
    # Place k - 1: the error rate if only the k surest are answered.
    rates = np.cumsum(wrong[np.argsort(-sure, kind="stable")]) / np.arange(1, len(sure) + 1)
    places = np.unique(np.linspace(1, len(sure), min(CURVE_POINTS, len(sure))).round().astype(int))
    return tuple(
        RiskPoint(answered=place / len(sure), errors=float(rates[place - 1])) for place in places
    )
