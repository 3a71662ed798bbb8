"""Labels that are probably wrong: confident learning (Northcutt et al. 2021).

In:  held-out rows, each predicted by a model that was not trained on it.
Out: the rows that are likelier to have another label than the one given, the most suspicious first;
     texts that occur several times with different labels.

A row is counted for a label if its probability reaches the mean probability of the rows that are
given this label. The counts, scaled to the given labels, estimate how many rows of each label
belong to each other one; of these pairs, the rows with the largest difference of probabilities are
suspects ("prune by noise rate" of the paper).
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.model.uncertainty.held_out import Floats, HeldOutRows


@dataclass(frozen=True)
class Suspect:
    """A row whose label is probably wrong."""

    row: int
    """From 0."""

    proposed: int
    """The likelier label."""

    probability: float
    """Of the label that is given."""


def suspects(rows: HeldOutRows) -> list[Suspect]:
    """Rows of one label each whose label is probably wrong, the most suspicious first."""
    shares, given = rows.probabilities(), rows.targets
    joint = confident_joint(shares, given)
    chosen: dict[int, int] = {}
    for label in range(rows.labels):
        members = np.flatnonzero(given == label)
        # The most frequent confusion first: a row that is a suspect of two of them is one of the
        # first only.
        for other in np.argsort(-joint[label], kind="stable").tolist():
            # at most all but one row of a label are wrong
            count = min(int(joint[label, other]), max(len(members) - 1, 0))
            if other == label or not count:
                continue
            margins = shares[members, other] - shares[members, label]
            for place in np.argsort(-margins, kind="stable")[:count].tolist():
                if margins[place] > 0:
                    chosen.setdefault(int(members[place]), other)
    likeliest = shares.argmax(-1)
    found = [
        Suspect(row, int(likeliest[row]), float(shares[row, given[row]])) for row in sorted(chosen)
    ]
    return sorted(found, key=lambda one: (one.probability - shares[one.row].max(), one.row))


def confident_joint(shares: Floats, given: NDArray[np.int64]) -> NDArray[np.int64]:
    """[L, L] estimated rows by given and true label; every row sums to the rows given the label."""
    labels = shares.shape[1]
    present = np.bincount(given, minlength=labels)
    # A label that no row is given has no limit that can be reached.
    limits = np.array(
        [
            shares[given == label, label].mean() if present[label] else np.inf
            for label in range(labels)
        ]
    )
    # The tolerance is for rows with equal probabilities, whose mean may be a rounding error above
    # them.
    reached = np.where(shares >= limits - 1e-6, shares, -1.0)
    true = np.where((reached > 0).any(-1), reached.argmax(-1), -1)
    counts = np.zeros((labels, labels))
    counted = true >= 0
    np.add.at(counts, (given[counted], true[counted]), 1)
    # A label that none of its own rows has reached is taken to have one right: without any count,
    # there would be nothing to scale.
    np.fill_diagonal(counts, np.maximum(np.diag(counts), 1))
    scaled = counts / counts.sum(-1, keepdims=True) * present[:, None]
    return np.array([_rounded(row) for row in scaled])


def _rounded(values: Floats) -> NDArray[np.int64]:
    """Whole numbers with the same sum, the largest remainders rounded up."""
    whole = np.floor(values).astype(np.int64)
    missing = round(float(values.sum())) - int(whole.sum())
    whole[np.argsort(-(values - whole), kind="stable")[:missing]] += 1
    return whole


def contradictions(texts: Sequence[str], labels: Sequence[str]) -> list[list[int]]:
    """Rows of every text that occurs with different labels, without regard to case and spaces."""
    groups: dict[str, list[int]] = defaultdict(list)
    for row, text in enumerate(texts):
        groups[" ".join(text.lower().split())].append(row)
    return [rows for rows in groups.values() if len({labels[row] for row in rows}) > 1]
