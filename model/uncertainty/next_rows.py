"""Which rows to label next.

In:  sentence vectors of all rows, and the labels of some.
Out: rows that are worth labelling, each far from the others and from those that have a label: the
     most typical of every cluster while a class has fewer than `FEW` labels (Hacohen et al. 2022),
     then those that would change a linear head most in different ways (Ash et al. 2020: BADGE).

Rows whose vectors nearly coincide are taken once.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.rng import address

FEW = 5
"""Labels of the rarest class below which typical rows are chosen."""

COPY = 0.98
"""Rows with a larger cosine are copies of each other."""

NEIGHBOURS = 20
"""A row is the more typical, the closer so many rows of its cluster are."""

MOST_CLUSTERED = 500
"""Rows of a cluster among which the most typical is sought."""

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
    counts = [labels.count(label) for label in set(labels) - {""}] if any(known) else [0]
    # A head fitted to a handful of labels is sure of itself where it should not be, so its
    # gradients say little; until every class has a few, rows are chosen by the vectors alone.
    if probabilities is None or min(counts) < FEW:
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
    """Rows drawn one by one, in proportion to the squared distance of their gradients.

    The gradient of a row's likeliest label with respect to the head is the outer product of an
    error per label and its vector; the distance is that from the nearest row drawn before.
    """
    # This is k-means++ in the space of gradients g = error ⊗ vector, of L·H dimensions each, which
    # are never built: g·g' = (error·error') (vector·vector'), and as vectors have length 1, |g|² is
    # the squared error alone.
    rows = np.flatnonzero(~known)
    errors = probabilities[rows].copy()
    # As if the likeliest label were the right one: the gradient is small where the model is sure.
    errors[np.arange(len(rows)), errors.argmax(-1)] -= 1.0
    lengths = (errors**2).sum(-1)
    rng = np.random.default_rng(address("label") >> (64 - SEED_BITS))
    distances = lengths.copy()
    for number in range(len(rows)):
        total = distances.sum()
        # Every row that is left has the gradient of one drawn before; none would teach anything
        # new.
        if total <= 0:
            return
        place = (
            int(lengths.argmax()) if not number else int(rng.choice(len(rows), p=distances / total))
        )
        yield int(rows[place])
        # |g - g'|² = |g|² + |g'|² - 2 g·g', which rounding may bring below 0.
        alike = (errors @ errors[place]) * (vectors[rows] @ vectors[rows[place]])
        distances = np.minimum(distances, np.maximum(lengths + lengths[place] - 2 * alike, 0.0))
        distances[place] = 0.0
