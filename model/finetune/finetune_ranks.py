"""Stage finetune on several ranks: `deepspeed --module model.finetune.finetune_ranks …`.

In:  the inputs of `model.finetune.finetune`.
Out: the same artifact.

If there are enough trials, each rank runs its own, which is fastest. Otherwise all ranks share the
batches of each trial, with the DeepSpeed engine of pre-training. This is a program of its own
because importing DeepSpeed takes seconds.
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
from model.finetune.trainer import LocalOptimizer, MakeOptimizer, TrialOptimizer
from model.training.distributed import World
from model.training.engine import Engine
from model.training.optimizer import learning_rate


def finetune_on_ranks(table: StageTable, engine_options: list[str]) -> Artifact:
    """Run the stage."""
    return finetune(table, engine_options, share_batches=share_batches)


def share_batches(world: World, machine: TrainingMachine) -> MakeOptimizer:
    """Optimizers for trials that all ranks run together.

    The head of a frozen encoder is so small that each rank trains it alone.
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
    """The settings of a trial that the engine needs."""

    optimizer: OptimizerConfig
    precision: str


class DistributedOptimizer:
    """The optimizer of a trial whose batches the ranks share, with DeepSpeed's engine.

    Losses are already divided by the counts of the global batch, so ranks sum their gradients.
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

        def compute(batch: PackedBatch, positions: Tensor | None, seed: int | None) -> Tensor:
            logits: Tensor = engine.compute(batch, positions, seed, training=seed is not None)
            return logits

        approach.call = compute

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
        """[total, D]: the rows of all ranks; those of this rank begin at `first`."""
        whole = rows.new_zeros(total, rows.shape[1])
        whole[first : first + len(rows)] = rows
        return self._world.sum_tensor(whole)


if __name__ == "__main__":
    run_program(finetune_on_ranks)
