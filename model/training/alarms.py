"""Warnings about runs that look alive and are not.

In:  every step's record; the unigram entropy of the masked tokens.
Out: sentences for a person, each kind at most once in a while.

The complaint most often heard about BERT: the next-sentence loss falls while the masked-LM loss
sits at the unigram entropy, that is, the model has learnt word frequencies and nothing else.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

SILENCE = 500
"""Steps between two warnings of one kind."""

SPIKE_WINDOW = 128
SPIKE_SIGMAS = 6.0


class Observed(Protocol):
    """What is looked at in a step."""

    @property
    def step(self) -> int:
        """Steps done."""

    @property
    def masked_lm_loss(self) -> float:
        """Nats per masked token."""

    @property
    def seconds(self) -> float:
        """Duration."""

    @property
    def waited(self) -> float:
        """Part of it spent waiting for a batch."""

    @property
    def imbalance(self) -> float:
        """Largest rank's work over the mean, minus 1."""


@dataclass
class Alarms:
    """Watches the steps of one run."""

    unigram_entropy: float
    patience: int = 2000
    """Steps after which a loss at the unigram entropy is worth a warning."""
    _losses: deque[float] = field(default_factory=lambda: deque(maxlen=SPIKE_WINDOW))
    _waits: deque[float] = field(default_factory=lambda: deque(maxlen=SPIKE_WINDOW))
    _silent_until: dict[str, int] = field(default_factory=dict)

    def check(self, record: Observed) -> list[str]:
        """Warnings that this step gives rise to."""
        found = [
            sentence
            for kind, sentence in self._sentences(record)
            if self._silent_until.get(kind, 0) <= record.step
            and self._silent_until.update({kind: record.step + SILENCE}) is None
        ]
        self._losses.append(record.masked_lm_loss)
        self._waits.append(record.waited / max(record.seconds, 1e-9))
        return found

    def _sentences(self, record: Observed) -> Iterator[tuple[str, str]]:
        if len(self._losses) == SPIKE_WINDOW:
            yield from self._about_losses(record)
            yield from self._about_input()
        if record.imbalance > 0.25:
            yield (
                "balance",
                f"the busiest rank has {record.imbalance:.0%} more work than the mean at step "
                f"{record.step}; raise batch_size or use fewer ranks",
            )

    def _about_losses(self, record: Observed) -> Iterator[tuple[str, str]]:
        mean = sum(self._losses) / SPIKE_WINDOW
        if self._is_spike(record.masked_lm_loss):
            yield (
                "spike",
                f"masked-LM loss {record.masked_lm_loss:.3f} at step {record.step}, mean of the "
                f"last {SPIKE_WINDOW} steps {mean:.3f}; if it stays high, lower learning_rate",
            )
        if record.step >= self.patience and abs(mean - self.unigram_entropy) < 0.1:
            yield (
                "stuck",
                f"masked-LM loss is at the unigram entropy {self.unigram_entropy:.2f} after "
                f"{record.step} steps: only word frequencies are being learnt; go on, change "
                "learning_rate (too high looks like too low), or look at the examples",
            )

    def _about_input(self) -> Iterator[tuple[str, str]]:
        share = sum(self._waits) / SPIKE_WINDOW
        if share > 0.1:
            yield (
                "input",
                f"{share:.0%} of the time is spent waiting for batches; "
                "put the examples on a faster disk",
            )

    def _is_spike(self, loss: float) -> bool:
        mean = sum(self._losses) / SPIKE_WINDOW
        variance = sum((past - mean) ** 2 for past in self._losses) / SPIKE_WINDOW
        return not loss <= mean + SPIKE_SIGMAS * math.sqrt(variance) + 1e-3


def entropy(counts: NDArray[np.integer]) -> float:
    """Entropy in nats of a distribution given by counts; 0 without any."""
    share = counts[counts > 0] / max(int(counts.sum()), 1)
    return float(-(share * np.log(share)).sum())
