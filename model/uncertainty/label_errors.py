"""Labels that are probably wrong: confident learning (Northcutt et al. 2021).

In:  held-out rows, each predicted by models that were not trained on it.
Out: the rows that are likelier to have another label than the one given, the most suspicious first,
     and how many of them are probably wrong, not merely doubtful; texts that occur several times
     with different labels.

A row is counted for a label if its probability reaches the mean probability of the rows that are
given this label. The counts, scaled to the given labels, estimate how many labels are wrong; at
most as many rows are suspects, those whose given label is least probable ("low self-confidence").
Pruning each pair of labels by its own count, as the paper does, finds fewer planted errors where
labels are many or hard to tell apart.

A model that errs in two of five rows makes that estimate two fifths, whatever the labels are. But
it is calibrated: how many rows would have so improbable labels if all were right, its own
probabilities say. Rows are probably wrong as far as there are more than that, and doubtful beyond.
Where texts are hard to tell apart, most wrong labels are among the doubtful, so these are listed as
far as somebody would read; but only the others are left out of training, or counted as wrong.
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
    """Whether it is among the rows with labels more improbable than chance explains."""


SHORT_LIST = 10
"""So many suspects are listed whatever chance explains: in a small table it explains any one."""

READ_THROUGH = 0.15
"""Share of the rows that somebody in doubt would read. So many are listed even of a right table, as
doubtful: a cut by what is beyond chance hid half of the wrong labels of SST-2, of which a head on
vectors gets a quarter wrong by itself (benchmarks/results/label_errors.json)."""

LISTED = 5
"""Times as many are listed as are beyond chance, where wrong labels are very many."""

DEVIATIONS = 2.0
"""Standard deviations by which labels are more improbable than by chance."""


def suspects(rows: HeldOutRows) -> list[Suspect]:
    """Rows of one label each whose label is probably wrong, the most suspicious first."""
    shares, given = rows.probabilities(), rows.targets
    joint = confident_joint(shares, given)
    sure, _ = beyond_chance(rows)
    listed = max(SHORT_LIST, round(READ_THROUGH * len(rows)), LISTED * sure)
    most = min(int(joint.sum() - np.trace(joint)), listed)
    likeliest, own = shares.argmax(-1), shares[np.arange(len(rows)), given]
    left, found = np.bincount(given, minlength=rows.labels), list[Suspect]()
    for place, row in enumerate(np.argsort(own, kind="stable").tolist()):
        if len(found) == most:
            break
        # Of no label are all rows wrong: the last one says what the label means.
        if likeliest[row] != given[row] and left[given[row]] > 1:
            left[given[row]] -= 1
            found.append(Suspect(row, int(likeliest[row]), float(own[row]), place < sure))
    return found


def beyond_chance(rows: HeldOutRows) -> tuple[int, float]:
    """Rows with labels more improbable than chance explains, and how many of them it explains.

    Of labels drawn from calibrated probabilities, those with one of at most p are expected to be as
    many as all such probabilities of all rows together. `p` is where most rows are beyond that
    number and its deviation.
    """
    # The mean of several models is less sure than each of them: it is calibrated again.
    shares = rows.cooled(fit_temperatures(rows)).probabilities()
    own = np.sort(shares[np.arange(len(rows)), rows.targets])
    every = np.sort(shares, axis=None)
    expected = np.cumsum(every)[np.searchsorted(every, own, side="right") - 1]
    beyond = np.arange(1, len(own) + 1) - expected - DEVIATIONS * np.sqrt(expected)
    best = int(beyond.argmax())
    return (best + 1, float(expected[best])) if beyond[best] > 0 else (0, 0.0)


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
