"""The optimizer steps of a fit whose batches several ranks share: DeepSpeed's engine.

In:  a fit's reader; the ranks.
Out: `SplitUpdates`: the engine of pre-training round the reader's module.

Losses are divided by the global batch's counts before, so a sum over ranks is what is wanted.
"""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from model.config import OptimizerConfig, TrainingMachine
from model.finetune.local_optimizer import OwnUpdates, Updates
from model.finetune.readers import FineTuning, Reader
from model.training.distributed import World
from model.training.engine import Engine
from model.training.schedule import learning_rate


@dataclass(frozen=True)
class FitRecipe:
    """What the engine wants to know of a fit."""

    optimizer: OptimizerConfig
    precision: str


class SplitUpdates:
    """The updates of a fit that all ranks run together."""

    def __init__(
        self,
        reader: FineTuning,
        recipe: FitRecipe,
        steps: int,
        where: tuple[World, TrainingMachine],
    ) -> None:
        world, machine = where
        self.rank, self.ranks = world.rank, world.ranks
        self._world = world
        self._recipe = recipe
        self._steps = steps
        self._engine = Engine(reader.module, world=world, machine=machine, recipe=recipe)
        reader.call = self._compute

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this rank's part of a loss."""
        self._engine.backward(loss)

    def step(self, number: int) -> None:
        """Sum over ranks, clip, update. `number` counts from 0."""
        rate = learning_rate(number, steps=self._steps, optimizer=self._recipe.optimizer)
        self._engine.step(rate)

    def sum(self, value: float) -> float:
        """The value summed over ranks."""
        return self._world.sum([value])[0]

    def _compute(self, batch: Any, positions: Tensor | None, dropout_seed: int | None) -> Tensor:
        training = dropout_seed is not None
        logits: Tensor = self._engine.compute(batch, positions, dropout_seed, training=training)
        return logits


@dataclass(frozen=True)
class Splitting:
    """Makes `SplitUpdates`; the head of a frozen encoder is small: each rank trains it alone."""

    world: World
    machine: TrainingMachine

    def __call__(
        self, reader: Reader, schedule: OptimizerConfig, steps: int, precision: str
    ) -> Updates:
        """The updates of one fit."""
        if not isinstance(reader, FineTuning):
            return OwnUpdates(reader, schedule, steps)
        whole = self.machine.model_copy(update={"zero_stage": 0})
        return SplitUpdates(reader, FitRecipe(schedule, precision), steps, (self.world, whole))
