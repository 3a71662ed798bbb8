"""The form of a fit's record and of `fits.json`.

In:  nothing; this module holds types and loads no torch.
Out: `FitRecord`, one file for each fit, so that an interrupted stage goes on where it stopped.
"""

from typing import Any

from pydantic import Field

from artifacts.config import Config
from model.evaluation.scores import Confusion, ErrorExample


class EpochRecord(Config):
    """One judged epoch."""

    epoch: int
    """From 1."""

    train_loss: float
    """Mean over the epoch's terms."""

    dev: dict[str, float] = Field(default_factory=dict)
    """By metric."""


class FitRecord(Config):
    """Everything about one fit that does not depend on the clock."""

    task: str
    """The task's name."""

    kind: str
    """Its family."""

    metric: str
    """Its headline metric."""

    system: str
    """`pretrained`, `random`, or a variant's name."""

    seed: int
    """Of order, head and dropout."""

    point: str = ""
    """The grid point that was tried; empty for a fit that counts."""

    batch_size: int
    """Examples per step."""

    learning_rate: float
    """Peak."""

    steps: int
    """Updates."""

    epochs: tuple[EpochRecord, ...]
    """Judged epochs in order."""

    chosen_epoch: int
    """Whose predictions follow."""

    dev: dict[str, float]
    """By metric, of the chosen epoch."""

    test: dict[str, float]
    """By metric, of the chosen epoch; empty where test has no labels."""

    more: dict[str, dict[str, float]] = Field(default_factory=dict)
    """By further file and metric."""

    restarts: int = 0
    """Early failures that were started again with another seed (paper, 4.1)."""

    confusion: Confusion | None = None
    """On the last split with answers, where the task has few labels."""

    errors: tuple[ErrorExample, ...] = ()
    """The first mistakes there."""

    predictions: dict[str, list[Any]] = Field(default_factory=dict)
    """By split, one an example in the file's order."""

    @property
    def merit(self) -> float:
        """What fits of a task are chosen by: the headline metric on dev, else on test."""
        return (self.dev or self.test).get(self.metric, 0.0)


class BaselineRecord(Config):
    """What a task comes to without an encoder."""

    name: str
    """`majority`, `lookup` …"""

    dev: dict[str, float] = Field(default_factory=dict)
    """By metric."""

    test: dict[str, float] = Field(default_factory=dict)
    """By metric."""


class TaskRecord(Config):
    """One task and what it comes to without an encoder."""

    name: str
    """The task's name."""

    glue: str = ""
    """The GLUE task it is, if one."""

    kind: str
    """Its family."""

    metrics: tuple[str, ...]
    """The headline first."""

    labels: tuple[str, ...] = ()
    """In the order of the head's outputs."""

    examples: dict[str, int]
    """Examples by split."""

    truncated: int
    """Inputs that were cut to the longest length."""

    notes: tuple[str, ...] = ()
    """What a person must know of the data."""

    baselines: tuple[BaselineRecord, ...]
    """The simplest first."""


class Fits(Config):
    """`fits.json`: every run's figures, without predictions."""

    tasks: tuple[TaskRecord, ...]
    """In the configured order."""

    fits: tuple[FitRecord, ...]
    """In the order of tasks, systems, seeds."""
