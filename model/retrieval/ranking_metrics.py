"""How good rankings of a whole collection are, by questions whose right answers are known.

In:  per question the ranks of its relevant documents among all, and their grades.
Out: nDCG@10, recall@10 and @100, MRR@10 and MAP, as trec_eval computes them, by question; means and
     differences of means with bootstrap intervals.

All of these depend on the relevant documents alone, so no ranking has to be stored, however large
the collection. A grade counts as gain as it is (Järvelin and Kekäläinen 2002); documents of grade 0
or less are not relevant.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

METRICS = ("ndcg@10", "recall@10", "recall@100", "mrr@10", "map")
HEADLINE = METRICS[0]

RESAMPLES = 2000
"""Bootstrap samples of questions."""
LEVEL = 0.95

# Q questions in G groups, R relevant documents of one, B bootstrap samples


class Relevant(NamedTuple):
    """Where the relevant documents of one question are in a ranking."""

    ranks_R: npt.NDArray[np.int64]
    """From 1."""
    grades_R: Floats
    """Above 0."""


class Interval(NamedTuple):
    """A mean over questions, and the bounds of its bootstrap interval."""

    mean: float
    low: float
    high: float


def measure(found: Relevant) -> dict[str, float]:
    """Each of `METRICS` for one question, from 0 to 1."""
    order = np.argsort(found.ranks_R)
    ranks_R, grades_R = found.ranks_R[order], found.grades_R[order]
    discounts_R = 1 / np.log2(ranks_R + 1)
    # No ranking can gain more than by these, in this order.
    ideal = np.sort(grades_R)[::-1][:10]
    return {
        "ndcg@10": float(
            (grades_R * discounts_R)[ranks_R <= 10].sum()
            / (ideal / np.log2(np.arange(len(ideal)) + 2)).sum()
        ),
        "recall@10": float(np.mean(ranks_R <= 10)),
        "recall@100": float(np.mean(ranks_R <= 100)),
        "mrr@10": float(1 / ranks_R[0]) if ranks_R[0] <= 10 else 0.0,
        # The mean precision at the relevant documents: the k-th of them, at rank r, has k / r.
        "map": float(np.mean((np.arange(len(ranks_R)) + 1) / ranks_R)),
    }


def by_metric(found: Sequence[Relevant]) -> dict[str, Floats]:
    """[Q] each metric's values by question."""
    measured = [measure(one) for one in found]
    return {name: np.array([one[name] for one in measured]) for name in METRICS}


def interval(
    values_Q: Floats, *, level: float = LEVEL, groups_Q: npt.NDArray[np.int64] | None = None
) -> Interval:
    """The mean of values by question, or of differences of two systems on the same questions.

    `groups_Q`: numbers from 0; questions with the same number are drawn together. Each its own
    without.
    """
    groups_Q = np.arange(len(values_Q)) if groups_Q is None else groups_Q
    sums_G, sizes_G = np.bincount(groups_Q, values_Q), np.bincount(groups_Q)
    # The same samples for all: what is compared differs in the systems alone.
    draw = np.random.default_rng(0)
    means_B = []
    for _ in range(RESAMPLES):
        drawn_G = draw.integers(0, len(sums_G), len(sums_G))
        means_B.append(sums_G[drawn_G].sum() / sizes_G[drawn_G].sum())
    low, high = np.quantile(means_B, [(1 - level) / 2, (1 + level) / 2])
    return Interval(float(values_Q.mean()), float(low), float(high))


def intervals(values: Mapping[str, Floats]) -> dict[str, Interval]:
    """The interval of every metric."""
    return {name: interval(values_Q) for name, values_Q in values.items()}
