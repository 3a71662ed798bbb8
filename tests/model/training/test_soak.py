"""A run that is killed again and again, from inside and outside, ends as if uninterrupted."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cloze.artifacts.store import Artifact, open_artifact
from cloze.model.training.checkpoints import Checkpoints
from tests.model.training.training_fixtures import examples_artifact, run_ranks, stage_table
from tests.waiting import PATIENCE, wait_for

KILLS = 30
STEPS = 5 * KILLS + 10
"""An upper limit on the sites seen by more than thirty forks, each with at most one checkpoint."""


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return examples_artifact(tmp_path_factory.mktemp("examples"))


@pytest.mark.slow
@pytest.mark.long
def test_thirty_kills_leave_the_same_bytes(examples: Artifact, tmp_path: Path) -> None:
    for name in ("golden", "struck"):
        (tmp_path / name).mkdir()
    machine = {"keep_checkpoints": 1}
    golden = stage_table(tmp_path / "golden", examples, steps=STEPS, machine=machine)
    assert run_ranks(1, [{"table": str(golden)}])[0].ends[0]["end"] == "done"
    struck = stage_table(tmp_path / "struck", examples, steps=STEPS, machine=machine)
    program = str(Path(__file__).with_name("soak_program.py"))
    done = subprocess.run(
        [sys.executable, program, str(struck), str(KILLS), "1"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    said = json.loads(done.stdout.splitlines()[-1])
    assert said["not_killed"] == []
    assert said["finished"]
    assert len(set(said["sites"])) >= 8, "the seed spares few sites"
    digests = [open_artifact(str(tmp_path / n / "out")).digest for n in ("golden", "struck")]
    assert digests[0] == digests[1]


@pytest.mark.slow
def test_the_supervisor_starts_killed_ranks_again_and_the_bytes_are_the_same(
    examples: Artifact, tmp_path: Path
) -> None:
    for name in ("golden", "struck"):
        (tmp_path / name).mkdir()
    changes = {"steps": 60, "evaluate_every": 30}
    golden = stage_table(tmp_path / "golden", examples, **changes)
    assert run_ranks(2, [{"table": str(golden)}])[0].ends[0]["end"] == "done"
    machine = {"ranks": 2, "checkpoint_every": 10}
    struck = stage_table(tmp_path / "struck", examples, machine=machine, **changes)
    module = "cloze.model.training.supervisor"
    command = [sys.executable, "-P", "-m", module, "cloze.model.training.pretrain"]
    supervisor = subprocess.Popen(
        [*command, "--config", str(struck), "--max-restarts", "2"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    checkpoints = Checkpoints(tmp_path / "struck" / "out" / "checkpoints", 1)
    try:
        for step, victim in ((10, 1), (30, 0)):
            _kill_rank(supervisor.pid, checkpoints, after=step, rank=victim)
        _, stderr = supervisor.communicate(timeout=900)
    finally:
        supervisor.terminate()
        supervisor.wait(PATIENCE)
    assert supervisor.returncode == 0, stderr[-4000:]
    assert stderr.count("starting again") == 2
    assert stderr.count("resuming from step") == 2
    digests = [open_artifact(str(tmp_path / n / "out")).digest for n in ("golden", "struck")]
    assert digests[0] == digests[1]


def _kill_rank(supervisor: int, checkpoints: Checkpoints, *, after: int, rank: int) -> None:
    """SIGKILL one rank as soon as a checkpoint of step `after` or later exists."""
    wait_for(
        lambda: max(checkpoints.steps(), default=0) >= after,
        seconds=2 * PATIENCE,
        what=f"a checkpoint of step {after}",
    )
    family = psutil.Process(supervisor).children(recursive=True)
    ranks = {_rank(process): process for process in family}
    os.kill(ranks[str(rank)].pid, signal.SIGKILL)


def _rank(process: psutil.Process) -> str | None:
    """The rank of a process; None for the launchers above the ranks."""
    line = process.cmdline()
    is_rank = any("cloze.model.training.pretrain" in part for part in line) and not any(
        "deepspeed.launcher" in part for part in line
    )
    return process.environ().get("RANK") if is_rank else None
