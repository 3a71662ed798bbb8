"""Pull the plug in every stage: what is started again ends with the same digests.

One run from nothing, by the real command; in each stage something is killed with SIGKILL once: the
stage's program, one of its workers, the keeper, or the command itself. Nothing is tried again by
itself (`jobs.retries = 0`): after every death the same command is given again.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
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


def job_at_work(workspace: Path, stage: str) -> LocalJob | None:
    """The same, once it has said or written something."""
    log = workspace / "smoke" / "jobs" / stage / "log"
    said = log.exists() and log.stat().st_size > 0
    written = any((workspace / "artifacts" / stage).rglob("*"))
    return running_job(workspace, stage) if said or written else None


def victim(kind: str, job: LocalJob, command: int) -> int:
    if kind in {"command", "keeper"}:
        return {"command": command, "keeper": job.keeper.pid}[kind]
    program = next(descendants(job.keeper.pid))
    return next(descendants(program), program) if kind == "worker" else program


def strike(workspace: Path, stage: str, running: "subprocess.Popen[bytes]") -> list[int]:
    """Kill the stage's victim as soon as the stage shows work; the processes that were there."""
    job = wait_for(lambda: job_at_work(workspace, stage), seconds=300)
    below = [job.keeper.pid, *descendants(job.keeper.pid)]
    os.kill(victim(VICTIMS[stage], job, running.pid), signal.SIGKILL)
    return below


Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts `cloze run` on a workspace; what still runs when a test ends is ended with it."""
    started: list[subprocess.Popen[bytes]] = []

    def begin(workspace: Path, *options: str) -> "subprocess.Popen[bytes]":
        program = (sys.executable, "-P", "-c", "from cloze.command import main; main()")
        environment = {key: value for key, value in os.environ.items() if key != "PREFECT_API_URL"}
        running = subprocess.Popen(
            [*program, "run", *SMOKE, *options, "--workspace", str(workspace)],
            cwd=PROJECT,
            env=environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        started.append(running)
        return running

    yield begin
    for running in started:
        if running.poll() is None:
            running.terminate()
            running.wait(60)


@pytest.mark.slow
def test_killed_in_every_stage_the_run_ends_with_the_same_digests(
    golden: GoldenRun, tmp_path: Path, start: Start
) -> None:
    workspace, machine = tmp_path / "runs", tmp_path / "machine.toml"
    machine.write_text("[jobs]\nretries = 0\n")
    options = ("--without-prefect", "--on", str(machine))
    running = start(workspace, *options)
    for stage in VICTIMS:
        below = strike(workspace, stage, running)
        assert running.wait(60) != 0
        wait_for(lambda pids=below: not any(process(p).alive for p in pids), seconds=45)
        running = start(workspace, *options)
    assert running.wait(600) == 0
    assert not list(descendants(os.getpid()))
    assert {**digests(workspace), "report": ""} == {**digests(golden.workspace), "report": ""}


@pytest.mark.slow
def test_a_run_whose_prefect_server_is_killed_goes_on_to_the_same_digests(
    golden: GoldenRun, tmp_path: Path, start: Start
) -> None:
    workspace = tmp_path / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    for folder in ("artifacts/pretrain", "smoke/jobs/pretrain"):
        shutil.rmtree(workspace / folder)
    running = start(workspace)
    wait_for(lambda: running_job(workspace, "pretrain"), seconds=300)
    server = local_job(workspace / "prefect" / "server")
    assert server
    for pid in descendants(server.keeper.pid):
        os.kill(pid, signal.SIGKILL)
    assert running.wait(300) == 0
    assert not list(descendants(os.getpid()))
    assert {**digests(workspace), "report": ""} == {**digests(golden.workspace), "report": ""}


def digests(workspace: Path) -> dict[str, str]:
    record = json.loads((workspace / "smoke" / "run.json").read_text())
    return {stage: found["digest"] for stage, found in record["stages"].items()}
