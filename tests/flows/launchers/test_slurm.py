"""Slurm: a real single-node cluster if slurm-wlm is installed, otherwise only the script."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from cloze.flows.launchers.slurm import SlurmConfig, SlurmJob, SlurmLauncher
from tests.conftest import PROJECT, SMOKE, GoldenRun, cloze
from tests.waiting import PATIENCE, wait_for

CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/none
CredType=cred/none
AuthInfo=cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldPort=16917
SlurmdPort=16918
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
KillWait=5
SchedulerParameters=batch_sched_delay=0,sched_interval=1
NodeName={host} NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A real single-node Slurm cluster."""
    if not shutil.which("slurmctld") or os.getuid() != 0:
        pytest.skip("wants Debian's slurm-wlm, and root to run it")
    folder = tmp_path_factory.mktemp("slurm")
    for name in ("state", "spool"):
        (folder / name).mkdir()
    host = gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=host))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
    daemons = [
        subprocess.Popen([name, "-D"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for name in ("slurmctld", "slurmd")
    ]
    try:
        wait_for(lambda: "idle" in output("sinfo"))
        yield
    finally:
        for daemon in reversed(daemons):
            daemon.terminate()
            daemon.wait(PATIENCE)
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before


def output(*argv: str) -> str:
    return subprocess.run(argv, capture_output=True, text=True, check=False).stdout


def launcher(**config: Any) -> SlurmLauncher:
    return SlurmLauncher(SlurmConfig(**config), grace=5.0, ranks=1)


def python(source: str) -> list[str]:
    return [sys.executable, "-P", "-c", textwrap.dedent(source)]


def text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


@pytest.mark.usefixtures("cluster")
def test_a_job_leaves_its_output_and_its_exit_code(tmp_path: Path) -> None:
    slurm, job = launcher(), tmp_path / "tokens"
    slurm.start(python("print('done'); raise SystemExit(3)"), job=job)
    wait_for(lambda: slurm.poll(job) is not None)
    assert (slurm.poll(job), text(job / "log")) == (3, "done\n")


COUNTS = """
import pathlib, signal, sys, time
count = pathlib.Path({file!r})
attempt = int(count.read_text() or 0) if count.exists() else 0
count.write_text(str(attempt + 1))
print("attempt", attempt, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
time.sleep(300 if attempt == 0 else 0)
"""


@pytest.mark.usefixtures("cluster")
def test_a_job_that_is_preempted_goes_back_into_the_queue_and_goes_on(tmp_path: Path) -> None:
    slurm, job = launcher(), tmp_path / "pretrain"
    slurm.start(python(COUNTS.format(file=str(tmp_path / "count"))), job=job)
    wait_for(lambda: "attempt 0" in text(job / "log"))
    found = SlurmJob.read(job)
    assert found
    subprocess.run(["scancel", "--batch", "--signal=TERM", found.slurm_id], check=True)
    wait_for(lambda: slurm.poll(job) is not None)
    assert slurm.poll(job) == 0
    assert text(job / "log") == "attempt 0\nattempt 1\n"


@pytest.mark.usefixtures("cluster")
def test_a_cancelled_job_leaves_nothing_and_does_not_come_back(tmp_path: Path) -> None:
    slurm, job = launcher(), tmp_path / "pretrain"
    slurm.start(python(COUNTS.format(file=str(tmp_path / "count"))), job=job)
    wait_for(lambda: "attempt 0" in text(job / "log"))
    slurm.cancel(job)
    found = SlurmJob.read(job)
    assert found
    assert found.slurm_id not in output("squeue", "--noheader")
    assert text(tmp_path / "count") == "1"


@pytest.mark.usefixtures("cluster")
def test_a_flow_that_died_finds_its_job_again(tmp_path: Path) -> None:
    job, argv = tmp_path / "pretrain", python("import time; print('once'); time.sleep(5)")
    launcher().start(argv, job=job)
    wait_for(lambda: "once" in text(job / "log") or launcher().poll(job) is None)
    first = SlurmJob.read(job)
    again = launcher()
    again.start(argv, job=job)
    assert SlurmJob.read(job) == first
    wait_for(lambda: again.poll(job) is not None)
    assert (again.poll(job), text(job / "log")) == (0, "once\n")


MACHINE = """
[training]
checkpoint_every = 5
[jobs]
launcher = "slurm"
stages = ["pretrain"]
"""
PRETRAIN = ("pretrain", *SMOKE, "--set", "pretrain.steps=300")
"""Long enough to be killed midway."""


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_real_stage_that_is_requeued_in_the_middle_ends_with_the_digest_it_has_without_slurm(
    golden: GoldenRun, tmp_path: Path
) -> None:
    here, there = (copied(golden, tmp_path / name) for name in ("here", "there"))
    (tmp_path / "slurm.toml").write_text(MACHINE)
    done = cloze(*PRETRAIN, "--workspace", str(here), "--json")
    assert done.returncode == 0, done.stderr
    job = there / "smoke" / "jobs" / "pretrain"
    (job / "log").unlink()
    source = "from cloze.command import main; main()"
    where = ("--workspace", str(there), "--on", str(tmp_path / "slurm.toml"), "--json")
    with subprocess.Popen(
        [sys.executable, "-P", "-c", source, *PRETRAIN, *where],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=PROJECT,
        text=True,
    ) as running:
        wait_for(lambda: has_unfinished_checkpoint(there))
        found = SlurmJob.read(job)
        assert found
        subprocess.run(["scontrol", "requeue", found.slurm_id], check=True)
        answered, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 0
    assert "resuming from step" in text(job / "log")
    digests = [json.loads(told)["pretrain"]["digest"] for told in (done.stdout, answered)]
    assert digests[0] == digests[1]


def has_unfinished_checkpoint(workspace: Path) -> bool:
    found = workspace.glob("artifacts/pretrain/*/checkpoints/step-*")
    return any(not (step.parents[1] / "manifest.json").exists() for step in found)


def copied(golden: GoldenRun, workspace: Path) -> Path:
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    return workspace


@pytest.mark.parametrize("nodes", [1, 2])
def test_the_batch_script_passes_shellcheck(tmp_path: Path, nodes: int) -> None:
    checker = Path(sys.executable).parent / "shellcheck"
    slurm = launcher(nodes=nodes, setup="module load cuda")
    script = slurm.script(["python", "-P", "-m", "it's", "a b"], job=tmp_path / "a job")
    (tmp_path / "batch.sh").write_text(script)
    assert output(str(checker), "--severity=warning", str(tmp_path / "batch.sh")) == ""
    assert ("srun" in script) == (nodes > 1)


def test_without_slurm_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception, match="^sbatch not found; run on a node with Slurm's commands"):
        launcher().start(["true"], job=tmp_path / "job")
