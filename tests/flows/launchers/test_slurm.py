"""Slurm: a real single-node cluster if slurm-wlm is installed, otherwise only the script."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.launchers.launcher import CANCELLED
from cloze.flows.launchers.slurm import SlurmConfig, SlurmJob, SlurmLauncher
from tests.conftest import PROJECT, SMOKE, GoldenRun, cloze, command
from tests.slurm import output, slurm_cluster
from tests.waiting import PATIENCE, wait_for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm")):
        yield


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
import os, pathlib, signal, time
count = pathlib.Path({file!r})
attempt = int(count.read_text() or 0) if count.exists() else 0
count.write_text(str(attempt + 1))
print("attempt", attempt, flush=True)
signal.signal(signal.SIGTERM, lambda *_: os._exit(143))
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


@pytest.mark.slow
@pytest.mark.parametrize("partition", ["main", "ended"])
@pytest.mark.usefixtures("cluster")
def test_a_job_that_gives_way_to_an_urgent_one_is_requeued_whoever_does_it(
    tmp_path: Path, partition: str
) -> None:
    slurm, job = launcher(options=(f"--partition={partition}",)), tmp_path / "pretrain"
    slurm.start(python(COUNTS.format(file=str(tmp_path / "count"))), job=job)
    wait_for(lambda: "attempt 0" in text(job / "log"))
    urgent = ("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
    subprocess.run(urgent, check=True, stdout=subprocess.DEVNULL)
    wait_for(lambda: slurm.poll(job) is not None)
    assert (slurm.poll(job), text(job / "log")) == (0, "attempt 0\nattempt 1\n")


# Slurm warns up to half a minute earlier than asked for, and once: a warning that arrives before
# the script has begun is lost. So it is asked for later than that.
@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_job_that_nears_its_time_limit_is_requeued(tmp_path: Path) -> None:
    slurm, job = launcher(options=("--time=1", "--signal=B:TERM@20")), tmp_path / "pretrain"
    slurm.start(python(COUNTS.format(file=str(tmp_path / "count"))), job=job)
    wait_for(lambda: slurm.poll(job) is not None)
    assert (slurm.poll(job), text(job / "log")) == (0, "attempt 0\nattempt 1\n")


@pytest.mark.usefixtures("cluster")
def test_scancel_ends_a_job_that_runs_and_one_that_waits(tmp_path: Path) -> None:
    runs, waits = launcher(options=("--exclusive",)), launcher()
    jobs = [tmp_path / "pretrain", tmp_path / "finetune"]
    runs.start(python(COUNTS.format(file=str(tmp_path / "count"))), job=jobs[0])
    wait_for(lambda: "attempt 0" in text(jobs[0] / "log"))
    waits.start(python("print('never')"), job=jobs[1])
    for job in reversed(jobs):
        scancel(job)
    for slurm, job in zip((runs, waits), jobs, strict=True):
        assert wait_for(partial(slurm.poll, job), seconds=30) == slurm.poll(job) == CANCELLED
    assert (text(tmp_path / "count"), text(jobs[1] / "log")) == ("1", "")
    assert output("squeue", "--noheader") == ""


def scancel(job: Path) -> None:
    found = SlurmJob.read(job)
    assert found
    subprocess.run(["scancel", found.slurm_id], check=True)


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
PRETRAIN = (
    *("pretrain", *SMOKE, "--set", "pretrain.steps=300"),
    *("--set", "pretrain.precision=fp32", "--set", "finetune.precision=fp32"),
)
"""Long enough to be killed midway; in a precision of every processor."""


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


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_scancel_ends_the_command_that_waits_and_the_same_command_resumes(
    golden: GoldenRun, tmp_path: Path
) -> None:
    workspace = copied(golden, tmp_path / "there")
    (tmp_path / "slurm.toml").write_text(MACHINE)
    argv = (*PRETRAIN, "--workspace", str(workspace), "--on", str(tmp_path / "slurm.toml"))
    program, environment = command(*argv)
    pipe = subprocess.PIPE
    with subprocess.Popen(
        program, stdout=pipe, stderr=pipe, cwd=PROJECT, env=environment, text=True
    ) as running:
        wait_for(lambda: has_unfinished_checkpoint(workspace))
        scancel(workspace / "smoke" / "jobs" / "pretrain")
        wait_for(lambda: output("squeue", "--noheader") == "", seconds=30)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "pretrain: cancelled; the same command resumes it" in said
    assert has_unfinished_checkpoint(workspace)
    done = cloze(*argv)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in text(workspace / "smoke" / "jobs" / "pretrain" / "log")


@pytest.mark.slow
@pytest.mark.parametrize("script", ["pretrain.sbatch", "pretrain-multinode.sbatch"])
@pytest.mark.usefixtures("cluster")
def test_scancel_ends_a_job_submitted_by_hand_and_the_same_command_resumes(
    golden: GoldenRun, tmp_path: Path, script: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = copied(golden, tmp_path / "there")
    (tmp_path / "machine.toml").write_text("[training]\ncheckpoint_every = 5\n")
    on = ("--workspace", str(workspace), "--on", str(tmp_path / "machine.toml"))
    planned = cloze("plan", *PRETRAIN[1:], *on, "--tables")
    assert planned.returncode == 0, planned.stderr
    monkeypatch.setenv("VIRTUAL_ENV", str(Path(sys.executable).parents[1]))  # it is activated
    table = str(workspace / "smoke" / "stages" / "pretrain.json")
    log = tmp_path / "log"
    by_hand = ("sbatch", "--parsable", "--nodes=1", f"--output={log}", f"--chdir={tmp_path}")
    submit = (*by_hand, str(PROJECT / "infra" / "slurm" / script), table)
    first = output(*submit).strip()
    wait_for(lambda: has_unfinished_checkpoint(workspace))
    subprocess.run(["scancel", first], check=True)
    wait_for(lambda: output("squeue", "--noheader") == "", seconds=30)
    assert has_unfinished_checkpoint(workspace)
    output(*submit)
    wait_for(lambda: not has_unfinished_checkpoint(workspace))
    assert "resuming from step" in text(log)
    wait_for(lambda: output("squeue", "--noheader") == "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "script"),
    [
        ("pre-emption", "pretrain.sbatch"),
        ("pre-emption", "pretrain-multinode.sbatch"),
        ("time limit", "pretrain.sbatch"),
        ("time limit", "pretrain-multinode.sbatch"),
    ],
)
@pytest.mark.usefixtures("cluster")
def test_a_job_submitted_by_hand_is_requeued(
    tmp_path: Path, script: str, cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "counts.py").write_text(COUNTS.format(file=str(tmp_path / "count")))
    stand_in = f'#!/bin/sh\n[ "$2" = -c ] || exec {sys.executable} {tmp_path}/counts.py\n'
    (tmp_path / "python").write_text(stand_in)
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setenv("PYTHON", str(tmp_path / "python"))
    log, signalled = tmp_path / "log", "TERM@20" if "multinode" in script else "B:TERM@20"
    timed = ("--time=1", f"--signal={signalled}") if cause == "time limit" else ()
    by_hand = ("sbatch", "--partition=ended", "--nodes=1", f"--output={log}", *timed)
    output(*by_hand, f"--chdir={tmp_path}", str(PROJECT / "infra" / "slurm" / script), "table.json")
    wait_for(lambda: "attempt 0" in text(log))
    if cause == "pre-emption":
        output("sbatch", "--partition=urgent", "--exclusive", "--output=/dev/null", "--wrap=true")
    wait_for(lambda: "attempt 1" in text(log))
    wait_for(lambda: output("squeue", "--noheader") == "")
    assert text(tmp_path / "count") == "2"


# Signalled itself, as by a Slurm that repeats its signal.
SCONTROL = """#!/bin/sh
[ "$2" = hostnames ] || kill -TERM $$
[ "$1" != requeue ] || touch requeued
echo "JobId=7 JobState={state} Reason=None PreemptTime={preempted}"
"""

WORKS = """#!/bin/sh
[ "$2" != -c ] || exit 0
trap 'exit 143' TERM
echo begun
while :; do sleep 0.05; done
"""


@pytest.mark.parametrize("script", ["pretrain.sbatch", "pretrain-multinode.sbatch", "launcher"])
@pytest.mark.parametrize(
    ("state", "preempted", "requeues"),
    [
        ("RUNNING", "None", True),
        # Until all its nodes have confirmed the signal.
        ("SIGNALING", "None", True),
        ("COMPLETING", "2026-01-01T00:00:00", True),
        ("COMPLETING", "None", False),
    ],
)
def test_a_job_that_is_signalled_is_requeued_unless_it_is_cancelled(
    tmp_path: Path, script: str, state: str, preempted: str, requeues: bool
) -> None:
    said = SCONTROL.format(state=state, preempted=preempted)
    programs = {"scontrol": said, "srun": WORKS, "python": WORKS}
    for name, source in programs.items():
        (tmp_path / name).write_text(source)
        (tmp_path / name).chmod(0o755)
    path = PROJECT / "infra" / "slurm" / script
    if script == "launcher":
        path = tmp_path / "script"
        path.write_text(launcher().script([str(tmp_path / "python"), "x"], job=tmp_path / "job"))
        (tmp_path / "job").mkdir()
    with subprocess.Popen(
        ["bash", str(path), "table.json"],
        cwd=tmp_path,
        env={
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "PYTHON": str(tmp_path / "python"),
            "SLURM_JOB_ID": "7",
            "SLURM_JOB_NODELIST": "here",
        },
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as running:
        if script == "launcher":
            wait_for(lambda: "begun" in text(tmp_path / "job" / "log"))
        else:
            assert running.stdout
            assert running.stdout.readline() == b"begun\n"
        # As Slurm does: the step's processes of the script for many nodes, otherwise the script.
        if "multinode" in script:
            os.killpg(running.pid, signal.SIGTERM)
        else:
            running.terminate()
        assert running.wait(PATIENCE) == 143
    assert (tmp_path / "requeued").exists() == requeues


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


def test_nothing_that_is_put_into_the_batch_script_is_run_by_its_shell(tmp_path: Path) -> None:
    hostile = "a $(touch owned) `touch owned`; touch owned 'b'"
    lines = launcher().script(["python", hostile], job=tmp_path / hostile).splitlines()
    (job,) = (line for line in lines if line.startswith("job="))
    (program,) = (line.removesuffix("&") for line in lines if "--exit-name" in line)
    shell = f"attempt=x\n{job}\nprintf '%s\\0' \"$job\" {program}"
    done = subprocess.run(
        ["bash", "-c", shell], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    words = done.stdout.split("\0")
    assert words[0] == str(tmp_path / hostile)
    assert words[-3:-1] == ["python", hostile]
    assert not (tmp_path / "owned").exists()


def test_without_slurm_the_error_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Exception, match="^sbatch not found; run on a node with Slurm's commands"):
        launcher().start(["true"], job=tmp_path / "job")


@pytest.mark.parametrize("script", ["pretrain.sbatch", "pretrain-multinode.sbatch"])
def test_a_job_by_hand_without_its_environment_ends_at_once_and_says_what_to_activate(
    tmp_path: Path, script: str
) -> None:
    done = subprocess.run(
        ["bash", str(PROJECT / "infra" / "slurm" / script), "table.json"],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    said = f"{tmp_path}/.venv/bin/python: cannot import cloze; activate its environment"
    assert said in done.stderr
