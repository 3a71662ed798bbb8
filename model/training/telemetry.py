"""What a training run says about itself while it runs.

In:  one `StepRecord` per step.
Out: a plain line a second on standard error, JSON lines in a file, TensorBoard if wanted, and
     warnings about the usual ways in which training looks alive and is not.

    pretrain step=1200/8000 loss=3.41 mlm=2.81 nsp=0.60 tokens_per_s=41,200 remaining=3:12
"""

import json
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import IO, Any, Protocol

from artifacts.errors import ClozeError
from artifacts.progress import clock, say
from model.config import EncoderConfig
from model.training.alarms import Alarms


@dataclass(frozen=True)
class StepRecord:
    """One step, summed over all ranks."""

    step: int
    """Steps done, this one included."""
    loss: float
    """What is minimised: masked-LM, and next-sentence if `pretrain.next_sentence_loss`."""
    masked_lm_loss: float
    masked_lm_accuracy: float
    next_sentence_loss: float
    next_sentence_accuracy: float
    gradient_norm: float
    learning_rate: float
    examples: int
    tokens: int
    flops: float
    """Floating-point operations of the matrix products, forward and backward."""
    seconds: float
    waited: float
    """Seconds of these in which no batch was there."""
    imbalance: float
    """Largest rank's work over the mean rank's, minus 1."""


class Writer(Protocol):
    """What TensorBoard's SummaryWriter offers."""

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        """Add one number to one curve."""


def peak_memory() -> int:
    """Largest resident size of this process so far, in bytes; what it has on a GPU left out."""
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@dataclass
class Telemetry:
    """The voice of one run; silent on all ranks but the first."""

    stage: str
    steps: int
    log_every: int
    matrix_rate: float
    """Measured FLOP/s of large matrix products over all ranks."""
    alarms: Alarms
    log: IO[str] | None = None
    tensorboard: Writer | None = None
    speaks: bool = True
    memory: Callable[[], int] = peak_memory
    """Most bytes in use so far: this process's, or the GPU's."""
    spent: float = 0.0
    """Seconds of training so far, evaluations and checkpoints left out; a resumed run goes on."""
    _window: list[StepRecord] = field(default_factory=list)
    _done: int = 0
    _since_start: float = 0.0
    _printed: float = 0.0

    def add(self, record: StepRecord) -> None:
        """Take in one step."""
        self._done += 1
        self._since_start += record.seconds
        self.spent += record.seconds
        if not self.speaks:
            return
        self._window.append(record)
        for warning in self.alarms.check(record):
            say(f"warning: {warning}")
        if record.step % self.log_every == 0 or record.step == self.steps:
            window, self._window = self._window, []
            numbers = {**summary(window, self.matrix_rate), "memory_bytes": self.memory()}
            self._write(record.step, numbers)
        now = time.monotonic()
        if now - self._printed >= 1.0 or record.step == self.steps:
            self._printed = now
            say(self.line(record))

    def line(self, record: StepRecord) -> str:
        """The line a person sees."""
        rate = record.tokens / record.seconds
        remaining = clock((self.steps - record.step) * self._since_start / self._done)
        return (
            f"{self.stage} step={record.step}/{self.steps} loss={record.loss:.3f} "
            f"mlm={record.masked_lm_loss:.3f} nsp={record.next_sentence_loss:.3f} "
            f"tokens_per_s={rate:,.0f} remaining={remaining}"
        )

    def add_heldout(self, step: int, scores: dict[str, float]) -> None:
        """Take in a held-out evaluation after `step` steps; in files it is part of the curve."""
        self._draw(step, {f"heldout_{name}": value for name, value in scores.items()})

    def _write(self, step: int, numbers: dict[str, float]) -> None:
        if self.log is not None:
            timed = {"step": step, "seconds": round(self.spent, 3), **numbers}
            try:
                self.log.write(json.dumps(timed) + "\n")
                self.log.flush()
            except OSError as error:
                raise ClozeError(
                    f"{self.log.name}: cannot write the log of step {step}: {error}; the "
                    "checkpoints are intact: make room and start the same command again"
                ) from error
        self._draw(step, numbers)

    def _draw(self, step: int, numbers: dict[str, float]) -> None:
        if self.tensorboard is not None:
            for name, value in numbers.items():
                self.tensorboard.add_scalar(name, value, step)


def summary(window: list[StepRecord], matrix_rate: float) -> dict[str, float]:
    """Means over a window of steps; rates per second of the whole window."""
    seconds = sum(record.seconds for record in window)
    means: dict[str, Any] = {
        name: sum(asdict(record)[name] for record in window) / len(window)
        for name in (
            "loss",
            "masked_lm_loss",
            "masked_lm_accuracy",
            "next_sentence_loss",
            "next_sentence_accuracy",
            "gradient_norm",
            "learning_rate",
            "imbalance",
        )
    }
    return {
        **means,
        "tokens_per_s": sum(record.tokens for record in window) / seconds,
        "examples_per_s": sum(record.examples for record in window) / seconds,
        "matrix_rate_share": sum(r.flops for r in window) / seconds / matrix_rate,
        "input_wait_share": sum(record.waited for record in window) / seconds,
        "step_seconds": seconds / len(window),
    }


def training_flops(
    encoder: EncoderConfig, vocabulary_size: int, *, tokens: int, squared: int, masked: int
) -> float:
    """FLOPs of one step, forward and backward, of the matrix products alone.

    `squared` is the sum of the squared lengths. Per token 6 FLOPs a weight, per pair of tokens
    12 H a layer, per masked token the transform and the vocabulary's logits.
    """
    width, inner = encoder.hidden_size, encoder.intermediate_size
    layers = encoder.num_hidden_layers
    weights = layers * (4 * width**2 + 2 * width * inner)
    head = width * vocabulary_size + width**2
    return 6.0 * weights * tokens + 12.0 * layers * width * squared + 6.0 * head * masked
