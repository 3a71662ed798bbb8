"""The loss curve: deterministic, so that it can be part of the artifact.

In:  the losses of every step, and of the held-out evaluations.
Out: at most `POINTS` points `{"step": …, "loss": …}` as JSON lines; each is a mean over its stride.

Intervals of logging and checkpoints play no part. A checkpoint holds the curve so far, so that a
resumed run goes on with it.
"""

import json
from dataclasses import dataclass, field
from typing import Any

POINTS = 2000

COLUMNS = ("loss", "masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy")


@dataclass
class Curve:
    """The curve of one run of `steps` steps."""

    steps: int
    points: list[dict[str, Any]] = field(default_factory=list)
    _sums: list[float] = field(default_factory=lambda: [0.0] * len(COLUMNS))
    _count: int = 0

    @property
    def stride(self) -> int:
        """Steps per point."""
        return -(-self.steps // POINTS)

    def add(self, step: int, values: tuple[float, ...]) -> None:
        """Count step `step` (from 1) with its values in the order of `COLUMNS`."""
        self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]
        self._count += 1
        if step % self.stride == 0 or step == self.steps:
            means = [total / self._count for total in self._sums]
            self.points.append({"step": step, **dict(zip(COLUMNS, means, strict=True))})
            self._sums, self._count = [0.0] * len(COLUMNS), 0

    def add_heldout(self, step: int, values: dict[str, float]) -> None:
        """Add a held-out evaluation after `step` steps."""
        self.points.append({"step": step, "heldout": values})

    def state(self) -> dict[str, Any]:
        """What a checkpoint keeps."""
        return {"points": list(self.points), "sums": list(self._sums), "count": self._count}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on where `state` was taken."""
        self.points = list(state["points"])
        self._sums = list(state["sums"])
        self._count = int(state["count"])

    def json_lines(self) -> bytes:
        """The curve as a file."""
        return "".join(json.dumps(point) + "\n" for point in self.points).encode()
