"""The command and environment of a training process."""

import os
import subprocess
import sys

import pytest

from model.config import TrainingMachine
from model.training.environment import threads_per_rank, training_command, training_environment

FRAGMENTED = """
from psutil import Process
from model.training.environment import give_back_memory
pairs = [(bytearray(b"x") * (4 << 20), bytearray(1000)) for _ in range(40)]
between = [small for _, small in pairs]
del pairs
kept = Process().memory_info().rss
give_back_memory()
print((kept - Process().memory_info().rss) >> 20)
"""
"""Mebibytes returned of 160 freed ones, with a used block after each."""


def test_one_rank_is_one_process() -> None:
    command = training_command("model.training.pretrain", "t.json", machine=TrainingMachine())
    assert command == [
        sys.executable, "-P", "-m", "model.training.pretrain", "--config", "t.json",
    ]  # fmt: skip


def test_several_ranks_go_through_deepspeeds_launcher() -> None:
    command = training_command("m", "t.json", machine=TrainingMachine(ranks=3))
    assert command[1:4] == ["-P", "-m", "deepspeed.launcher.runner"]
    assert command[command.index("--num_accelerators") + 1] == "3"
    assert command[-4:] == ["--module", "m", "--config", "t.json"]


def test_every_local_launch_has_a_port_of_its_own() -> None:
    ports = set()
    for _ in range(3):
        command = training_command("m", "t.json", machine=TrainingMachine(ranks=2))
        ports.add(command[command.index("--master_port") + 1])
    assert "29500" not in ports


def test_launcher_options_replace_the_local_ones() -> None:
    options = ["--hostfile", "h", "--no_ssh", "--node_rank", "1"]
    command = training_command(
        "m", "t.json", machine=TrainingMachine(ranks=8), launcher_options=options
    )
    assert command[4:9] == options
    assert "--num_accelerators" not in command


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


def test_neither_it_nor_the_supervisor_needs_torch() -> None:
    code = (
        "import sys; import model.training.environment, model.training.supervisor; "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
