"""What ranks say to each other, and what a rank alone makes of it."""

import pytest
import torch

from artifacts.errors import IntegrityError
from model.training import distributed as world_module
from model.training.distributed import World

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
