"""What ranks say to each other, and what a rank alone makes of it."""

import os
import subprocess
import sys

import pytest
import torch

from artifacts.errors import IntegrityError
from model.training import distributed as world_module
from model.training.distributed import World
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
from model.training.distributed import join_world
world = join_world(threads=1, timeout=60.0)
world.barrier()
print(*(one.laddr.ip for one in psutil.Process().net_connections("tcp") if one.status == "LISTEN"))
world.barrier()
"""
