"""Means, spreads and differences over seeds.

In:  one figure per seed.
Out: what a table shows: mean, median, standard error; and the difference of two systems with its
     own standard error, paired where both ran the same seeds.

Standard errors are over seeds (sample deviation / sqrt(n)), not over the test set's examples.
"""

import math
import statistics
from collections.abc import Mapping, Sequence

from artifacts.config import Config


class Summary(Config):
    """Figures of one system on one split."""

    values: tuple[float, ...]
    """One per seed, in the seeds' order; one value for a system without chance."""

    mean: float
    """Arithmetic mean."""

    standard_error: float
    """Of the mean; 0 for a single value."""

    median: float
    """Middle value."""

    minimum: float
    """Worst."""

    maximum: float
    """Best."""


class Difference(Config):
    """Mean of one system minus mean of another."""

    mean: float
    """The difference."""

    standard_error: float
    """Of the difference."""

    paired: bool
    """Taken seed by seed."""


def summarise(values: Sequence[float]) -> Summary:
    """The summary of at least one value."""
    return Summary(
        values=tuple(values),
        mean=statistics.fmean(values),
        standard_error=standard_error(values),
        median=statistics.median(values),
        minimum=min(values),
        maximum=max(values),
    )


def standard_error(values: Sequence[float]) -> float:
    """Sample standard deviation / sqrt(n); 0 for fewer than two values."""
    return statistics.stdev(values) / math.sqrt(len(values)) if len(values) > 1 else 0.0


def difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Difference:
    """The difference of two systems' figures by seed.

    With the same two or more seeds on both sides it is paired: chance they share (the order of the
    data) cancels. Otherwise the two standard errors add in quadrature; a system without chance
    (one value) adds nothing.
    """
    mean = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    if len(ours) > 1 and ours.keys() == theirs.keys():
        gaps = [ours[seed] - theirs[seed] for seed in sorted(ours)]
        return Difference(mean=mean, standard_error=standard_error(gaps), paired=True)
    apart = math.hypot(standard_error([*ours.values()]), standard_error([*theirs.values()]))
    return Difference(mean=mean, standard_error=apart, paired=False)
