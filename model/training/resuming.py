"""Going on from a checkpoint: which one, whether it belongs to this run, and to all ranks.

In:  the checkpoints of the first rank, the run's facts.
Out: `Resumed`, the same on every rank; the first rank's disk is the only one that is read.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from artifacts.errors import UsageError
from artifacts.progress import say
from model.training.checkpoints import Checkpoint, Checkpoints
from model.training.distributed import World
from model.training.state import ParameterState


@dataclass(frozen=True)
class Resumed:
    """A saved state, on every rank."""

    state: dict[str, Any]
    parameters: dict[str, ParameterState]

    @property
    def step(self) -> int:
        """Steps done."""
        return int(self.state["step"])


def resume(
    checkpoints: Checkpoints,
    *,
    world: World,
    shapes: Mapping[str, torch.Size],
    facts: Mapping[str, Any],
) -> Resumed | None:
    """The newest intact checkpoint, if it belongs to this run; None where there is none at all."""
    found = None
    if world.is_first:
        checkpoints.sweep()
        found = checkpoints.newest()
    state = world.broadcast(None if found is None else found.state)
    if state is None:
        return None
    refuse_changes(state, facts, where=str(checkpoints.directory))
    if world.is_first:
        say(f"resuming from step {state['step']} in {checkpoints.directory}")
    return Resumed(state, dict(_parameters(found, world, shapes)))


def refuse_changes(state: Mapping[str, Any], facts: Mapping[str, Any], *, where: str) -> None:
    """A checkpoint of another configuration is refused, and what differs is named."""
    ours, theirs = _flat(facts), _flat({name: state.get(name) for name in facts})
    changed = sorted(
        name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name)
    )
    if changed:
        diff = "; ".join(
            f"{name}: checkpoint {theirs.get(name)!r}, now {ours.get(name)!r}" for name in changed
        )
        raise UsageError(
            f"{where}: the checkpoints there belong to another configuration ({diff}); "
            "change it back, or remove them to begin anew"
        )


def _parameters(
    found: Checkpoint | None, world: World, shapes: Mapping[str, torch.Size]
) -> Iterator[tuple[str, ParameterState]]:
    read = found.parameters() if found is not None else {}
    for name, shape in shapes.items():
        mine = read.get(name, ParameterState(*(torch.zeros(shape) for _ in ParameterState._fields)))
        yield name, ParameterState(*(world.broadcast_tensor(tensor) for tensor in mine))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings and lists as `a.b.0` → value."""
    if isinstance(value, Mapping):
        items = [(str(key), inner) for key, inner in value.items()]
    elif isinstance(value, list | tuple):
        items = [(str(index), inner) for index, inner in enumerate(value)]
    else:
        return {prefix: value}
    return {
        name: leaf
        for key, inner in items
        for name, leaf in _flat(inner, f"{prefix}.{key}" if prefix else key).items()
    }
