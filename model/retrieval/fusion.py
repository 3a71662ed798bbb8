"""Rankings of passages by vectors, by words, or by both.

In:  for one question the cosine and the BM25 score of passages, and how these scores are
     distributed over the collection.
Out: scores of the ranking, and the best rows; scores with those of a reranker, and with feedback.

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

STANDING = 3.5
"""Standard deviations by which passages stand out (standing.py) where vectors have that weight:
with an English encoder 4.1 and more on five English, German and Spanish collections, fewer on eight
in other languages, where words alone were better (benchmarks/results/foreign_search.json)."""

RERANKER_WEIGHT = 0.25
"""Of a reranker's score beside that of the hybrid ranking: where one helps it gains nearly as much
as with twice this weight, and where it does harm a third (benchmarks/results/reranking.json)."""

FEEDBACK_WEIGHT = 0.3
"""Of likeness to the passage that comes first, beside a reranker; without one nothing is added.
Where many passages are right it gains one or two points, and where one is it costs a fourth of one
(benchmarks/results/reranking.json)."""

WITHIN = 3.0
"""Standard deviations behind the first passage up to which others are read by a reranker: of 1,500
questions on 1,581 paragraphs, whose right one is among the first 50 for 99.5 %, it is left out for
0.6 %, and 9 are read instead of 50 (benchmarks/results/reranking.json)."""

NOISE = 1e-6
"""Standard deviation of cosines that are equal but for rounding, which must not be scaled up."""

PART, ROWS_OF_MAXIMUM = 1 << 16, 512
"""Scores processed at once, and scores of which only the best one is looked at first."""

# N passages, K best rows, D reranked ones


def weight_of_vectors(standing: float) -> float:
    """The weight of vectors by which passages stand out so far: less where it is chance."""
    return round(WEIGHT * min(1.0, max(0.0, standing) / STANDING), 2)


class Spread(NamedTuple):
    """How the scores of all passages of the collection are distributed for a question."""

    mean: float
    deviation: float


def spread_of(scores_N: Scores) -> Spread:
    """Mean and standard deviation."""
    mean = float(scores_N.mean(dtype=np.float64))
    # Part by part, which stays in the cache: NumPy's own would write out the squares of a million
    # scores in float64.
    squares = 0.0
    for start in range(0, len(scores_N), PART):
        apart = scores_N[start : start + PART] - np.float32(mean)
        squares += float(apart @ apart)
    return Spread(mean, (squares / len(scores_N)) ** 0.5)


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


def reranked(found_D: Scores, read_D: Scores, *, weight: float) -> Scores:
    """[D] the scores by which passages were found, and `weight` of those of a reranker."""
    # Neither replaces the other: words and vectors see the whole collection, the reranker how
    # question and passage fit. Its scores are log-odds, and not standardised: one that has learned
    # little tells passages apart by little, and so changes little.
    return found_D + np.float32(weight) * read_D


def with_feedback(scores_D: Scores, like_D: Scores, *, weight: float) -> Scores:
    """[D] scores, and `weight` of each passage's likeness to the one that they rank first.

    What is right for a question resembles what else is right for it, so the first answer is asked
    like a question (feedback without a user: Rocchio 1971; Croft and Harper 1979).
    """
    if not weight or len(scores_D) < 2:
        return scores_D
    # Its likeness to itself says nothing. It stays first, so it gets that of the most alike.
    first = int(scores_D.argmax())
    others_D = like_D.copy()
    others_D[first] = np.delete(like_D, first).max()
    return scores_D + np.float32(weight) * others_D


def best_rows(scores_N: Scores, count: int) -> npt.NDArray[np.int64]:
    """[K] the `count` best rows, best first; of equal scores the first rows."""
    kept = min(count, len(scores_N))
    # If the maxima of K parts reach a score, so do K rows. That bound costs one pass over the
    # scores, where `np.partition` moves all of them about; it leaves a few rows more than K.
    whole = len(scores_N) // ROWS_OF_MAXIMUM * ROWS_OF_MAXIMUM
    maxima = scores_N[:whole].reshape(-1, ROWS_OF_MAXIMUM).max(1)
    bound = _kth(maxima, kept) if len(maxima) >= kept else -np.inf
    rows = np.flatnonzero(scores_N >= bound)
    reached = scores_N[rows]
    least = _kth(reached, kept)
    # `argpartition` would choose freely among rows with just this score; these are the first.
    better, equal = np.flatnonzero(reached > least), np.flatnonzero(reached == least)
    chosen = np.concatenate([better, equal[: kept - len(better)]])
    rows_K: npt.NDArray[np.int64] = rows[chosen[np.argsort(-reached[chosen], kind="stable")]]
    return rows_K


def _kth(scores: Scores, count: int) -> np.float32:
    """The `count`-th best score."""
    found: np.float32 = np.partition(scores, len(scores) - count)[len(scores) - count]
    return found


def rows_within(scores_N: Scores, count: int, *, off: float) -> npt.NDArray[np.int64]:
    """Rows that may be among the best `count` if every score may be off by `off`, ascending."""
    # The K-th best may be `off` too high, and a row `off` too low.
    least = scores_N[best_rows(scores_N, count)[-1]] - 2 * off
    return np.flatnonzero(scores_N >= least)


def rank_of(scores_N: Scores, row: int) -> int:
    """The rank of a row, from 1; equal scores share the best one."""
    return int(np.count_nonzero(scores_N > scores_N[row])) + 1
