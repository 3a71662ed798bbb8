"""Programs that use torch run in the right environment, however they are started."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.artifacts.stage import StageTable, write_stage_table
from cloze.model.config import TrainingMachine
from cloze.model.training.start import (
    ALLOCATOR,
    KERNEL_CACHES,
    WAITING,
    ranks_of,
    shares_of_cores,
    threads_per_rank,
    training_environment,
)
from tests.conftest import SMOKE, GoldenRun, cloze
from tests.running import RunFolder
from tests.waiting import PATIENCE

PROGRAM = """
import json, os, sys
from cloze.model.training.start import restart_prepared
restart_prepared()
print(json.dumps([os.getpid(), sys.argv[1:], dict(os.environ)]))
"""


FRAGMENTED = """
from psutil import Process
from cloze.model.training.start import give_back_memory
pairs = [(bytearray(b"x") * (4 << 20), bytearray(1000)) for _ in range(40)]
between = [small for _, small in pairs]
del pairs
kept = Process().memory_info().rss
give_back_memory()
print((kept - Process().memory_info().rss) >> 20)
"""
"""Mebibytes returned of 160 freed ones, with a used block after each."""


@pytest.fixture
def table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stage table, and a program that prints its environment."""
    for name in (*ALLOCATOR, *WAITING, *KERNEL_CACHES, "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    path = tmp_path / "table.json"
    stage = StageTable(
        stage="pretrain", format_version=1, config={}, output="out", machine={"threads": 3}
    )
    write_stage_table(stage, path)
    (tmp_path / "program.py").write_text(PROGRAM)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path.cwd()}")
    return path


@pytest.mark.parametrize("starter", [["cloze.model.training.start"], []])
def test_a_program_finds_its_environment_whoever_starts_it(
    starter: list[str], table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "17")
    argv = [sys.executable, "-P", "-m", *starter, "program", "--config", str(table), "more"]
    started = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    pid, arguments, environment = json.loads(started.communicate()[0])
    assert (pid, arguments) == (started.pid, ["--config", str(table), "more"])
    assert environment["OMP_NUM_THREADS"] == "3"
    assert environment["MALLOC_TOP_PAD_"] == "17"
    assert {**environment, **WAITING} == environment


def test_a_table_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    argv = [sys.executable, "-P", "-m", "cloze.model.training.start", "program", "--config"]
    done = subprocess.run(
        [*argv, str(tmp_path / "none")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "no such stage table" in done.stderr


@pytest.mark.slow
def test_openmp_takes_the_settings_in_every_stage_that_cloze_starts(
    golden: GoldenRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = tmp_path / "runs"
    shutil.copytree(golden.workspace, workspace, ignore=shutil.ignore_patterns("prefect"))
    run = RunFolder(workspace)
    run.forget("pretrain", "finetune", "evaluate")
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OMP_DISPLAY_ENV", "verbose")
    done = cloze("run", *SMOKE, "--workspace", str(workspace), "--without-prefect")
    assert done.returncode == 0, done.stderr
    for stage in ("pretrain", "finetune", "evaluate"):
        log = (run.job(stage) / "log").read_text()
        # OpenMP says so when it is loaded: in a fork, that was in its supervisor.
        said = log if "OMP_WAIT_POLICY" in log else done.stderr
        for name, value in WAITING.items():
            assert f"{name} = '{value}'" in said, f"{stage}: {said[:2000]}"


def test_one_rank_is_one_process() -> None:
    (rank,) = ranks_of("m", "t.json", machine=TrainingMachine())
    assert rank.argv == (sys.executable, "-P", "-u", "-m", "m", "--config", "t.json")
    assert "RANK" not in rank.environment


def test_the_ranks_of_a_machine_know_their_places_and_a_port_that_is_theirs_alone() -> None:
    launches = [ranks_of("m", "t.json", machine=TrainingMachine(ranks=3)) for _ in range(2)]
    for launch in launches:
        assert [rank.environment["RANK"] for rank in launch] == ["0", "1", "2"]
        assert [rank.environment["LOCAL_RANK"] for rank in launch] == ["0", "1", "2"]
        assert {rank.environment["WORLD_SIZE"] for rank in launch} == {"3"}
        assert {rank.environment["MASTER_ADDR"] for rank in launch} == {"127.0.0.1"}
        assert len({rank.environment["MASTER_PORT"] for rank in launch}) == 1
    ports = {launch[0].environment["MASTER_PORT"] for launch in launches}
    assert len(ports) == 2
    assert "29500" not in ports


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is bound")
def test_each_rank_has_cores_of_its_own_if_there_are_enough_and_no_threads_are_set() -> None:
    cores = os.sched_getaffinity(0)
    shares = shares_of_cores(TrainingMachine(ranks=2))
    if len(cores) >= 2 and shares[0]:
        assert len(shares[0]) == len(shares[1])
        assert not set(shares[0]) & set(shares[1])
        assert {*shares[0], *shares[1]} <= cores
    assert shares_of_cores(TrainingMachine(ranks=len(cores) + 1)) == [()] * (len(cores) + 1)
    assert shares_of_cores(TrainingMachine(ranks=2, threads=1)) == [(), ()]


def test_launcher_options_leave_the_ranks_to_deepspeeds_launcher() -> None:
    options = ["--hostfile", "h", "--no_ssh", "--node_rank", "1"]
    (launcher,) = ranks_of(
        "m", "t.json", machine=TrainingMachine(ranks=8), launcher_options=options
    )
    program = ("--module", "m", "--config", "t.json")
    assert launcher.argv[1:] == ("-P", "-m", "deepspeed.launcher.runner", *options, *program)


def test_memory_is_kept_and_ones_own_settings_win(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MALLOC_TOP_PAD_", "17")
    found = training_environment(TrainingMachine())
    assert found["MALLOC_TRIM_THRESHOLD_"] == "100000000000"
    assert found["MALLOC_TOP_PAD_"] == "17"
    assert found["PYTORCH_ALLOC_CONF"] == "expandable_segments:True"


@pytest.mark.skipif(sys.platform != "linux", reason="the allocator's settings are glibc's")
def test_memory_that_is_kept_can_be_given_back() -> None:
    environment = {**os.environ, **training_environment(TrainingMachine())}
    done = subprocess.run(
        [sys.executable, "-c", FRAGMENTED], env=environment, capture_output=True, check=True
    )
    assert int(done.stdout) >= 100


def test_training_on_the_cpu_keeps_deepspeed_off_the_gpus() -> None:
    assert training_environment(TrainingMachine(device="cpu"))["DS_ACCELERATOR"] == "cpu"
    assert "DS_ACCELERATOR" not in training_environment(TrainingMachine())


def test_ranks_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    assert threads_per_rank(TrainingMachine()) == 8
    assert threads_per_rank(TrainingMachine(ranks=3)) == 2
    assert threads_per_rank(TrainingMachine(ranks=3, threads=5)) == 5


def test_a_rank_bound_to_its_cores_uses_them_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(os, "cpu_count", lambda: 8)
    monkeypatch.setenv("LOCAL_RANK", "1")
    assert threads_per_rank(TrainingMachine(ranks=4)) == 2


def test_neither_starting_nor_supervising_needs_torch() -> None:
    code = (
        "import sys; import cloze.model.training.start, cloze.model.training.supervisor; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


LEAN = """
import sys
import torch
import cloze.model.evaluation.evaluate, cloze.model.finetune.finetune, cloze.model.inference.load
import cloze.model.training.pretrain
from cloze.model.config import EncoderConfig, OptimizerConfig
from cloze.model.encoder.models import Encoder, PretrainingModel, TaskModel
from cloze.model.encoder.models import initialise, shapes_alone
from cloze.model.training.optimizer import build_optimizer

for family in ("bert", "modern"):
    config = EncoderConfig(family=family, preset="tiny")
    with shapes_alone():
        shapes = PretrainingModel(Encoder(config, 100)).state_dict()
        TaskModel(Encoder(config, 100), outputs=3, bilstm=True)
    module = PretrainingModel(Encoder(config, 100))
    assert {name: value.shape for name, value in module.state_dict().items()} == {
        name: value.shape for name, value in shapes.items()
    }
    assert all(value.is_meta for value in shapes.values())
    initialise(module, config)
    for name in ("adamw", "muon", "lamb", "stable_adamw"):
        named = list(module.named_parameters())
        recipe = OptimizerConfig(name=name)
        optimizer = build_optimizer(named, config=recipe, precision="fp32")
        for parameter in module.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
        optimizer.zero_grad()
        optimizer.load_state_dict(optimizer.state_dict())
print([name for name in ("torch._dynamo", "sympy", "deepspeed") if name in sys.modules])
"""


def test_programs_start_without_importing_torchs_compiler_or_deepspeed() -> None:
    """The first two are more than half of the start-up time; a single rank needs no third."""
    done = subprocess.run(
        [sys.executable, "-c", LEAN], capture_output=True, text=True, check=False, timeout=PATIENCE
    )
    assert done.stdout == "[]\n", done.stderr


def test_predicting_does_not_wait_for_the_libraries_of_metrics() -> None:
    source = (
        "import sys, cloze.inference.prediction, model.finetune.finetune, model.tasks.problems\n"
        "print([name for name in ('sklearn', 'scipy.stats', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", source],
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    assert done.stdout == "[]\n", done.stderr
