"""Differences of means over seeds, and when they are called real.

In:  the scores of two systems by seed.
Out: `Gap`: the difference with its standard error, its 95 % interval and the p-value of a two-sided
     t-test; then, for all differences of a table together, p-values after Holm's correction.

The rule, for every table and report: a difference is real if it is measured with at least
`MIN_SEEDS` seeds and its corrected p-value is at most `LEVEL`. If nothing differs, at most 5 % of
tables then name any difference, whatever the number of tasks and seeds (Holm 1979). What the test
sees is chance between seeds; the development or test rows are the same ones for all of them.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import scipy  # imports `scipy.special` on first use

LEVEL = 0.05
"""The share of tables without any difference that may name one."""

MIN_SEEDS = 3
"""Fewer seeds give no verdict: two values hardly determine a standard error."""


class Gap(NamedTuple):
    """Mean of one system minus the mean of another."""

    mean: float
    standard_error: float
    paired: bool
    """Whether both have the same seeds, so that shared effects such as the order of data cancel."""

    freedom: float
    """Degrees of freedom of the standard error; 0 if the seeds do not determine one."""

    @property
    def p_value(self) -> float | None:
        """Of a two-sided t-test; None if the seeds gave equal scores or are too few."""
        if not self.freedom or not self.standard_error:
            return None
        return float(2 * scipy.special.stdtr(self.freedom, -abs(self.mean) / self.standard_error))

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % interval, uncorrected; None where there is no p-value."""
        if not self.freedom or not self.standard_error:
            return None
        reach = float(scipy.special.stdtrit(self.freedom, 1 - LEVEL / 2)) * self.standard_error
        return self.mean - reach, self.mean + reach


def gap(ours: Mapping[int, float], theirs: Mapping[int, float]) -> Gap:
    """The difference of two systems' scores by seed, with its standard error over seeds.

    Paired with the same two or more seeds on both sides; else Welch's test, in which a
    deterministic system, which has a single value, adds no error.
    """
    mean = statistics.fmean(ours.values()) - statistics.fmean(theirs.values())
    paired = len(ours) > 1 and ours.keys() == theirs.keys()
    # Paired: one sample, of differences. Otherwise one of each side that varies.
    sides = (
        [[ours[seed] - theirs[seed] for seed in sorted(ours)]]
        if paired
        else [[*side.values()] for side in (ours, theirs) if len(side) > 1]
    )
    shares = [(_share(values), len(values) - 1) for values in sides]
    total = sum(share for share, _ in shares)
    parts = sum(share**2 / freedom for share, freedom in shares)  # Welch and Satterthwaite
    return Gap(mean, math.sqrt(total), paired, total**2 / parts if parts else 0.0)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values of one table, corrected for their number; None stays None and does not count."""
    known = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    # The smallest of n is multiplied by n, the next by n - 1, …, and none falls below an earlier
    # one.
    for rank, (p, place) in enumerate(known):
        largest = max(largest, min(1.0, p * (len(known) - rank)))
        corrected[place] = largest
    return corrected


def is_real(corrected: float | None, *, seeds: int) -> bool | None:
    """Whether a difference with this corrected p-value is real; None if the seeds cannot tell."""
    return None if seeds < MIN_SEEDS or corrected is None else corrected <= LEVEL


def _share(values: Sequence[float]) -> float:
    """Square of the standard error of the mean; rounding differences of equal values are none."""
    found = statistics.variance(values) / len(values)
    return found if math.sqrt(found) > 1e-12 * max(map(abs, values)) else 0.0
