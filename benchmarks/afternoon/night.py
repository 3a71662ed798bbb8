"""What a night would buy: the loss of pre-training, extrapolated from the course of an afternoon.

    python benchmarks/afternoon/night.py METRICS --hours 8

In:  metrics.jsonl of a run whose schedule is `wsd`.
Out: benchmarks/results/afternoon_night.json: the curve a + b · step^-c of the training loss at the
     peak rate, what the final decay gained, and both at the end of a night of the same core. How
     far such a curve is to be trusted: one fitted to the first half, beside what the second was.

A loss of so many steps is a forecast; the tasks' scores are not forecast, since they do not follow
the loss (afternoon.json).
"""

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import curve_fit

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.afternoon.curve import course
from benchmarks.measuring import Arguments, Figures, machine, write_result

Numbers = NDArray[np.float64]

PLATEAU = 1500
"""Steps after which the loss falls as a power of the steps, no longer as word frequencies."""


def power(steps: Numbers, a: float, b: float, c: float) -> Numbers:
    """The loss after so many thousand steps."""
    return a + b * steps**-c


def fitted(steps: Numbers, losses: Numbers) -> Numbers:
    """[a, b, c] of the curve."""
    found, _ = curve_fit(power, steps / 1000, losses, p0=(2.5, 2.0, 0.3))
    return np.asarray(found)


def main() -> None:
    """Fit, test the fit, extrapolate."""
    parser = Arguments(__doc__, output="afternoon_night.json")
    parser.add_argument("metrics", type=Path)
    parser.add_options(hours=8.0, decay_share=0.2)
    arguments = parser.parse_args()
    # A run that was continued has decayed twice: what counts is the rate of each line.
    rows = course(arguments.metrics)
    peak = max(row["rate"] for row in rows)
    flat = [row for row in rows if row["step"] > PLATEAU and row["rate"] > 0.999 * peak]
    steps, losses = np.array([(row["step"], row["loss"]) for row in flat], np.float64).T
    last, share = rows[-1], arguments.decay_share
    curve = fitted(steps, losses)

    def before_decay(end: float) -> float:
        (loss,) = power(np.array([end * (1 - share) / 1000]), *curve)
        return float(loss)

    half = len(steps) // 2
    first = fitted(steps[:half], losses[:half])
    off = float(np.mean(losses[half:] - power(steps[half:] / 1000, *first)))
    gained = before_decay(last["step"]) - last["loss"]
    night = arguments.hours * 3600 / last["seconds"] * last["step"]
    found: Figures = {
        "machine": machine(),
        "curve": dict(zip("abc", curve.tolist(), strict=True)),
        "first_half": {"last_step": steps[half - 1], "loss_above_its_curve_later": off},
        "measured": {**last, "decay_gained": gained},
        "extrapolated": {
            "hours": arguments.hours,
            "step": round(night),
            "tokens": round(last["tokens"] / last["step"] * night),
            "loss": before_decay(night) - gained,
        },
    }
    write_result(arguments.output, found)


if __name__ == "__main__":
    main()
