"""Labels that are probably wrong: confident learning (Northcutt et al. 2021).

In:  held-out rows, each predicted by models that were not trained on it.
Out: the rows that are likelier to have another label than the one given, the most suspicious first;
     texts that occur several times with different labels.

A row is counted for a label if its probability reaches the mean probability of the rows that are
given this label. The counts, scaled to the given labels, estimate how many labels are wrong; as
many rows are suspects, those whose given label is least probable ("low self-confidence"). Pruning
each pair of labels by its own count, as the paper does, finds fewer planted errors where labels are
many or hard to tell apart.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cloze.model.uncertainty.calibration import fit_temperatures
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

    clear: bool
    """Whether the proposed label is at least `CLEAR` times as probable."""


CLEAR = 5.0
"""Two of three suspects so clear were planted errors (five draws of four tables, a tenth of the
labels wrong), of all suspects a third; training without these costs more rows than it mends."""


def suspects(rows: HeldOutRows) -> list[Suspect]:
    """Rows of one label each whose label is probably wrong, the most suspicious first."""
    shares, given = rows.probabilities(), rows.targets
    joint = confident_joint(shares, given)
    wrong = int(joint.sum() - np.trace(joint))
    likeliest, own = shares.argmax(-1), shares[np.arange(len(rows)), given]
    left, found = np.bincount(given, minlength=rows.labels), list[Suspect]()
    for row in np.argsort(own, kind="stable").tolist():
        if len(found) == wrong:
            break
        # Of no label are all rows wrong: the last one says what the label means.
        if likeliest[row] != given[row] and left[given[row]] > 1:
            left[given[row]] -= 1
            clear = bool(shares[row].max() >= CLEAR * own[row])
            found.append(Suspect(row, int(likeliest[row]), float(own[row]), clear))
    return found


def pooled(models: Sequence[HeldOutRows]) -> HeldOutRows:
    """The same rows by several models at once: the mean of their calibrated log probabilities.

    A model that knows little has a high temperature, and so says little.
    """
    logs = [one.cooled(fit_temperatures(one)).log_probabilities() for one in models]
    return HeldOutRows(np.mean(logs, axis=0), models[0].targets)


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
