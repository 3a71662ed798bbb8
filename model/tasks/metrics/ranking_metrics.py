"""Ranking metrics: nDCG, recall and reciprocal rank, each at a cut-off.

In:  for each query, the ranked candidates, best first, and the relevant ones.
Out: means over the queries, as fractions.

Relevance is binary: a hit at rank r gains 1 / log2(r + 1) (Järvelin and Kekäläinen 2002). MRR@10 is
MS MARCO's.
"""

from collections.abc import Callable, Collection, Sequence

import numpy as np
from numpy.typing import NDArray

DEPTH = 100
"""Number of ranks kept for every query."""

Hits = NDArray[np.bool_]

# Q queries, R ranks


def ndcg(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """Discounted cumulative gain of the first `count` ranks, divided by the ideal one."""
    discounts_R = 1 / np.log2(np.arange(count) + 2)
    gains_Q = hits_QR[:, :count] @ discounts_R[: hits_QR.shape[1]]
    best_Q = np.cumsum(discounts_R)[np.minimum(relevant_Q, count) - 1]
    return float(np.mean(gains_Q / best_Q))


def recall(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """Share of a query's relevant candidates among the first `count` ranks."""
    return float(np.mean(hits_QR[:, :count].sum(1) / relevant_Q))


def reciprocal_rank(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """1 / rank of the first hit; 0 without a hit among the first `count` ranks."""
    first = hits_QR[:, :count]
    return float(np.mean(first.any(1) / (first.argmax(1) + 1)))


METRICS: dict[str, Callable[[Hits, NDArray[np.int64], int], float]] = {
    "ndcg": ndcg,
    "recall": recall,
    "mrr": reciprocal_rank,
}


def measure_ranking(
    metrics: Sequence[str], ranked: Sequence[Sequence[int]], relevant: Sequence[Collection[int]]
) -> dict[str, float]:
    """Every named metric: `ndcg@10`, `recall@1`, `mrr@10`, any rank up to `DEPTH`."""
    deepest = max(map(len, ranked))
    hits_QR = np.zeros((len(ranked), deepest), np.bool_)
    for query, (candidates, wanted) in enumerate(zip(ranked, relevant, strict=True)):
        hits_QR[query, : len(candidates)] = np.isin(candidates, list(wanted))
    relevant_Q = np.array([len(wanted) for wanted in relevant])
    found = {}
    for name in metrics:
        metric, _, count = name.partition("@")
        found[name] = METRICS[metric](hits_QR, relevant_Q, int(count))
    return found
