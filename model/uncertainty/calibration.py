"""Calibration: temperatures that make probabilities agree with frequencies (Guo et al. 2017).

In:  held-out rows.
Out: one temperature, or one for each label if a text may have several and the label is neither rare
     nor frequent; the head's weights divided by them; `Calibration`, how good the probabilities
     are before and after.

A temperature divides logits. It is folded into the head's weights, so everything that computes
logits with the saved model gives calibrated probabilities: `predict`, exports, ONNX graphs.
The likeliest label stays the same: labels that exclude each other share one temperature, as one for
each would change which is likeliest, and few rows could not tell so many numbers apart.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import scipy  # imports `scipy.optimize` on first use
import torch
from torch import Tensor

from cloze.artifacts.results import Calibration, Measured, ProbabilityQuality, ReliabilityBin, Split
from cloze.artifacts.rng import address, permutation
from cloze.model.uncertainty.held_out import Floats, HeldOutRows

LOWEST, HIGHEST = 0.002, 50.0
"""Bounds of a temperature. Class means of a thousand rows want less than .02."""

FEWEST_ROWS = 10
"""With fewer held-out rows, or rows with and without a label, no temperature is fitted to them."""

BINS, ROWS_PER_BIN = 15, 40
"""At most so many bins of equal mass, each of at least so many events."""

DRAWS, FEWEST_DRAWS, MOST_DRAWN = 200, 20, 4_000_000
"""Resamples of the rows for an interval, and draws for the error of perfect calibration; fewer
if all of them would have more than `MOST_DRAWN` events."""

PARTS = 5
"""If the rows that temperatures are fitted to are also those they are judged on, the temperatures
for each of so many parts come from the others."""

HEAD = ("head.weight", "head.bias")


def fit_temperatures(rows: HeldOutRows) -> tuple[float, ...]:
    """The temperatures with the smallest log loss; 1 for fewer than `FEWEST_ROWS` rows.

    A weak prior around 1 (deviation 1 of the logarithm) keeps them finite if no row is wrong. One
    that the rows do not speak for is 1, as well: see `_fitted`.
    """
    if len(rows) < FEWEST_ROWS:
        return (1.0,)
    common = _fitted(rows)
    if rows.exclusive:
        return (common,)
    present = rows.targets.sum(0)
    # [L] rows with the label or without it, whichever are fewer.
    rarest = np.minimum(present, len(rows) - present)
    if rarest.max() < FEWEST_ROWS:
        return (common,)
    return tuple(
        _fitted(HeldOutRows(rows.logits[:, [label]], rows.targets[:, [label]]))
        if rarest[label] >= FEWEST_ROWS
        else common
        for label in range(rows.labels)
    )


def _fitted(rows: HeldOutRows) -> float:
    """One temperature for all labels of these rows, or 1 if that explains them as well.

    As well: by Schwarz's criterion, so that a parameter of N rows has to gain log(N) / 2. The
    logarithm of a temperature fitted to 128 rows is off by a quarter, and tuned encoders whose
    probabilities were right had twice the calibration error with it.
    """

    def penalised(logarithm: float) -> float:
        # The sum over rows and labels, where `losses` has means over labels.
        # Searched over logarithms: half and twice the scale are equally far from 1.
        loss = rows.cooled([math.exp(logarithm)]).losses().sum() * (
            1 if rows.exclusive else rows.labels
        )
        # A normal prior of the logarithm, whose deviation is 1.
        return float(loss + logarithm**2 / 2)

    bounds = (math.log(LOWEST), math.log(HIGHEST))
    found = scipy.optimize.minimize_scalar(penalised, bounds=bounds, method="bounded")
    if penalised(0.0) - found.fun <= math.log(len(rows)) / 2:
        return 1.0
    return float(f"{math.exp(found.x):.6g}")


def folded(weights: Mapping[str, Tensor], temperatures: Sequence[float]) -> dict[str, Tensor]:
    """The weights of a model whose logits are divided by the temperatures."""
    # logits / t = (x W + b) / t = x (W / t) + b / t: dividing the weights divides the logits.
    scale = 1.0 / torch.tensor(temperatures, dtype=torch.float32)
    return {
        # The first dimension is that of the labels.
        name: (value * scale.to(value.device)[(...,) + (None,) * (value.ndim - 1)]).to(value.dtype)
        if name in HEAD
        else value
        for name, value in weights.items()
    }


def calibration(
    fitted_to: HeldOutRows, judged_on: HeldOutRows | None, *, split: Split
) -> Calibration:
    """The temperatures for a model, and what they do for the rows `judged_on`.

    None: for the rows that they are fitted to, in parts.
    """
    temperatures = fit_temperatures(fitted_to)
    before = judged_on or fitted_to
    # A temperature judged by the rows that it was fitted to would look better than it is.
    after = judged_on.cooled(temperatures) if judged_on else _cross_fitted(fitted_to)
    return Calibration(
        temperatures=temperatures,
        rows=len(fitted_to),
        split=split,
        before=quality(before),
        after=quality(after),
    )


def _cross_fitted(rows: HeldOutRows) -> HeldOutRows:
    """The rows, each divided by temperatures fitted to the other parts."""
    order = permutation(address("calibration"), len(rows))
    logits = rows.logits.copy()
    for part in np.array_split(order, min(PARTS, len(rows))):
        others = rows.take(np.setdiff1d(order, part))
        # Every row is divided exactly once, by a temperature that has not seen it.
        logits[part] = rows.take(part).cooled(fit_temperatures(others)).logits
    return replace(rows, logits=logits)


def quality(rows: HeldOutRows) -> ProbabilityQuality:
    """Log loss, Brier score and calibration error, with 95 % intervals over rows."""
    losses = rows.losses()
    squares = ((rows.probabilities() - rows.indicators()) ** 2).sum(-1)
    # Labels do not exclude each other, so their mean counts.
    if not rows.exclusive:
        squares /= rows.labels
    chances, happened = rows.events()
    # Bootstrap: rows with replacement, the same for every figure.
    size = (_draws(chances.size), len(rows))
    draws = np.random.default_rng(address("bootstrap")).integers(len(rows), size=size)
    # Unlike the losses, which are means over rows, it has to be binned again for every resample.
    errors = [calibration_error(chances[drawn], happened[drawn]) for drawn in draws]
    return ProbabilityQuality(
        rows=len(rows),
        log_loss=_measured(losses.mean(), losses[draws].mean(-1)),
        brier=_measured(squares.mean(), squares[draws].mean(-1)),
        calibration_error=_measured(calibration_error(chances, happened), errors),
        expected_error=_expected_error(chances),
        reliability=tuple(
            ReliabilityBin(probability=chance, frequency=share, events=count)
            for chance, share, count in _bins(chances, happened)
        ),
    )


def calibration_error(chances: Floats, happened: Floats) -> float:
    """Mean distance of probability and frequency over bins of equal mass, weighted by events."""
    found = _bins(chances, happened)
    return sum(count * abs(chance - share) for chance, share, count in found) / chances.size


def _bins(chances: Floats, happened: Floats) -> list[tuple[float, float, int]]:
    """Mean probability, frequency and number of events of every bin."""
    # Bins of equal mass: with bins of equal width, most of a good model's rows would be in the last
    # one, and the others would hold too few to tell a frequency.
    order = np.argsort(chances, axis=None, kind="stable")
    bins = min(BINS, max(1, len(order) // ROWS_PER_BIN))
    flat, hits = chances.ravel()[order], happened.ravel()[order]
    return [
        (float(part.mean()), float(hit.mean()), len(part))
        for part, hit in zip(np.array_split(flat, bins), np.array_split(hits, bins), strict=True)
    ]


def _expected_error(chances: Floats) -> float:
    """The mean calibration error of as many events that happen with just these probabilities."""
    # The error is a mean of absolute differences, so finite samples give more than 0 even if every
    # probability is right. This is what the measured error is to be compared with.
    rng = np.random.default_rng(address("calibrated"))
    return float(
        np.mean(
            [
                calibration_error(chances, (rng.random(chances.shape) < chances).astype(float))
                for _ in range(_draws(chances.size))
            ]
        )
    )


def _draws(events: int) -> int:
    return min(DRAWS, max(FEWEST_DRAWS, MOST_DRAWN // events))


def _measured(value: float, resampled: Floats | Sequence[float]) -> Measured:
    low, high = np.quantile(np.asarray(resampled), (0.025, 0.975))
    return Measured(value=float(value), low=float(low), high=float(high))
