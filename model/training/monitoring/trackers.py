"""Experiment trackers: TensorBoard, Weights & Biases, MLflow.

In:  the machine's settings, and the stage table's key and configuration.
Out: `Tracker`s; none by default, and then no library is imported.

A tracker identifies a run by its key, so that a resumed run continues the same curves. A tracker
that fails later causes one warning and never stops the training.
"""

import os
import time
from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec

from artifacts.config import flat
from artifacts.errors import ClozeError, UsageError
from artifacts.progress import say
from artifacts.stage import StageTable
from model.config import TrainingMachine
from model.training.monitoring.telemetry import Tracker

EXPERIMENT = "cloze"
"""MLflow's experiment, where MLFLOW_EXPERIMENT_NAME names no other."""

LONGEST_PARAMETER = 500
"""Length of a value that every MLflow store accepts."""


def check_installed(machine: TrainingMachine) -> None:
    """Refuse a tracker whose library is not installed."""
    for setting in ("wandb", "mlflow"):
        if getattr(machine, setting) and find_spec(setting) is None:
            raise UsageError(
                f"training.{setting} = {getattr(machine, setting)!r}: {setting} is not installed; "
                f"pip install 'cloze[{setting}]'"
            )


def start_trackers(machine: TrainingMachine, table: StageTable) -> list[Tracker]:
    """The trackers that the machine's settings ask for."""
    check_installed(machine)
    started: list[Tracker] = []
    if machine.tensorboard:
        started.append(TensorBoard(machine.tensorboard))
    if machine.wandb:
        started.append(WeightsAndBiases(machine.wandb, table))
    if machine.mlflow:
        started.append(MLflow(machine.mlflow, table))
    return started


class TensorBoard:
    """Event files in a folder."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._writer = SummaryWriter(folder)

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        for name, value in numbers.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Flush and close."""
        self._writer.close()


class WeightsAndBiases:
    """A run of a Weights & Biases project, or with WANDB_MODE=offline one to be synchronised."""

    def __init__(self, project: str, table: StageTable) -> None:
        wandb = import_module("wandb")
        try:
            self._run = wandb.init(
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

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        self._run.log(dict(numbers), step=step)

    def finish(self) -> None:
        """Wait until all is written or sent."""
        self._run.finish()


class MLflow:
    """A run in an MLflow store: `sqlite:///mlflow.db`, or a server's address."""

    def __init__(self, store: str, table: StageTable) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # no telemetry is sent
        mlflow = import_module("mlflow")
        self._failure: type[Exception] = mlflow.exceptions.MlflowException
        self._metric: type = mlflow.entities.Metric
        self._lost = False
        try:
            self._client = mlflow.MlflowClient(tracking_uri=store)
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", EXPERIMENT)
            known = self._client.get_experiment_by_name(name)
            experiment = str(known.experiment_id if known else self._client.create_experiment(name))
            # An interrupted training has begun the run already.
            found = self._client.search_runs([experiment], f"tags.cloze_key = '{table.key}'")
            run = found[0] if found else None
            if run is None:
                tags = {"cloze_key": table.key}
                run = self._client.create_run(experiment, tags=tags, run_name=_name(table))
                parameters = [
                    mlflow.entities.Param(place, str(value)[:LONGEST_PARAMETER])
                    for place, value in flat(table.keyed_config).items()
                ]
                self._client.log_batch(run.info.run_id, params=parameters)
            self._run = str(run.info.run_id)
        except self._failure as error:
            raise ClozeError(f"training.mlflow = {store!r}: {_line(error)}") from None

    def log(self, step: int, numbers: Mapping[str, float]) -> None:
        """Take the numbers of a step."""
        now = int(time.time() * 1000)
        metrics = [self._metric(name, value, now, step) for name, value in numbers.items()]
        try:
            self._client.log_batch(self._run, metrics=metrics)
        except self._failure as error:
            if not self._lost:
                say(f"warning: MLflow takes no numbers any more: {_line(error)}")
            self._lost = True

    def finish(self) -> None:
        """Mark the run as finished."""
        self._client.set_terminated(self._run)


def _name(table: StageTable) -> str:
    return f"{table.stage}-{table.key[:12]}"


def _line(error: Exception) -> str:
    return " ".join(str(error).split())
