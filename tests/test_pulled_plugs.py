"""Pull the plug in every stage: what is started again ends with the same digests.

One run from nothing, by the real command; in each stage something is killed with SIGKILL once: the
stage's program, one of its workers, the keeper, or the command itself. After every death the same
command is given again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.jobs.keeper import descendants
from flows.jobs.local import LocalJob, local_job
from flows.jobs.processes import process
from tests.conftest import PROJECT, SMOKE, GoldenRun

VICTIMS = {
    "vocabulary": "program",
    "tokens": "worker",
    "examples": "command",
    "pretrain": "program",
    "labels": "keeper",
    "finetune": "command",
    "evaluate": "program",
    "report": "command",
}

WITHOUT_PREFECT = "--without-prefect"

SECONDS = {"tokens": 3.0, "examples": 3.0, "pretrain": 8.0, "finetune": 6.0, "report": 0.2}
"""How long a stage may work before it is struck; 1 second where it is not said."""


def wait_for(condition: Callable[[], Any], *, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)
    return found


def running_job(workspace: Path, stage: str) -> LocalJob | None:
    """The job of a stage, once its program is there."""
    job = local_job(workspace / "smoke" / "jobs" / stage)
    alive = job is not None and job.keeper.alive and list(descendants(job.keeper.pid))
    return job if alive else None


def victim(kind: str, job: LocalJob, command: int) -> int:
    below = list(descendants(job.keeper.pid))
    workers = list(descendants(below[0]))
    choices = {"command": command, "keeper": job.keeper.pid, "program": below[0]}
    return workers[0] if kind == "worker" and workers else choices.get(kind, below[0])


def strike(workspace: Path, stage: str, running: "subprocess.Popen[bytes]") -> list[int]:
    """Kill the stage's victim a moment after it has begun; the processes that were there."""
    job = wait_for(lambda: running_job(workspace, stage), seconds=600)
    time.sleep(SECONDS.get(stage, 1.0))
    below = [job.keeper.pid, *descendants(job.keeper.pid)]
    os.kill(victim(VICTIMS[stage], job, running.pid), signal.SIGKILL)
    return below


def start(workspace: Path, *options: str) -> "subprocess.Popen[bytes]":
    source = "from cloze.command import main; main()"
    argv = [sys.executable, "-P", "-c", source, "run", *SMOKE, *options]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return subprocess.Popen(
        [*argv, "--workspace", str(workspace)],
        cwd=PROJECT,
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


@pytest.mark.slow
def test_killed_in_every_stage_the_run_ends_with_the_same_digests(
    golden: GoldenRun, tmp_path: Path
) -> None:
    workspace = tmp_path / "runs"
    running = start(workspace, WITHOUT_PREFECT)
    for stage in VICTIMS:
        below = strike(workspace, stage, running)
        assert running.wait(60) != 0
        wait_for(lambda pids=below: not any(process(p).alive for p in pids), seconds=45)
        running = start(workspace, WITHOUT_PREFECT)
    assert running.wait(600) == 0
    assert not list(descendants(os.getpid()))
    assert {**digests(workspace), "report": ""} == {**digests(golden.workspace), "report": ""}


@pytest.mark.slow
def test_a_run_whose_prefect_server_is_killed_goes_on_or_is_continued_to_the_same_digests(
    golden: GoldenRun, tmp_path: Path
) -> None:
    workspace = tmp_path / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    for folder in ("artifacts/pretrain", "smoke/jobs/pretrain"):
        shutil.rmtree(workspace / folder)
    running = start(workspace)
    job = wait_for(lambda: running_job(workspace, "pretrain"), seconds=300)
    below = [job.keeper.pid, *descendants(job.keeper.pid)]
    server = local_job(workspace / "prefect" / "server")
    assert server
    for pid in descendants(server.keeper.pid):
        os.kill(pid, signal.SIGKILL)
    running.wait(300)
    wait_for(lambda: not any(process(pid).alive for pid in below), seconds=45)
    assert start(workspace, WITHOUT_PREFECT).wait(600) == 0
    assert {**digests(workspace), "report": ""} == {**digests(golden.workspace), "report": ""}


def digests(workspace: Path) -> dict[str, str]:
    record = json.loads((workspace / "smoke" / "run.json").read_text())
    return {stage: found["digest"] for stage, found in record["stages"].items()}
