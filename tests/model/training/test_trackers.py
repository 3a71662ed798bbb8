"""Trackers: the real libraries, in a separate program like a training run.

`make test-trackers` installs them; tests of missing libraries are skipped. The extra `dev` has
neither: Weights & Biases is large, and DeepSpeed imports MLflow wherever it is installed, which
adds two seconds to every start of a training.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import StageTable, write_stage_table
from cloze.model.config import TrainingMachine
from cloze.model.training import telemetry
from tests.conftest import PROJECT

TABLE = StageTable(
    stage="pretrain",
    format_version=1,
    config={"pretrain": {"optimizer": {"learning_rate": 0.002}}},
    output="",
)


def track(tmp_path: Path, setting: dict[str, str], steps: list[int], **environment: str) -> None:
    """Log a loss at each step and finish, in `tmp_path`, without any account."""
    write_stage_table(TABLE, tmp_path / "table.json")
    program = (
        "from cloze.artifacts.stage import read_stage_table\n"
        "from cloze.model.config import TrainingMachine\n"
        "from cloze.model.training.telemetry import start_trackers\n"
        f"machine = TrainingMachine.model_validate({setting!r})\n"
        "(tracker,) = start_trackers(machine, read_stage_table('table.json'))\n"
        f"for step in {steps}:\n"
        "    tracker.log(step, {'masked_lm_loss': 9.0 - step})\n"
        "tracker.finish()\n"
    )
    path = os.pathsep.join([str(PROJECT), *filter(None, [os.environ.get("PYTHONPATH")])])
    python = {"PYTHONPATH": path, "HOME": str(tmp_path)}
    answer(tmp_path, program, {**os.environ, **python, **environment})


def answer(tmp_path: Path, program: str, environment: dict[str, str] | None = None) -> str:
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    ).stdout


@pytest.mark.slow
@pytest.mark.skipif(find_spec("mlflow") is None, reason="mlflow is not installed")
def test_mlflow_has_the_configuration_and_one_run_for_all_attempts(tmp_path: Path) -> None:
    for steps in ([2, 4], [6]):
        track(tmp_path, {"mlflow": "sqlite:///runs.db"}, steps)
    program = (
        "import json, mlflow\n"
        "client = mlflow.MlflowClient(tracking_uri='sqlite:///runs.db')\n"
        "experiment = client.get_experiment_by_name('cloze').experiment_id\n"
        "(run,) = client.search_runs([experiment])\n"
        "history = client.get_metric_history(run.info.run_id, 'masked_lm_loss')\n"
        "found = [[m.step, m.value] for m in history]\n"
        "print(json.dumps([run.info.status, run.data.params, found]))\n"
    )
    status, parameters, history = json.loads(answer(tmp_path, program))
    assert status == "FINISHED"
    assert parameters == {"pretrain.optimizer.learning_rate": "0.002"}
    assert history == [[2, 7.0], [4, 5.0], [6, 3.0]]


@pytest.mark.slow
@pytest.mark.skipif(find_spec("wandb") is None, reason="wandb is not installed")
def test_weights_and_biases_keeps_a_run_offline(tmp_path: Path) -> None:
    track(tmp_path, {"wandb": "encoders"}, [2, 4], WANDB_MODE="offline")
    (kept,) = tmp_path.glob(f"wandb/offline-run-*/run-{TABLE.key[:16]}.wandb")
    assert b"masked_lm_loss" in kept.read_bytes()


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_tracker_that_is_not_installed_is_refused_with_its_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "find_spec", lambda module: None)
    machine = TrainingMachine.model_validate({name: "somewhere"})
    with pytest.raises(UsageError, match=rf"pip install 'cloze-encoder\[{name}\]'"):
        telemetry.check_installed(machine)


def test_without_a_setting_there_is_no_tracker() -> None:
    assert telemetry.start_trackers(TrainingMachine(), TABLE) == []


def test_tensorboard_has_every_number(tmp_path: Path) -> None:
    (tracker,) = telemetry.start_trackers(TrainingMachine(tensorboard=str(tmp_path)), TABLE)
    tracker.log(2, {"masked_lm_loss": 2.81})
    tracker.finish()
    (events,) = tmp_path.glob("events.out.tfevents.*")
    assert b"masked_lm_loss" in events.read_bytes()


def test_a_tracker_that_fails_warns_once_and_never_stops_training(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logged: list[int] = []

    def log(step: int, _numbers: object) -> None:
        if step in (2, 3):
            raise OSError(28, "No space left on device")  # as TensorBoard's thread reports it
        logged.append(step)

    def finish() -> None:
        raise RuntimeError("lost")

    broken = telemetry.Tracker(log, finish)
    monkeypatch.setattr(telemetry, "tensorboard", lambda *_: broken)
    (tracker,) = telemetry.start_trackers(TrainingMachine(tensorboard="events"), TABLE)
    for step in (1, 2, 3, 4):
        tracker.log(step, {"masked_lm_loss": 9.0})
    tracker.finish()
    assert logged == [1, 4]
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning == (
        "warning: training.tensorboard no longer accepts metrics: [Errno 28] No space left on "
        "device"
    )
