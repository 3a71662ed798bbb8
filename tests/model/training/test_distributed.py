"""Collective operations between ranks, and with a single rank."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.model.training import distributed as world_module
from cloze.model.training.distributed import World, gradient_buckets, training_device
from tests.listening import outside
from tests.waiting import PATIENCE, free_port

ALONE = World(rank=0, ranks=1, device=torch.device("cpu"))


def test_alone_nothing_is_sent() -> None:
    assert ALONE.sum([1.0, 2.5]) == [1.0, 2.5]
    assert ALONE.broadcast({"step": 3}) == {"step": 3}
    tensor = torch.ones(2)
    assert ALONE.broadcast_tensor(tensor) is tensor
    ALONE.barrier()
    ALONE.require_agreement({"stage table": "a"})


def test_a_rank_with_other_inputs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def gather(everyone: list[object], facts: object) -> None:
        everyone[:] = [facts, {"examples": "f00d" * 16}]

    monkeypatch.setattr(world_module.distributed, "all_gather_object", gather)
    world = World(rank=0, ranks=2, device=torch.device("cpu"))
    with pytest.raises(IntegrityError, match="rank 1 has examples f00df00df00d, rank 0 has beef"):
        world.require_agreement({"examples": "beef" * 16})


def test_gradients_are_summed_in_full_buckets_from_the_last_layer_to_the_first() -> None:
    first, second, third, fourth = (torch.nn.Parameter(torch.zeros(2)) for _ in range(4))
    large = torch.nn.Parameter(torch.zeros(100))
    found = gradient_buckets((large, first, second, third, fourth), bucket_bytes=16)
    expected = [[fourth, third], [second, first], [large]]
    assert [[id(one) for one in bucket] for bucket in found] == [
        [id(one) for one in bucket] for bucket in expected
    ]


def test_ranks_of_one_machine_listen_on_loopback_alone() -> None:
    environment = {
        **os.environ,
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-P", "-c", LISTENS],
            env={**environment, "RANK": str(rank), "LOCAL_RANK": "0"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    said = [rank.communicate(timeout=PATIENCE)[0].split() for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    addresses = {address for line in said for address in line}
    assert addresses
    assert not outside(addresses), addresses


LISTENS = """
import psutil
from cloze.model.training.distributed import join_world
world = join_world(threads=1, timeout=60.0)
world.barrier()
print(*(one.laddr.ip for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"))
world.barrier()
"""


def test_the_cpu_is_used_where_there_is_no_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world_module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(world_module, "has_gpu", lambda: False)
    assert training_device("auto").type == "cpu"
    with pytest.raises(UsageError, match=r"= cuda: rank 0 .* no GPU.*no NVIDIA driver.*= cpu"):
        training_device("cuda")


def test_a_gpu_that_cannot_be_used_is_refused_and_never_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(world_module.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(world_module, "has_gpu", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match=r"an NVIDIA driver is loaded.*training.device = cpu"):
        training_device("auto")
    assert training_device("cpu").type == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert training_device("auto").type == "cpu"


def test_a_rank_without_a_gpu_of_its_own_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_module.torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(world_module.torch.cuda, "device_count", lambda: 2)
    assert training_device("auto", local_rank=1) == torch.device("cuda", 1)
    with pytest.raises(UsageError, match="rank 2 of this machine has no GPU, torch .* sees 2"):
        training_device("auto", local_rank=2)
