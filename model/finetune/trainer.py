"""Training for one trial: one task, one initial encoder, one seed.

In:  a `Problem`, an `Approach` (the module to train), a `Recipe`.
Out: `TrialResult`: scores by epoch, predictions of the selected epoch.

The seed determines the order of the data, the head's initialisation, and dropout; nothing else is
random. The optimizer is AdamW with linear warm-up and decay and gradients clipped by their global
norm (paper, A.3; reference: optimization.py). A single process does without DeepSpeed, whose engine
would only copy every gradient back and forth; ranks that share the batches of a trial use it.

A loss that compares every text of a batch with all others is trained with cached gradients
(GradCache, Gao et al. 2021): the vectors of all micro-batches and ranks are computed without a
graph, then the loss's gradient with respect to each vector. Each micro-batch is computed again with
the same dropout, and backpropagates its own part. A batch of thousands thus needs the memory of one
micro-batch and gives the gradients of a single step over all of it.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.results import EpochRecord
from cloze.artifacts.rng import address, permutation
from cloze.model.config import FinetuneConfig, OptimizerConfig, TaskConfig, TrainingMachine
from cloze.model.data.batch import PackedBatch
from cloze.model.finetune.approaches import Approach, FineTuning, split_logits
from cloze.model.tasks.base import Logits, Prediction, Problem
from cloze.model.tasks.features import Places, cut_by_budget
from cloze.model.training.distributed import World
from cloze.model.training.engine import Engine
from cloze.model.training.optimizer import AdamW, build_optimizer, clip, learning_rate
from cloze.model.training.start import give_back_memory

SEED_BITS = 62
MICRO_BATCHES = 1 << 12
"""More than any step has; spaces the addresses of their dropout."""

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that determines a trial apart from its problem and initial encoder."""

    config: FinetuneConfig
    """What all trials share."""

    task: TaskConfig
    """The task with the hyper-parameters of this trial."""

    seed: int
    attempt: int = 0
    """Number of restarts so far."""

    token_budget: int = 16384
    """Tokens per micro-batch."""

    def seed_for(self, purpose: str, number: int = 0) -> int:
        """A 62-bit seed for one purpose."""
        return address(self.seed, self.attempt, self.task.name, purpose, number) >> (64 - SEED_BITS)

    def schedule(self, steps: int) -> OptimizerConfig:
        """The optimizer with this task's learning rate and warm-up."""
        warmup_steps = round(steps * self.config.warmup_share)
        own = {"learning_rate": self.task.learning_rate, "warmup_steps": warmup_steps}
        return self.config.optimizer.model_copy(update=own)


@dataclass(frozen=True)
class TrialResult:
    """Result of one trial."""

    chosen_epoch: int
    scores: dict[str, dict[str, float]]
    """Scores of the selected epoch by split and metric; empty for an unlabelled split."""

    predictions: dict[str, list[Prediction]]
    """By split, without train."""

    logits: dict[str, Logits] = field(default_factory=dict)
    """By split, without train."""

    epochs: tuple[EpochRecord, ...] = ()
    steps: int = 0
    seconds: float = 0.0


def decoded(problem: Problem, logits: Mapping[str, Logits], *, epoch: int = 0) -> TrialResult:
    """Predictions from each split's logits, and scores of labelled splits."""
    raw = {split: problem.predictions(split, found) for split, found in logits.items()}
    dev = raw.get("dev")
    predictions = {split: problem.thresholded(dev, found) for split, found in raw.items()}
    scores = {
        split: problem.score(split, found) if problem.labelled(split) else {}
        for split, found in predictions.items()
    }
    return TrialResult(epoch, scores, predictions, dict(logits))


class TrialOptimizer(Protocol):
    """The optimizer of a trial, on one process or several ranks that share its batches."""

    rank: int
    """The part of every batch that this process computes, from 0."""

    ranks: int
    """The number of parts."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of this rank's part of a loss."""

    def step(self, number: int) -> None:
        """Clip, update, zero the gradients. `number` counts from 0."""

    def sum(self, value: float) -> float:
        """The value summed over ranks."""

    def gather(self, rows: Tensor, *, first: int, total: int) -> Tensor:
        """[total, D]: the rows of all ranks; those of this rank begin at `first`."""


MakeOptimizer = Callable[[Approach, OptimizerConfig, int, str], TrialOptimizer]
"""Makes an optimizer from a trial's approach, schedule, number of steps and precision."""


def missed_decay(schedule: OptimizerConfig, *, steps: int) -> float:
    """The factor by which weight decay scales a parameter that never has a gradient."""
    rates = (learning_rate(number, steps=steps, optimizer=schedule) for number in range(steps))
    return math.prod(1 - rate * schedule.weight_decay for rate in rates)


class LocalOptimizer:
    """The optimizer of a trial that runs on a single process."""

    rank = 0
    ranks = 1

    def __init__(
        self, approach: Approach, schedule: OptimizerConfig, steps: int, precision: str = ""
    ) -> None:
        self.schedule = schedule
        self.steps = steps
        self._parameters = list(approach.module.parameters())
        self._optimizer = build_optimizer(
            approach.module.named_parameters(),
            config=schedule,
            zero_stage=0,
            precision=precision or "fp32",
        )
        if isinstance(approach, FineTuning) and isinstance(self._optimizer, AdamW):
            self._optimizer.compute_with(approach.call)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a part of the batch's loss."""
        torch.autograd.backward(loss)

    def sum(self, value: float) -> float:
        """The value itself."""
        return value

    def gather(self, rows: Tensor, *, first: int, total: int) -> Tensor:
        """The rows themselves."""
        return rows

    def step(self, number: int) -> None:
        """Clip, update, zero the gradients. `number` counts from 0."""
        rate = learning_rate(number, steps=self.steps, optimizer=self.schedule)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        if isinstance(self._optimizer, AdamW):
            self._optimizer.updates = number  # no step is skipped
            self._optimizer.shorten(self.schedule.max_grad_norm)
        else:
            clip(
                [p.grad for p in self._parameters if p.grad is not None],
                self.schedule.max_grad_norm,
            )
        self._optimizer.step()
        self._optimizer.zero_grad(set_to_none=True)


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
            logits: Tensor = engine.forward(batch, positions, dropout=seed)
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
        engine = Engine(
            approach.module, world=world, machine=whole, optimizer=schedule, precision=precision
        )
        return DistributedOptimizer(approach, engine, world, schedule, steps=steps)

    return make


class Trainer:
    """A trial in progress."""

    def __init__(
        self,
        problem: Problem,
        approach: Approach,
        recipe: Recipe,
        make_optimizer: MakeOptimizer = LocalOptimizer,
    ) -> None:
        self.problem = problem
        self.approach = approach
        self.recipe = recipe
        self.units = problem.units("train")
        self.steps_per_epoch = -(-self.units // recipe.task.batch_size)
        self.steps = recipe.task.epochs * self.steps_per_epoch
        self.schedule = recipe.schedule(self.steps)
        precision = recipe.config.precision
        self.optimizer = make_optimizer(approach, self.schedule, self.steps, precision)
        self._unit_tokens = problem.unit_tokens("train")

    def run(self, advance: Advance) -> TrialResult:
        """Train all epochs; `advance` is called after every step."""
        started = time.monotonic()
        give_back_memory()  # an earlier trial's
        headline, epochs = self.problem.headline, self.recipe.task.epochs
        evaluations = self.recipe.config.evaluations or epochs
        chosen: TrialResult | None = None
        history: list[EpochRecord] = []

        def logits_of(splits: Iterable[str]) -> dict[str, Logits]:
            return {split: split_logits(self.problem, self.approach, split) for split in splits}

        for epoch in range(1, epochs + 1):
            loss = self.train_epoch(epoch, advance)
            if epoch * evaluations // epochs == (epoch - 1) * evaluations // epochs:
                continue  # evaluations are spread evenly; the last epoch always has one
            logits = logits_of({"dev"} & self.problem.sequences.keys())
            give_back_memory()  # evaluation uses larger batches, of other sizes
            dev = decoded(self.problem, logits).scores.get("dev", {})
            record = EpochRecord(epoch=epoch, train_loss=loss, dev=dev)
            history.append(record)
            if self.recipe.config.select == "last" or not record.dev:
                better = epoch == epochs
            else:
                better = chosen is None or record.dev[headline] > chosen.scores["dev"][headline]
            if better:
                others = [s for s in self.problem.sequences if s not in ("train", *logits)]
                logits |= logits_of(others)
                chosen = decoded(self.problem, logits, epoch=epoch)
        if chosen is None:
            raise AssertionError("the last epoch is always evaluated")
        seconds = time.monotonic() - started
        return replace(chosen, epochs=tuple(history), steps=self.steps, seconds=seconds)

    def train_epoch(self, epoch: int, advance: Advance) -> float:
        """Train one epoch; return its mean loss."""
        order = permutation(self.recipe.seed_for("order", epoch), self.units)
        self.approach.module.train()
        losses: list[Tensor] = []
        terms = 0
        size = self.recipe.task.batch_size
        for index in range(self.steps_per_epoch):
            number = (epoch - 1) * self.steps_per_epoch + index
            loss, count = self.train_step(number, order[index * size : (index + 1) * size])
            losses.append(loss)
            terms += count
            advance(1)
        mean = self.optimizer.sum(float(torch.stack(losses).sum(dtype=torch.float64))) / terms
        if not math.isfinite(mean):
            task = self.recipe.task
            raise ClozeError(
                f"task {task.name}, seed {self.recipe.seed}, epoch {epoch}: the loss is {mean}; "
                f"lower its learning_rate (now {task.learning_rate:g})"
            )
        return mean

    def train_step(self, number: int, units: Places) -> tuple[Tensor, int]:
        """Make one optimizer step; return the loss summed over its terms, and their number."""
        count = len(self.problem.targets("train", units))
        parts = np.array_split(units, self.optimizer.ranks)
        ours = parts[self.optimizer.rank]
        # A rank without examples still takes part in the collectives, with a loss of weight 0.
        weight = 1.0 / count if len(ours) else 0.0
        part = ours if len(ours) else units[:1]
        micro_batches = cut_by_budget(
            part, self._unit_tokens[part], token_budget=self.recipe.token_budget
        )
        if self.problem.joint and (len(micro_batches) > 1 or self.optimizer.ranks > 1):
            loss = self._joint_backward(parts, micro_batches, weight, step=number)
        else:
            losses = []
            for micro, members in enumerate(micro_batches):
                logits = self._computed(members, step=number, micro=micro)
                targets = torch.from_numpy(self.problem.targets("train", members))
                loss = self.problem.loss(logits, targets)
                self.optimizer.backward(loss * weight)
                losses.append(loss.detach())
            loss = torch.stack(losses).sum() * float(len(ours) > 0)
        self.optimizer.step(number)
        return loss, count

    def _joint_backward(
        self, parts: list[Places], micro_batches: list[Places], weight: float, *, step: int
    ) -> Tensor:
        """Gradients of a joint loss over all ranks' `parts` of the batch; this rank's share of it.

        Every rank computes the whole loss, whose cost is negligible next to the encoder's.
        """
        with torch.no_grad():
            vectors = [
                self._computed(units, step=step, micro=micro).detach()
                for micro, units in enumerate(micro_batches)
            ]
        rank = self.optimizer.rank
        sizes = [len(self.problem.rows("train", part)) for part in parts]
        # A rank without a part has computed another's unit, to take part in the collectives.
        own = torch.cat(vectors)[: sizes[rank]]
        first = sum(sizes[:rank])
        whole = self.optimizer.gather(own, first=first, total=sum(sizes)).requires_grad_()
        targets = self.problem.targets("train", np.concatenate(parts))
        loss = self.problem.loss(whole, torch.from_numpy(targets))
        (gradients,) = torch.autograd.grad(loss, whole)
        for micro, units in enumerate(micro_batches):
            again = self._computed(units, step=step, micro=micro)
            cached = gradients[first : first + len(again)] if weight else torch.zeros_like(again)
            self.optimizer.backward((again * cached).sum() * weight)
            first += len(again)
        return loss.detach() * float(rank == 0)

    def _computed(self, units: Places, *, step: int, micro: int) -> Tensor:
        """Outputs of the module for one micro-batch; deterministic."""
        place = (step * self.optimizer.ranks + self.optimizer.rank) * MICRO_BATCHES + micro
        seed = self.recipe.seed_for("dropout", place)
        return self.approach.logits("train", self.problem.rows("train", units), seed)
