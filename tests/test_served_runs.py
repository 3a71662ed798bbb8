"""A served deployment: triggered, cancelled, killed and continued, on a real Prefect server."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.states import Cancelling

from flows.jobs.keeper import descendants
from flows.jobs.local import local_job
from flows.jobs.processes import process
from tests.conftest import PROJECT, SMOKE, GoldenRun

FINAL = {"Completed", "Failed", "Crashed", "Cancelled"}


def wait_for(condition: Callable[[], Any], *, seconds: float) -> Any:
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.2)
    return found


@dataclass(frozen=True)
class Served:
    """A process that serves the flows, and a copy of the golden workspace."""

    workspace: Path
    url: str
    pid: int

    def trigger(self) -> UUID:
        """Start a run as a person would, from the command line."""
        argv = [sys.executable, "-P", "-m", "prefect", "deployment", "run", "end-to-end/smoke"]
        environment = {**os.environ, "PREFECT_API_URL": self.url}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
        (line,) = [line for line in done.stdout.splitlines() if "UUID:" in line]
        return UUID(line.split("UUID:")[1].strip())

    def state(self, run: UUID) -> str:
        with SyncPrefectClient(self.url) as client:
            return client.read_flow_run(run).state_name or ""

    def ended(self, run: UUID, *, seconds: float) -> str:
        wait_for(lambda: self.state(run) in FINAL, seconds=seconds)
        return self.state(run)

    def record(self) -> dict[str, Any]:
        return dict(json.loads((self.workspace / "smoke" / "run.json").read_text()))

    def forget(self, *stages: str) -> None:
        """As if these stages had never run."""
        for stage in stages:
            shutil.rmtree(self.workspace / "artifacts" / stage)
            shutil.rmtree(self.workspace / "smoke" / "jobs" / stage)

    def job(self, stage: str) -> Path:
        return self.workspace / "smoke" / "jobs" / stage

    def has_begun(self, stage: str) -> bool:
        """Whether the program of a stage runs and has said something."""
        log = self.job(stage) / "log"
        return log.exists() and log.stat().st_size > 0 and local_job(self.job(stage)) is not None


@pytest.fixture(scope="module")
def served(golden: GoldenRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    workspace = tmp_path_factory.mktemp("served") / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    source = "from cloze.command import main; main()"
    where = ["--workspace", str(workspace), "--port", str(port)]
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", source, "serve", *SMOKE, *where],
        stderr=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env=environment,
    ) as running:
        assert running.stderr
        lines = [running.stderr.readline() for _ in range(2)]
        assert "prefect deployment run end-to-end/smoke" in lines[1], lines
        yield Served(workspace, f"http://127.0.0.1:{port}/api", running.pid)
        below = list(descendants(running.pid))
        running.terminate()
        running.communicate(timeout=60)
    assert [pid for pid in below if process(pid).alive] == []


def test_a_triggered_run_reuses_everything(served: Served, golden: GoldenRun) -> None:
    run = served.trigger()
    assert served.ended(run, seconds=120) == "Completed"
    states = {stage["state"] for stage in served.record()["stages"].values()}
    assert states == {"reused"}


def test_a_run_cancelled_while_training_leaves_no_process(served: Served) -> None:
    served.forget("pretrain")
    run = served.trigger()
    wait_for(lambda: served.has_begun("pretrain"), seconds=120)
    job = local_job(served.job("pretrain"))
    assert job
    below = [job.keeper.pid, *descendants(job.keeper.pid)]
    with SyncPrefectClient(served.url) as client:
        client.set_flow_run_state(run, Cancelling())
    wait_for(lambda: not any(process(pid).alive for pid in below), seconds=40)
    assert served.ended(run, seconds=40) == "Cancelled"


def test_a_flow_killed_while_training_is_continued_to_the_same_digests(
    served: Served, golden: GoldenRun
) -> None:
    served.job("pretrain").joinpath("log").unlink(missing_ok=True)
    run = served.trigger()
    wait_for(lambda: served.has_begun("pretrain"), seconds=120)
    job = local_job(served.job("pretrain"))
    assert job
    flow = int(Path(f"/proc/{job.keeper.pid}/stat").read_text().rpartition(")")[2].split()[1])
    below = [job.keeper.pid, *descendants(job.keeper.pid)]
    os.kill(flow, signal.SIGKILL)
    wait_for(lambda: not any(process(pid).alive for pid in below), seconds=40)
    assert served.ended(run, seconds=60) == "Crashed"
    again = served.trigger()
    assert served.ended(again, seconds=240) == "Completed"
    golden_record = json.loads((golden.workspace / "smoke" / "run.json").read_text())
    made = {stage: found["digest"] for stage, found in served.record()["stages"].items()}
    first = {stage: found["digest"] for stage, found in golden_record["stages"].items()}
    assert {**made, "report": ""} == {**first, "report": ""}  # a report tells of times
