"""Rows that a model, or its siblings of a cross-validation, has not been trained on.

In:  logits of these rows, and their labels.
Out: `HeldOutRows`, from which calibration, label sets and label errors are all computed; the rows
     that a task's held-out split has.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from cloze.model.tasks.base import Logits, Problem
from cloze.model.tasks.features import Places

Floats = NDArray[np.float64]


def outputs_are_labels(logits: Floats) -> Floats:
    """[N, L] as they are."""
    return logits


@dataclass(frozen=True)
class HeldOutRows:
    """N labelled rows of a task with L labels, predicted by a head of O outputs."""

    logits: Floats
    """[N, O]. A temperature divides these, as it is the head's weights that it is folded into."""

    targets: NDArray[np.int64]
    """[N] indices of the labels; if a text may have several, [N, L] of 0 and 1."""

    label_logits: Callable[[Floats], Floats] = outputs_are_labels
    """From [N, O] to [N, L], whose softmax are the probabilities: `Problem.label_logits`."""

    def __len__(self) -> int:
        return len(self.logits)

    @property
    def exclusive(self) -> bool:
        """Whether every row has exactly one label."""
        return self.targets.ndim == 1

    @property
    def labels(self) -> int:
        """Number of labels."""
        return int(self.label_logits(self.logits).shape[1])

    def take(self, rows: Places) -> "HeldOutRows":
        """These rows, in this order."""
        return replace(self, logits=self.logits[rows], targets=self.targets[rows])

    def cooled(self, temperatures: Sequence[float]) -> "HeldOutRows":
        """The logits divided by one temperature, or by one of each label."""
        return replace(self, logits=self.logits / np.asarray(temperatures, np.float64))

    def log_probabilities(self) -> Floats:
        """[N, L] logarithms of softmax, or of sigmoid if a text may have several labels."""
        if not self.exclusive:
            # log σ(x) = -log(1 + e^-x)
            return -np.logaddexp(0.0, -self.logits)
        logits = self.label_logits(self.logits)
        # Without the maximum, `exp` cannot overflow.
        shifted = logits - logits.max(-1, keepdims=True)
        logs: Floats = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
        return logs

    def probabilities(self) -> Floats:
        """[N, L]."""
        found: Floats = np.exp(self.log_probabilities())
        return found

    def indicators(self) -> Floats:
        """[N, L] 1 for every label that a row has."""
        if self.exclusive:
            return np.eye(self.labels)[self.targets]
        return self.targets.astype(np.float64)

    def losses(self) -> Floats:
        """[N] -log of the probability of each row's label, or the mean over its labels' states."""
        logs = self.log_probabilities()
        if self.exclusive:
            return -logs[np.arange(len(self)), self.targets]
        # log(1 - σ(x)) = log σ(-x)
        absent = -np.logaddexp(0.0, self.logits)
        found: Floats = -np.where(self.targets > 0, logs, absent).mean(-1)
        return found

    def events(self) -> tuple[Floats, Floats]:
        """[N, E] probabilities of events, and 1 for each that has happened.

        The event of a row is that its likeliest label is right; if a text may have several labels,
        there is one event for each, that the row has it.
        """
        shares = self.probabilities()
        if not self.exclusive:
            return shares, self.indicators()
        hits = shares.argmax(-1) == self.targets
        return shares.max(-1)[:, None], hits[:, None].astype(np.float64)


def held_out_rows(problem: Problem, split: str, logits: Logits) -> HeldOutRows | None:
    """The rows of a labelled split with these logits; None if the task has no probabilities."""
    if problem.predicts not in ("label", "labels") or len(problem.labels) < 2:
        return None
    if not problem.labelled(split):
        return None
    targets = problem.targets(split, np.arange(problem.units(split)))
    return HeldOutRows(logits.astype(np.float64), targets.astype(np.int64), problem.label_logits)
