"""Telemetry of a training run: its log, the loss curve, and experiment trackers.

In:  one `StepRecord` per step; held-out scores; the machine's settings.
Out: a line per second on standard error, JSON lines in a file, TensorBoard, Weights & Biases or
     MLflow if enabled; `Curve`, which is part of the artifact.

    pretrain step=1200/8000 loss=3.41 mlm=2.81 nsp=0.60 tokens_per_s=41,200 remaining=3:12

By default no tracker's library is imported. A tracker identifies a run by its key, so a resumed run
continues the same curves. If it fails after the start, it causes one warning and never stops the
training.
"""

import json
import math
import os
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple, TypedDict

import torch
from pydantic import JsonValue

from cloze.artifacts.config import flat
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.progress import clock, say
from cloze.artifacts.stage import StageTable
from cloze.model.config import TrainingMachine

CURVE_POINTS = 2000
"""Maximum number of points; in longer runs each is a mean over several steps."""

CURVE_COLUMNS = ("loss", "masked_lm_loss", "next_sentence_loss", "masked_lm_accuracy")

AVERAGED = (
    *("loss", "masked_lm_loss", "masked_lm_accuracy"),
    *("next_sentence_loss", "next_sentence_accuracy"),
    *("gradient_norm", "learning_rate", "imbalance"),
)
"""Fields of a `StepRecord` that are averaged over the logging window."""

EXPERIMENT = "cloze"
"""MLflow experiment, unless MLFLOW_EXPERIMENT_NAME is set."""

LONGEST_PARAMETER = 500
"""Maximum length of a value that every MLflow store accepts."""


@dataclass(frozen=True)
class StepRecord:
    """One step, summed over all ranks. Losses in nats."""

    step: int
    """Steps done, including this one."""

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
    """Part of `seconds` spent waiting for a batch."""

    imbalance: float
    """Largest work of a rank divided by the mean, minus 1."""

    source_tokens: tuple[int, ...] = ()
    """Of the tokens, those of each source, if they are mixed."""


BySource = Mapping[str, Mapping[str, float]]
"""Held-out scores by the name of the source."""

NO_SOURCES: BySource = MappingProxyType({})


class CurveState(TypedDict):
    """The curve so far, as stored in a checkpoint."""

    points: list[dict[str, JsonValue]]
    sums: list[float]
    count: int


@dataclass
class Curve:
    """The losses of a run of `steps` steps: at most `CURVE_POINTS` means at equal intervals.

    Deterministic: it does not depend on logging and checkpoint intervals, and a resumed run
    continues the curve of its checkpoint.
    """

    steps: int
    points: list[dict[str, JsonValue]] = field(default_factory=list)
    sums: list[float] = field(default_factory=list)
    """Of the steps after the last point: by column, then tokens by source."""

    count: int = 0
    end: int = 0
    """The last step, if it is sooner than planned."""

    sources: tuple[str, ...] = ()
    """The names of the sources that are mixed, whose mean tokens per step are points, too."""

    def __post_init__(self) -> None:
        self.sums = self.sums or self._zeros

    @property
    def _zeros(self) -> list[float]:
        return [0.0] * (len(CURVE_COLUMNS) + len(self.sources))

    def add(self, record: StepRecord) -> None:
        """Add one step."""
        values = [getattr(record, name) for name in CURVE_COLUMNS]
        values += record.source_tokens
        self.sums = [total + value for total, value in zip(self.sums, values, strict=True)]
        self.count += 1
        # The interval depends only on the number of steps, so a resumed run has the same points.
        # The last step has a point in any case, also if a deadline makes it an earlier one (`end`).
        stride = -(-self.steps // CURVE_POINTS)
        if record.step % stride == 0 or record.step in (self.steps, self.end):
            means = [total / self.count for total in self.sums]
            columns, tokens = means[: len(CURVE_COLUMNS)], means[len(CURVE_COLUMNS) :]
            point: dict[str, JsonValue] = {"step": record.step}
            point.update(zip(CURVE_COLUMNS, columns, strict=True))
            if self.sources:
                point["source_tokens"] = dict(zip(self.sources, tokens, strict=True))
            self.points.append(point)
            self.sums, self.count = self._zeros, 0

    def add_heldout(
        self, step: int, scores: Mapping[str, float], by_source: BySource = NO_SOURCES
    ) -> None:
        """Add a held-out evaluation after `step` steps."""
        point: dict[str, JsonValue] = {"step": step, "heldout": dict(scores)}
        if by_source:
            point["sources"] = {name: dict(own) for name, own in by_source.items()}
        self.points.append(point)

    def state(self) -> CurveState:
        """The state to store in a checkpoint: `Curve(steps, **state)` continues from it."""
        return {"points": list(self.points), "sums": list(self.sums), "count": self.count}

    def json_lines(self) -> bytes:
        """The curve in JSON lines."""
        return "".join(json.dumps(point) + "\n" for point in self.points).encode()


class Tracker(NamedTuple):
    """Receives metrics by step."""

    log: Callable[[int, Mapping[str, float]], object]
    finish: Callable[[], object]
    """Called when the run has finished successfully."""


@dataclass
class Telemetry:
    """The log of one run."""

    steps: int
    log_every: int
    flops_per_second: float
    """Rate of large matrix products on all ranks together (`matrix_rate`): 100 % MFU."""

    device: torch.device
    log: IO[str] | None = None
    """JSON lines; None on a rank that logs nothing: all but the first."""

    trackers: Sequence[Tracker] = ()

    spent: float = 0.0
    """Seconds of training so far, including resumed runs, without evaluations and checkpoints."""

    _window: list[StepRecord] = field(default_factory=list)
    _done: int = 0
    _since_start: float = 0.0
    _printed: float = 0.0

    def add(self, record: StepRecord) -> None:
        """Log one step."""
        self._done += 1
        self._since_start += record.seconds
        self.spent += record.seconds
        if self.log is None:
            return
        last = record.step == self.steps
        self._window.append(record)
        if record.step % self.log_every == 0 or last:
            numbers = summary(self._window, self.flops_per_second)
            numbers["memory_bytes"] = peak_memory(self.device)
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
        # On the console once a second, however fast the steps are; in the file every `log_every`
        # steps.
        now = time.monotonic()
        if now - self._printed >= 1.0 or last:
            self._printed = now
            # At the mean rate since this process started: earlier ones may have had other hardware.
            remaining = clock((self.steps - record.step) * self._since_start / self._done)
            # A loss of exactly 0 is that of no pairs of sentences.
            pairs = f"nsp={loss:.3f} " if (loss := record.next_sentence_loss) else ""
            say(
                f"pretrain step={record.step}/{self.steps} loss={record.loss:.3f} "
                f"mlm={record.masked_lm_loss:.3f} {pairs}"
                f"tokens_per_s={record.tokens / record.seconds:,.0f} remaining={remaining}"
            )

    def add_heldout(
        self, step: int, scores: Mapping[str, float], by_source: BySource = NO_SOURCES
    ) -> None:
        """Log a held-out evaluation after `step` steps; in files it is part of the curve."""
        if self.log is None:
            return
        pairs = f" heldout_nsp_accuracy={scores['next_sentence_accuracy']:.3f}"
        say(
            f"pretrain step={step}/{self.steps} "
            f"heldout_mlm={scores['masked_lm_loss']:.3f} "
            f"heldout_mlm_accuracy={scores['masked_lm_accuracy']:.3f}"
            f"{pairs if scores['next_sentence_loss'] else ''}"
        )
        # One name for each source, as trackers draw a curve for each name.
        numbers = {f"heldout_{name}": value for name, value in scores.items()}
        losses = {name: own["masked_lm_loss"] for name, own in by_source.items()}
        if losses:
            shown = " ".join(f"{name}={loss:.3f}" for name, loss in losses.items())
            say(f"pretrain step={step}/{self.steps} heldout_mlm by source: {shown}")
        numbers |= {f"heldout_mlm_of_{name}": loss for name, loss in losses.items()}
        for tracker in self.trackers:
            tracker.log(step, numbers)


@contextmanager
def metrics_log(path: Path, *, done: int) -> Iterator[IO[str]]:
    """The JSON lines file, without lines of steps after `done`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    # The steps after the checkpoint are made, and logged, once more; a truncated line goes, too.
    path.write_bytes(b"".join(line for line in lines if _step_of(line) <= done))
    log = path.open("a")
    try:
        yield log
    finally:
        with suppress(OSError):  # a failure to write has been reported already
            log.close()


def _step_of(line: bytes) -> float:
    """The step of a line of the log; infinity if it is truncated or damaged."""
    try:
        return float(json.loads(line)["step"]) if line.endswith(b"\n") else math.inf
    except (ValueError, TypeError, KeyError):
        return math.inf


def summary(window: list[StepRecord], flops_per_second: float) -> dict[str, float]:
    """Means over a window of steps; rates per second of the whole window."""

    def total(name: str) -> float:
        return float(sum(getattr(record, name) for record in window))

    seconds = total("seconds")
    return {
        **{name: total(name) / len(window) for name in AVERAGED},
        "tokens_per_s": total("tokens") / seconds,
        "examples_per_s": total("examples") / seconds,
        "mfu": total("flops") / seconds / flops_per_second,
        "input_wait_share": total("waited") / seconds,
        "step_seconds": seconds / len(window),
    }


def peak_memory(device: torch.device) -> int:
    """Peak memory so far in bytes: allocated on the GPU, or resident in this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    # macOS counts bytes, Linux kibibytes.
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def check_installed(machine: TrainingMachine) -> None:
    """Reject a tracker whose library is not installed."""
    for setting in ("wandb", "mlflow"):
        if getattr(machine, setting) and find_spec(setting) is None:
            raise UsageError(
                f"training.{setting} = {getattr(machine, setting)!r}: {setting} is not installed; "
                f"pip install 'cloze-encoder[{setting}]'"
            )


def start_trackers(machine: TrainingMachine, table: StageTable) -> list[Tracker]:
    """The trackers enabled by the machine's settings."""
    check_installed(machine)
    starters = {"tensorboard": tensorboard, "wandb": weights_and_biases, "mlflow": mlflow_run}
    wanted = {setting: getattr(machine, setting) for setting in starters}
    return [
        _forgiving(starters[setting](value, table), setting)
        for setting, value in wanted.items()
        if value
    ]


def _forgiving(tracker: Tracker, setting: str) -> Tracker:
    """The tracker, whose first error is a warning: a full disk or a lost server costs its metrics.

    It is still called after that, since a server may come back.
    """
    lost = False

    def attempt(action: Callable[[], object]) -> None:
        nonlocal lost
        try:
            action()
        except Exception as error:  # every library has its own, and passes on those of its threads
            if not lost:
                say(f"warning: training.{setting} no longer accepts metrics: {_line(error)}")
            lost = True

    return Tracker(
        lambda step, numbers: attempt(partial(tracker.log, step, numbers)),
        lambda: attempt(tracker.finish),
    )


def tensorboard(folder: str, _: StageTable) -> Tracker:
    """TensorBoard event files."""
    from torch.utils.tensorboard import SummaryWriter

    writer = SummaryWriter(folder)

    def log(step: int, numbers: Mapping[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)

    return Tracker(log, writer.close)


def weights_and_biases(project: str, table: StageTable) -> Tracker:
    """A Weights & Biases run; with WANDB_MODE=offline it can be synchronised later."""
    wandb = import_module("wandb")
    try:
        run = wandb.init(
            project=project,
            id=table.key[:16],
            name=_name(table),
            config=table.keyed_config,
            resume="allow",
        )
    except wandb.Error as error:
        raise ClozeError(
            f"training.wandb = {project!r}: {_line(error)}; `wandb login`, or set "
            "WANDB_MODE=offline"
        ) from None
    # `finish` waits until everything is written or sent.
    return Tracker(lambda step, numbers: run.log(dict(numbers), step=step), run.finish)


def mlflow_run(store: str, table: StageTable) -> Tracker:
    """A run in an MLflow store: `sqlite:///mlflow.db`, or a server address."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no telemetry is sent
    mlflow = import_module("mlflow")
    failure = mlflow.exceptions.MlflowException
    try:
        # A client rather than `mlflow.start_run`, whose run is global to the process and may be
        # another one, as named by MLFLOW_RUN_ID.
        client = mlflow.MlflowClient(tracking_uri=store)
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
        known = client.get_experiment_by_name(name)
        experiment = str(known.experiment_id if known else client.create_experiment(name))
        # An interrupted training may have created the run already.
        found = client.search_runs([experiment], f"tags.cloze_key = '{table.key}'")
        if found:
            run = str(found[0].info.run_id)
        else:
            tags = {"cloze_key": table.key}
            new = client.create_run(experiment, tags=tags, run_name=_name(table))
            run = str(new.info.run_id)
            parameters = [
                mlflow.entities.Param(place, str(value)[:LONGEST_PARAMETER])
                for place, value in flat(table.keyed_config).items()
            ]
            client.log_batch(run, params=parameters)
    except failure as error:
        raise ClozeError(f"training.mlflow = {store!r}: {_line(error)}") from None

    def log(step: int, numbers: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        metrics = [mlflow.entities.Metric(name, numbers[name], now, step) for name in numbers]
        client.log_batch(run, metrics=metrics)

    return Tracker(log, lambda: client.set_terminated(run))


def _name(table: StageTable) -> str:
    return f"{table.stage}-{table.key[:12]}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
