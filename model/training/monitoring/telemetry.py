"""Telemetry of a training run: its log, and the loss curve it leaves.

In:  one `StepRecord` per step; held-out scores.
Out: a plain line a second on standard error, JSON lines in a file, trackers if wanted; `Curve`,
     which is part of the artifact.

    pretrain step=1200/8000 loss=3.41 mlm=2.81 nsp=0.60 tokens_per_s=41,200 remaining=3:12
"""

import json
import math
import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol, TypedDict

import torch
from pydantic import JsonValue

from artifacts.errors import ClozeError
from artifacts.progress import clock, say
from model.config import EncoderConfig

CURVE_POINTS = 2000
"""A longer run's points are means over several steps."""

CURVE_COLUMNS = ("loss", "masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy")

AVERAGED = (
    *("loss", "masked_lm_loss", "masked_lm_accuracy"),
    *("next_sentence_loss", "next_sentence_accuracy"),
    *("gradient_norm", "learning_rate", "imbalance"),
)
"""Fields of a `StepRecord` that are averaged over the logging window."""


@dataclass(frozen=True)
class StepRecord:
    """One step, summed over all ranks. Losses in nats."""

    step: int
    """Steps done, this one included."""

    loss: float
    """The training objective: masked-LM, plus next-sentence if `pretrain.next_sentence_loss`."""

    masked_lm_loss: float
    masked_lm_accuracy: float
    next_sentence_loss: float
    next_sentence_accuracy: float
    gradient_norm: float
    """Before clipping."""

    learning_rate: float
    examples: int
    tokens: int
    flops: float
    """Floating-point operations of the matrix products, forward and backward."""

    seconds: float
    waited: float
    """Seconds of these spent waiting for a batch."""

    imbalance: float
    """Largest work of a rank divided by the mean, minus 1."""


class CurveState(TypedDict):
    """A curve so far, as a checkpoint keeps it."""

    points: list[dict[str, JsonValue]]
    sums: list[float]
    count: int


@dataclass
class Curve:
    """The losses of one run of `steps` steps: at most `CURVE_POINTS` means, one a stride.

    Deterministic: intervals of logging and checkpoints play no part, and a resumed run goes on
    with the curve its checkpoint holds.
    """

    steps: int
    points: list[dict[str, JsonValue]] = field(default_factory=list)
    _sums: list[float] = field(default_factory=lambda: [0.0] * len(CURVE_COLUMNS))
    _count: int = 0

    def add(self, record: StepRecord) -> None:
        """Count one step."""
        values = [getattr(record, name) for name in CURVE_COLUMNS]
        self._sums = [total + value for total, value in zip(self._sums, values, strict=True)]
        self._count += 1
        stride = -(-self.steps // CURVE_POINTS)
        if record.step % stride == 0 or record.step == self.steps:
            means = [total / self._count for total in self._sums]
            self.points.append(
                {"step": record.step, **dict(zip(CURVE_COLUMNS, means, strict=True))}
            )
            self._sums, self._count = [0.0] * len(CURVE_COLUMNS), 0

    def add_heldout(self, step: int, scores: Mapping[str, float]) -> None:
        """Add a held-out evaluation after `step` steps."""
        self.points.append({"step": step, "heldout": dict(scores)})

    def state(self) -> CurveState:
        """What a checkpoint keeps."""
        return {"points": list(self.points), "sums": list(self._sums), "count": self._count}

    def restore(self, state: CurveState) -> None:
        """Go on where `state` was taken."""
        self.points = list(state["points"])
        self._sums = list(state["sums"])
        self._count = state["count"]

    def json_lines(self) -> bytes:
        """The curve as a file."""
        return "".join(json.dumps(point) + "\n" for point in self.points).encode()


class Tracker(Protocol):
    """Receives numbers by step."""

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a step."""

    def finish(self) -> None:
        """The run has ended well."""


@dataclass
class Telemetry:
    """The log of one run; only the first rank logs."""

    stage: str
    steps: int
    log_every: int
    flops_per_second: float
    """The rate of large matrix products on all ranks together (`matrix_rate`): 100 % MFU."""

    device: torch.device
    log: IO[str] | None = None
    trackers: Sequence[Tracker] = ()
    logs: bool = True
    """Whether this is the rank that logs."""

    spent: float = 0.0
    """Seconds of training so far, without evaluations and checkpoints; includes resumed runs."""

    _window: list[StepRecord] = field(default_factory=list)
    _done: int = 0
    _since_start: float = 0.0
    _printed: float = 0.0

    def add(self, record: StepRecord) -> None:
        """Log one step."""
        self._done += 1
        self._since_start += record.seconds
        self.spent += record.seconds
        if not self.logs:
            return
        last = record.step == self.steps
        self._window.append(record)
        if record.step % self.log_every == 0 or last:
            numbers = summary(self._window, self.flops_per_second)
            numbers["memory_bytes"] = peak_memory(self.device)
            if self.log is not None:
                timed = {"step": record.step, "seconds": round(self.spent, 3), **numbers}
                try:
                    self.log.write(json.dumps(timed) + "\n")
                    self.log.flush()
                except OSError as error:
                    raise ClozeError(
                        f"{self.log.name}: cannot write the log of step {record.step}: {error}; "
                        "the checkpoints are intact: make room and start the same command again"
                    ) from error
            for tracker in self.trackers:
                tracker.log(record.step, numbers)
            self._window = []
        now = time.monotonic()
        if now - self._printed >= 1.0 or last:
            self._printed = now
            remaining = clock((self.steps - record.step) * self._since_start / self._done)
            say(
                f"{self.stage} step={record.step}/{self.steps} loss={record.loss:.3f} "
                f"mlm={record.masked_lm_loss:.3f} nsp={record.next_sentence_loss:.3f} "
                f"tokens_per_s={record.tokens / record.seconds:,.0f} remaining={remaining}"
            )

    def add_heldout(self, step: int, scores: Mapping[str, float]) -> None:
        """Log a held-out evaluation after `step` steps; in files it is part of the curve."""
        if not self.logs:
            return
        say(
            f"{self.stage} step={step}/{self.steps} "
            f"heldout_mlm={scores['masked_lm_loss']:.3f} "
            f"heldout_mlm_accuracy={scores['masked_lm_accuracy']:.3f} "
            f"heldout_nsp_accuracy={scores['next_sentence_accuracy']:.3f}"
        )
        for tracker in self.trackers:
            tracker.log(step, {f"heldout_{name}": value for name, value in scores.items()})


@contextmanager
def metrics_log(path: Path | None, *, done: int) -> Iterator[IO[str]]:
    """The file of JSON lines, without those of steps after `done`; None: discard."""
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
        path.write_bytes(b"".join(line for line in lines if _step_of(line) <= done))
    log = open(path or os.devnull, "a")  # noqa: SIM115 - closed below, errors are reported already
    try:
        yield log
    finally:
        with suppress(OSError):  # what could not be written has been reported already
            log.close()


def _step_of(line: bytes) -> float:
    """The step of a line of the log; infinity if it is truncated or damaged."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf


def summary(window: list[StepRecord], flops_per_second: float) -> dict[str, float]:
    """Means over a window of steps; rates per second of the whole window."""
    seconds = sum(record.seconds for record in window)
    means = {
        name: sum(getattr(record, name) for record in window) / len(window) for name in AVERAGED
    }
    return {
        **means,
        "tokens_per_s": sum(record.tokens for record in window) / seconds,
        "examples_per_s": sum(record.examples for record in window) / seconds,
        "mfu": sum(record.flops for record in window) / seconds / flops_per_second,
        "input_wait_share": sum(record.waited for record in window) / seconds,
        "step_seconds": seconds / len(window),
    }


def training_flops(
    encoder: EncoderConfig, vocabulary_size: int, *, tokens: int, squared: int, masked: int
) -> float:
    """FLOPs of one step, forward and backward, of the matrix products alone.

    `squared` is the sum of the squared lengths. Per token 6 FLOPs a weight, per pair of tokens that
    attention compares 12 H, per masked token the transform and the vocabulary's logits.
    """
    width = encoder.hidden_size
    weights = encoder.num_hidden_layers * encoder.layer_weights
    attention = 12.0 * width * encoder.attended(tokens=tokens, squared=squared)
    head = 6.0 * (width * vocabulary_size + width**2) * masked
    return 6.0 * weights * tokens + attention + head


def matrix_rate(device: torch.device, *, precision: torch.dtype, seconds: float = 0.2) -> float:
    """FLOP/s of square matrix products on this rank, the best of a few."""
    size = 8192 if device.type == "cuda" else 1024
    left = torch.randn(size, size, device=device).to(precision)
    best, until = 0.0, time.monotonic() + seconds
    while time.monotonic() < until:
        started = time.perf_counter()
        float((left @ left)[0, 0])  # reading a number synchronises
        best = max(best, 2.0 * size**3 / (time.perf_counter() - started))
    return best


def peak_memory(device: torch.device) -> int:
    """Most bytes in use so far: of the GPU, or the largest resident size of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
