"""Two nodes of a real Slurm cluster, which share the trials of a fine-tuning and its evaluation."""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.artifacts.results import Trials
from cloze.artifacts.store import open_artifact
from cloze.flows.config import MachineConfig
from cloze.flows.launchers.slurm import SlurmJob
from tests.conftest import PROJECT, SMOKE, GoldenRun, cloze, command
from tests.slurm import output, slurm_cluster
from tests.waiting import PATIENCE, wait_for

NODES = ("127.0.0.2", "127.0.0.3")

MACHINE = """
[jobs]
launcher = "slurm"
stages = ["finetune", "evaluate"]
[slurm]
nodes = 2
"""

EVALUATE = ("evaluate", *SMOKE, "--set", "finetune.seeds=[5, 6, 7, 8]", "--json")
"""Sixteen trials, none of which the golden run has."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with slurm_cluster(tmp_path_factory.mktemp("slurm"), nodes=NODES):
        yield


def test_only_what_runs_as_ranks_is_spread_over_nodes() -> None:
    table = {"jobs": {"launcher": "slurm", "stages": ["tokens", "finetune"]}, "slurm": {"nodes": 4}}
    machine = MachineConfig.model_validate(table)
    nodes = {stage: machine.nodes(stage) for stage in ("tokens", "pretrain", "finetune")}
    assert nodes == {"tokens": 1, "pretrain": 1, "finetune": 4}


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_two_nodes_share_the_trials_each_run_once_also_if_the_job_is_cancelled_on_the_way(
    golden: GoldenRun, tmp_path: Path
) -> None:
    here, there = (copied(golden, tmp_path / name) for name in ("here", "there"))
    (tmp_path / "slurm.toml").write_text(MACHINE)
    alone = cloze(*EVALUATE, "--workspace", str(here))
    assert alone.returncode == 0, alone.stderr
    where = ("--workspace", str(there), "--on", str(tmp_path / "slurm.toml"))
    cancel_after_a_trial(there, command(*EVALUATE, *where))
    begun = set(unfinished_trials(there))
    done = cloze(*EVALUATE, *where)
    assert done.returncode == 0, done.stderr
    ours, theirs = (json.loads(told)["evaluate"]["digest"] for told in (done.stdout, alone.stdout))
    assert ours == theirs

    made = [*map(str, there.glob("artifacts/finetune/*"))]
    (directory,) = (
        one for one in made if not (golden.workspace / Path(one).relative_to(there)).exists()
    )
    artifact = open_artifact(directory)
    trials = Trials.model_validate(artifact.read_json("trials.json")).trials
    names = {f"trials/{one.task}-{one.system}-{one.seed}.json" for one in trials}
    assert len(names) == 16
    log = (there / "smoke" / "jobs" / "finetune" / "log").read_text().splitlines()
    for one in trials:
        title = f"finetune {one.task} {one.system} seed {one.seed}: "
        told = sum(line.startswith(title) for line in log)
        # One that was cancelled between its file and its line is not told of.
        cut_off = f"trials/{one.task}-{one.system}-{one.seed}.json" in begun
        assert told == 1 or (cut_off and not told), title
    ran = [set(json.loads(file.read_text())) for file in sorted(seconds_files(artifact.directory))]
    assert len(ran) == 4, "two nodes with two workers each"
    assert all(ran)
    assert set().union(*ran) == names - begun


def cancel_after_a_trial(workspace: Path, started: tuple[list[str], dict[str, str]]) -> None:
    argv, environment = started
    pipe = subprocess.PIPE
    with subprocess.Popen(
        argv, stdout=pipe, stderr=pipe, cwd=PROJECT, env=environment, text=True
    ) as running:
        wait_for(lambda: unfinished_trials(workspace))
        found = SlurmJob.read(workspace / "smoke" / "jobs" / "finetune")
        assert found
        subprocess.run(["scancel", found.slurm_id], check=True)
        _, said = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert "finetune: cancelled; the same command resumes it" in said


def unfinished_trials(workspace: Path) -> list[str]:
    found = workspace.glob("artifacts/finetune/*/trials/*.json")
    names = (one for one in found if not (one.parents[1] / "manifest.json").exists())
    return [f"trials/{one.name.partition('.')[0]}.json" for one in names]


def seconds_files(directory: str) -> list[Path]:
    return list(Path(directory).glob("seconds-*.json"))


@pytest.mark.slow
@pytest.mark.usefixtures("cluster")
def test_a_stage_submitted_by_hand_runs_once_on_both_nodes(
    golden: GoldenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = copied(golden, tmp_path / "there")
    shutil.rmtree(next(workspace.glob("artifacts/pretrain/*")))
    planned = cloze("plan", *SMOKE, "--workspace", str(workspace), "--tables")
    assert planned.returncode == 0, planned.stderr
    monkeypatch.setenv("PYTHON", sys.executable)
    log, script = tmp_path / "log", PROJECT / "infra" / "slurm" / "pretrain-multinode.sbatch"
    table = workspace / "smoke" / "stages" / "pretrain.json"
    output("sbatch", "--wait", f"--output={log}", f"--chdir={tmp_path}", str(script), str(table))
    assert "ranks=2" in log.read_text()
    digest = next(workspace.glob("artifacts/pretrain/*/manifest.json"))
    assert digest.exists()


def copied(golden: GoldenRun, workspace: Path) -> Path:
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    return workspace
