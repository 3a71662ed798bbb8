"""Stage finetune on several ranks: `deepspeed --module model.finetune.finetune_ranks …`.

In:  what `model.finetune.finetune` takes.
Out: the same artifact.

As long as there are enough trials, each rank runs its own, which is fastest. Otherwise all ranks
share the batches of each trial, through the DeepSpeed engine of pre-training. This module is a
separate program because DeepSpeed takes seconds to import.
"""

from dataclasses import dataclass

from torch import Tensor

from artifacts.runtime.program import run_program
from artifacts.stage import StageTable
from artifacts.store import Artifact
from model.config import OptimizerConfig, TrainingMachine
from model.data.batch import PackedBatch
from model.finetune.approaches import Approach, FineTuning
from model.finetune.finetune import finetune
from model.finetune.local_optimizer import LocalOptimizer, MakeOptimizer, TrialOptimizer
from model.training.distributed import World
from model.training.engine import Engine
from model.training.optimizer import learning_rate


def finetune_on_ranks(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    return finetune(table, engine_options, share_batches=share_batches)


def share_batches(world: World, machine: TrainingMachine) -> MakeOptimizer:
    """Optimizers of trials that all ranks run together.

    The head of a frozen encoder is small: each rank trains it alone.
    """
    whole = machine.model_copy(update={"zero_stage": 0})

    def make(
        approach: Approach, schedule: OptimizerConfig, steps: int, precision: str
    ) -> TrialOptimizer:
        if not isinstance(approach, FineTuning):
            return LocalOptimizer(approach, schedule, steps)
        recipe = EngineRecipe(schedule, precision)
        engine = Engine(approach.module, world=world, machine=whole, recipe=recipe)
        return DistributedOptimizer(approach, engine, world, schedule, steps=steps)

    return make


@dataclass(frozen=True)
class EngineRecipe:
    """What the engine needs to know of a trial."""

    optimizer: OptimizerConfig
    precision: str


class DistributedOptimizer:
    """The optimizer of a trial whose batches the ranks share, through DeepSpeed's engine.

    Losses are already divided by the global batch's counts, so gradients are summed over ranks.
    """

    def __init__(
        self,
        approach: FineTuning,
        engine: Engine,
        world: World,
        schedule: OptimizerConfig,
        *,
        steps: int,
    ) -> None:
        self.rank, self.ranks = world.rank, world.ranks
        self._world, self._engine = world, engine
        self._schedule, self._steps = schedule, steps
        approach.call = self._compute

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this rank's part of a loss."""
        self._engine.backward(loss)

    def step(self, number: int) -> None:
        """Sum over ranks, clip, update. `number` counts from 0."""
        self._engine.step(learning_rate(number, steps=self._steps, optimizer=self._schedule))

    def sum(self, value: float) -> float:
        """The value summed over ranks."""
        return self._world.sum([value])[0]

    def gather(self, rows: Tensor, *, first: int, total: int) -> Tensor:
        """[total, D]: the rows of all ranks; this one's begin at `first`."""
        whole = rows.new_zeros(total, rows.shape[1])
        whole[first : first + len(rows)] = rows
        return self._world.sum_tensor(whole)

    def _compute(
        self, batch: PackedBatch, positions: Tensor | None, dropout_seed: int | None
    ) -> Tensor:
        training = dropout_seed is not None
        logits: Tensor = self._engine.compute(batch, positions, dropout_seed, training=training)
        return logits


if __name__ == "__main__":
    run_program(finetune_on_ranks)
