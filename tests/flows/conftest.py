"""A chain of stand-in programs in a temporary folder."""

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.stage import read_stage_table
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.events import OutputLog, add_handler, remove_handler
from cloze.flows.job import JobResult, StageFailed
from cloze.flows.prefect.server import quiet_environment
from tests.conftest import PROJECT
from tests.flows import standin
from tests.flows.standin_cloze import STAGES

quiet_environment()  # before any test imports Prefect


@pytest.fixture
def standins(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Replace the program of every stage; call it with stage=behaviour to set what they do."""
    for stage in STAGES:
        monkeypatch.setattr(stage, "program", "tests.flows.standin")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))

    def behave(**behaviours: dict[str, Any]) -> None:
        monkeypatch.setenv("STANDIN", json.dumps(behaviours))

    return behave


@pytest.fixture
def killed_once(standins: Callable[..., None], tmp_path: Path) -> Callable[..., None]:
    """The same, where `vocabulary` is killed the first time; call it with the others' behaviour."""

    def behave(**behaviours: dict[str, Any]) -> None:
        standins(vocabulary={"kill": str(tmp_path / "killed")}, **behaviours)

    return behave


@pytest.fixture
def inline(standins: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """The same without processes, for tests that do not need them."""

    def run_job(argv: list[str], *, folder: Path, **_: Any) -> JobResult:
        place = argv.index("--config")
        try:
            standin.stage(read_stage_table(argv[place + 1]), list(argv[place + 2 :]))
        except ClozeError as error:
            message = f"{folder.name}: {error}"
            raise StageFailed(message, exit_code=error.exit_code, retryable=False) from None
        OutputLog(folder.name).line(f"options {list(argv[place + 2 :])}")
        return JobResult(seconds=1.5, peak_memory=1000)

    monkeypatch.setattr("cloze.flows.job.run_job", run_job)
    return standins


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """A small folder of text."""
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "one.txt").write_text("The first document.\n")
    (folder / "two.txt").write_text("The second document.\n")
    return folder


@pytest.fixture
def run_table(texts: Path) -> dict[str, Any]:
    """A run over `texts`, in the form of a parsed TOML file."""
    return {
        "name": "try",
        "corpus": {"sources": [{"reader": "text", "path": str(texts)}]},
        "finetune": {"tasks": [{"name": "parts", "kind": "tagging"}]},
        "labels": {"packages": ["rich"], "test_packages": ["fsspec"]},
    }


@pytest.fixture
def run(run_table: dict[str, Any]) -> RunConfig:
    """The same, validated."""
    return RunConfig.model_validate(run_table)


@pytest.fixture
def machine(tmp_path: Path) -> MachineConfig:
    """A workspace in the temporary folder, with short delays."""
    jobs = {"grace": 2.0, "retry_delay": 0.0}
    return MachineConfig.model_validate({"workspace": str(tmp_path / "runs"), "jobs": jobs})


class Recorder(logging.Handler):
    """Records events."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[str, str, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        values = vars(record)
        self.heard.append((values["stage"], values["state"], values["text"]))


@pytest.fixture
def events() -> Iterator[list[tuple[str, str, str]]]:
    """(stage, state, text) of everything a run logs."""
    recorder = Recorder()
    add_handler(recorder, progress=False)
    yield recorder.heard
    remove_handler(recorder)
