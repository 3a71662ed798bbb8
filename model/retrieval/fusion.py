"""Rankings of passages by vectors, by words, or by both.

In:  for one question the cosine and the BM25 score of passages, and how these scores are
     distributed over the collection.
Out: scores of the ranking, and the best rows.

Both are standardised, so that they count in units of their own spread over the collection, and
added with a weight (a convex combination, which beats reciprocal ranks: Bruch et al. 2023).
"""

from collections.abc import Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

Scores = npt.NDArray[np.float32]
Ranking = Literal["hybrid", "vectors", "lexical"]

WEIGHT = 0.65
"""Weight of the vectors, the rest is that of the words (benchmarks/results/search_quality.json)."""

NOISE = 1e-6
"""Standard deviation of cosines that are equal but for rounding, which must not be scaled up."""

# N passages, K best rows


class Spread(NamedTuple):
    """How the scores of all passages of the collection are distributed for a question."""

    mean: float
    deviation: float


def spread_of(scores_N: Scores) -> Spread:
    """Mean and standard deviation."""
    return Spread(float(scores_N.mean(dtype=np.float64)), float(scores_N.std(dtype=np.float64)))


def fused(by: Mapping[str, Scores], spreads: Mapping[str, Spread], *, weight: float) -> Scores:
    """[N] the scores of the ranking: those given, or the weighted sum of both, standardised."""
    if len(by) == 1:
        return next(iter(by.values()))
    # Cosines may all lie between .7 and .9, and BM25 scores between 0 and 30: only in units of
    # their own spread can the two be added. It is the spread over all passages, so that a passage's
    # score does not depend on which others are ranked with it.
    weights = {"vectors": weight, "lexical": 1 - weight}
    total_N = np.zeros(len(by["vectors"]), np.float32)
    for name, share in weights.items():
        mean, deviation = spreads[name]
        # Otherwise no word of the question occurs anywhere, or all passages have one vector.
        if deviation > NOISE:
            total_N += np.float32(share / deviation) * (by[name] - np.float32(mean))
    return total_N


def best_rows(scores_N: Scores, count: int) -> npt.NDArray[np.int64]:
    """[K] the `count` best rows, best first; of equal scores the first rows."""
    kept = min(count, len(scores_N))
    # The K-th best score, in linear time. `argpartition` would choose freely among rows with just
    # this score; taking all of them and sorting stably keeps the first ones.
    least = np.partition(scores_N, len(scores_N) - kept)[len(scores_N) - kept]
    rows_K = np.flatnonzero(scores_N >= least)
    return rows_K[np.argsort(-scores_N[rows_K], kind="stable")][:kept]


def rank_of(scores_N: Scores, row: int) -> int:
    """The rank of a row, from 1; equal scores share the best one."""
    return int(np.count_nonzero(scores_N > scores_N[row])) + 1
