"""Pull the plug in every stage: what is started again ends with the same digests.

One run from nothing, by the real command; in each stage something is killed with SIGKILL once: the
stage's program, one of its workers, the supervisor, or the command itself. Nothing is tried again
by itself (`jobs.retries = 0`): after every death the same command is given again.
"""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cloze.artifacts.runtime.processes import descendants
from cloze.flows.launchers.local import LocalJob
from tests.conftest import PROJECT, SMOKE, GoldenRun
from tests.running import VICTIMS, RunFolder, all_gone
from tests.waiting import PATIENCE, wait_for

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
            running.wait(PATIENCE)


@pytest.mark.slow
def test_killed_in_every_stage_the_run_ends_with_the_same_digests(
    golden: GoldenRun, tmp_path: Path, start: Start
) -> None:
    workspace, machine = tmp_path / "runs", tmp_path / "machine.toml"
    machine.write_text("[jobs]\nretries = 0\n")
    options = ("--without-prefect", "--on", str(machine))
    running = start(workspace, *options)
    for stage in VICTIMS:
        struck = RunFolder(workspace).strike(stage)
        assert running.wait(PATIENCE) != 0
        all_gone(struck)
        running = start(workspace, *options)
    assert running.wait(2 * PATIENCE) == 0
    assert not RunFolder(workspace).processes()
    assert RunFolder(workspace).digests() == golden.digests()


@pytest.mark.slow
def test_a_run_whose_prefect_server_is_killed_goes_on_to_the_same_digests(
    golden: GoldenRun, tmp_path: Path, start: Start
) -> None:
    workspace = tmp_path / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    RunFolder(workspace).forget("pretrain")
    running = start(workspace)
    wait_for(lambda: RunFolder(workspace).running_job("pretrain"))
    server = LocalJob.read(workspace / "prefect" / "run-smoke")
    assert server
    for pid in descendants(server.supervisor.pid):
        os.kill(pid, signal.SIGKILL)
    assert running.wait(PATIENCE) == 0
    assert not RunFolder(workspace).processes()
    assert RunFolder(workspace).digests() == golden.digests()
