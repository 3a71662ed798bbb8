"""Which rows to label next.

In:  sentence vectors of all rows, and the labels of some.
Out: rows that are worth labelling, each far from the others and from those that have a label: the
     most typical of every cluster as long as there are no two labels (Hacohen et al. 2022), then
     those that would make a linear head surest about all rows (Ash et al. 2021: BAIT).

Rows whose vectors nearly coincide are taken once.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.rng import address

COPY = 0.98
"""Rows with a larger cosine are copies of each other."""

NEIGHBOURS = 20
"""A row is the more typical, the closer so many rows of its cluster are."""

MOST_CLUSTERED = 500
"""Rows of a cluster among which the most typical is sought."""

MOST_CANDIDATES = 20_000
"""Rows without a label among which the most informative are sought; 0.2 GB for MiniLM."""

SUREST = 0.02
"""Least weight of a row: as of one whose likeliest label has a probability of 0.99. Without it, a
head of few labels that is sure of itself for no reason would not be asked to learn more."""

CONSTANT = 0.5
"""The bias is a coordinate of this value, beside a vector of mean squared length 1."""

SEED_BITS = 32

Vectors = NDArray[np.float32]


def next_rows(
    vectors: Vectors, labels: Sequence[str], probabilities: NDArray[np.float64] | None, count: int
) -> list[int]:
    """Up to `count` rows without a label.

    vectors: [N, H] of length 1; labels: [N], "" for none; probabilities: [N, L] by the labels so
    far, None if there are not at least two.
    """
    known = np.array([label != "" for label in labels])
    # Without a head, the vectors alone must do. From the first head on, its doubts choose better:
    # typical rows until every class had five labels took 1.2 to 1.7 times as many of them.
    if probabilities is None:
        order = _typical(vectors, known, count)
    else:
        order = _informative(vectors, known, probabilities)
    return _without_copies(vectors, np.flatnonzero(known).tolist(), order, count)


def _without_copies(
    vectors: Vectors, known: list[int], order: Iterator[int], count: int
) -> list[int]:
    """The first `count` rows of `order` that are no copies of labelled rows or of each other."""
    # Labelled rows count as taken, so a copy of one is never asked about. `order` is lazy: it is
    # read only until enough rows are left.
    taken, chosen = vectors[known], list[int]()
    for row in order:
        if len(chosen) == count:
            break
        if not len(taken) or float((taken @ vectors[row]).max()) < COPY:
            chosen.append(row)
            taken = np.concatenate((taken, vectors[row][None]))
    return chosen


def _typical(vectors: Vectors, known: NDArray[np.bool_], count: int) -> Iterator[int]:
    """The most typical row of every cluster, those without labels first, the largest first."""
    import sklearn.cluster

    # One cluster for every row asked for and one for each that is known: as many kinds of text as
    # could have been labelled one by one.
    clusters = min(count + int(known.sum()), len(vectors))
    found = sklearn.cluster.MiniBatchKMeans(clusters, random_state=0, n_init=3).fit(vectors)
    members = [np.flatnonzero(found.labels_ == number) for number in range(clusters)]
    # By cluster: how many labels it has, how large it is, its unlabelled rows. Sorted by the first
    # two, kinds that nobody has labelled come first, and of those the most frequent.
    waiting = [
        (int(known[rows].sum()), -len(rows), _by_typicality(vectors, rows[~known[rows]]))
        for rows in members
        if len(rows)
    ]
    # Only the first two are compared: ties keep the clusters' order, and arrays are never compared.
    queues = [rows for _, _, rows in sorted(waiting, key=lambda one: one[:2])]
    # Round robin: the best row of every cluster before the second best of any.
    for rank in range(max(map(len, queues), default=0)):
        yield from (int(rows[rank]) for rows in queues if rank < len(rows))


def _by_typicality(vectors: Vectors, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """These rows, the most typical first."""
    some = rows[:MOST_CLUSTERED]
    # The last column is the row itself. A small cluster has fewer neighbours, a single row none.
    cosines = np.sort(vectors[some] @ vectors[some].T, axis=-1)[:, -NEIGHBOURS - 1 : -1]
    near = cosines.mean(-1) if cosines.shape[1] else np.zeros(len(some))
    ordered: NDArray[np.int64] = np.concatenate(
        (some[np.argsort(-near, kind="stable")], rows[MOST_CLUSTERED:])
    )
    return ordered


def _informative(
    vectors: Vectors, known: NDArray[np.bool_], probabilities: NDArray[np.float64]
) -> Iterator[int]:
    """Rows one by one, each that which lowers the head's mean variance over all rows most.

    The head is taken for a Bayesian linear regression with a normal prior of deviation 1, in which
    a label tells the more, and a row needs the more, the less the head knows the row's label.
    """
    inputs_NH = _with_constant(vectors)
    # The variance of a label that is drawn with these probabilities, relative to the mean's.
    weights_N = 1.0 - (probabilities**2).sum(-1) + SUREST
    weights_N /= weights_N.mean()
    # What is to become sure: the mean over all rows of w x·S·x is the trace of S times this.
    wanted_HH = (inputs_NH * weights_N[:, None]).T @ inputs_NH / len(inputs_NH)
    # S, the covariance of the head's weights after the labels so far.
    seen = inputs_NH[known].astype(np.float64)
    precision_HH = np.eye(inputs_NH.shape[1]) + (seen * weights_N[known][:, None]).T @ seen
    covariance_HH = np.linalg.inv(precision_HH)

    rows, others = _candidates(known)
    left, weights_C = np.ones(len(rows), bool), weights_N[rows]
    inputs_CH = inputs_NH[rows].astype(np.float64)
    # x·S and x·S·W of every candidate. A label of row i takes (S x)(S x)ᵀ / (1 / w + x·S·x) from S,
    # so both are updated by an outer product, and S itself is never needed again.
    spread_CH = inputs_CH @ covariance_HH
    reach_CH = spread_CH @ wanted_HH
    while left.any():
        variance_C = (spread_CH * inputs_CH).sum(-1)
        # By how much the trace of S W falls.
        gain_C = (reach_CH * spread_CH).sum(-1) / (1.0 / weights_C + variance_C)
        place = int(np.where(left, gain_C, -np.inf).argmax())
        yield int(rows[place])
        left[place] = False
        scale = 1.0 / weights_C[place] + variance_C[place]
        shared_C = inputs_CH @ spread_CH[place] / scale
        # Copies of the row's own entries: the updates overwrite them.
        reach_CH -= np.outer(shared_C, reach_CH[place].copy())
        spread_CH -= np.outer(shared_C, spread_CH[place].copy())
    # More rows are asked for than are compared.
    yield from others.tolist()


def _with_constant(vectors: Vectors) -> Vectors:
    """The vectors around 0, of mean squared length 1 as heads see them, and the bias's input."""
    centred = vectors - vectors.mean(0)
    scale = float(np.sqrt((centred**2).sum(-1).mean())) or 1.0
    constant = np.full((len(vectors), 1), CONSTANT, np.float32)
    return np.concatenate((centred / np.float32(scale), constant), axis=1)


def _candidates(known: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Up to `MOST_CANDIDATES` rows without a label, drawn at random; the others."""
    rows = np.flatnonzero(~known)
    if len(rows) > MOST_CANDIDATES:
        rows = np.random.default_rng(address("label") >> (64 - SEED_BITS)).permutation(rows)
    return rows[:MOST_CANDIDATES], rows[MOST_CANDIDATES:]
