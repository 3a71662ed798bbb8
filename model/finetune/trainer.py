"""Training for one trial: one task, one initial encoder, one seed.

In:  a `Problem`, an `Approach` (what is trained), a `Recipe`.
Out: `TrialResult`: scores by epoch, predictions of the chosen epoch.

The seed decides the order of the data, the head, and dropout; nothing else is random.

A loss over the whole batch, in which every text is compared with all others, is trained with cached
gradients (GradCache, Gao et al. 2021): the vectors of all micro-batches and ranks are computed
without a graph, the loss's gradient with respect to each vector is kept, and each micro-batch is
computed again with the same dropout and backpropagates its own. So a batch of thousands needs the
memory of one micro-batch and yields the gradients of one step over all of it.
"""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from artifacts.errors import ClozeError
from artifacts.results import EpochRecord
from artifacts.rng import address, permutation
from model.config import OptimizerConfig, TaskConfig
from model.finetune.approaches import Approach, split_logits
from model.finetune.local_optimizer import LocalOptimizer, MakeOptimizer
from model.tasks.base import Logits, Prediction, Problem
from model.tasks.features import Places, cut_by_budget
from model.training.environment import give_back_memory

SEED_BITS = 62
MICRO_BATCHES = 1 << 12
"""More than a step can have; spaces the addresses of their dropout."""

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that determines a trial besides problem and initial encoder."""

    task: TaskConfig
    optimizer: OptimizerConfig
    """Moments, decay and clipping; rate and warm-up are the task's."""

    warmup_share: float
    precision: str = "fp32"
    """Precision of the engine where ranks share a batch; otherwise the approach has its own."""

    seed: int
    attempt: int = 0
    """Above 0: restarted after an early failure."""

    evaluations: int = 0
    """Dev evaluations, spread evenly over the epochs; 0: after every epoch."""

    select: str = "last"
    """Which epoch is kept: `last`, or `best` on dev."""

    token_budget: int = 16384
    """Tokens per micro-batch."""

    def seed_for(self, purpose: str, number: int = 0) -> int:
        """A seed of 62 bits for one purpose."""
        return address(self.seed, self.attempt, self.task.name, purpose, number) >> (64 - SEED_BITS)

    def schedule(self, steps: int) -> OptimizerConfig:
        """The optimizer with this task's rate and warm-up."""
        return self.optimizer.model_copy(
            update={
                "learning_rate": self.task.learning_rate,
                "warmup_steps": round(steps * self.warmup_share),
            }
        )


@dataclass(frozen=True)
class TrialResult:
    """Result of one trial."""

    chosen_epoch: int
    scores: dict[str, dict[str, float]]
    """By split that has labels, and by metric, of the chosen epoch."""

    predictions: dict[str, list[Prediction]]
    """By split, without the training split."""

    logits: dict[str, Logits] = field(default_factory=dict)
    """By the same splits: what the predictions are made from."""

    epochs: tuple[EpochRecord, ...] = ()
    steps: int = 0
    seconds: float = 0.0


def decoded(problem: Problem, logits: Mapping[str, Logits], *, epoch: int = 0) -> TrialResult:
    """What `problem` makes of the logits of its splits: predictions, and scores where it can."""
    raw = {split: problem.predictions(split, found) for split, found in logits.items()}
    dev = raw.get("dev")
    predictions = {split: problem.thresholded(dev, found) for split, found in raw.items()}
    scores = {
        split: problem.score(split, found) if problem.labelled(split) else {}
        for split, found in predictions.items()
    }
    return TrialResult(epoch, scores, predictions, dict(logits))


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
        self.optimizer = make_optimizer(approach, self.schedule, self.steps, recipe.precision)
        self._unit_tokens = problem.unit_tokens("train")

    def run(self, advance: Advance) -> TrialResult:
        """Train all epochs; `advance` is called after every step."""
        started = time.monotonic()
        headline, epochs = self.problem.headline, self.recipe.task.epochs
        evaluations = self.recipe.evaluations or epochs
        chosen: TrialResult | None = None
        history: list[EpochRecord] = []
        for epoch in range(1, epochs + 1):
            loss = self.train_epoch(epoch, advance)
            if epoch * evaluations // epochs == (epoch - 1) * evaluations // epochs:
                continue  # they are evenly spread, and the last epoch is always evaluated
            logits = {"dev": self._logits("dev")} if "dev" in self.problem.sequences else {}
            give_back_memory()  # evaluation has larger batches of other sizes
            dev = decoded(self.problem, logits).scores.get("dev", {})
            record = EpochRecord(epoch=epoch, train_loss=loss, dev=dev)
            history.append(record)
            if self.recipe.select == "last" or not record.dev:
                better = epoch == epochs
            else:
                better = chosen is None or record.dev[headline] > chosen.scores["dev"][headline]
            if better:
                others = [s for s in self.problem.sequences if s not in ("train", *logits)]
                logits |= {split: self._logits(split) for split in others}
                chosen = decoded(self.problem, logits, epoch=epoch)
        if chosen is None:
            raise AssertionError("the last epoch is always evaluated")
        seconds = time.monotonic() - started
        return replace(chosen, epochs=tuple(history), steps=self.steps, seconds=seconds)

    def train_epoch(self, epoch: int, advance: Advance) -> float:
        """One pass over the training data; its mean loss."""
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
        """One optimizer step; the loss summed over the batch's terms, and their number."""
        count = len(self.problem.targets("train", units))
        parts = np.array_split(units, self.optimizer.ranks)
        ours = parts[self.optimizer.rank]
        # A rank without examples still takes part in collectives, with a loss of weight 0.
        weight = 1.0 / count if len(ours) else 0.0
        part = ours if len(ours) else units[:1]
        micro_batches = cut_by_budget(
            part, self._unit_tokens[part], token_budget=self.recipe.token_budget
        )
        if self.problem.joint and (len(micro_batches) > 1 or self.optimizer.ranks > 1):
            loss = self._joint_backward(parts, micro_batches, weight, step=number)
        else:
            losses = [
                self._backward(micro_batch, weight, step=number, micro=micro)
                for micro, micro_batch in enumerate(micro_batches)
            ]
            loss = torch.stack(losses).sum() * float(len(ours) > 0)
        self.optimizer.step(number)
        return loss, count

    def _backward(self, units: Places, weight: float, *, step: int, micro: int) -> Tensor:
        """Gradients of one micro-batch's part of the mean loss; its loss, summed over terms."""
        logits = self._computed(units, step=step, micro=micro)
        loss = self.problem.loss(logits, torch.from_numpy(self.problem.targets("train", units)))
        self.optimizer.backward(loss * weight)
        return loss.detach()

    def _joint_backward(
        self, parts: list[Places], micro_batches: list[Places], weight: float, *, step: int
    ) -> Tensor:
        """Gradients of a loss over all ranks' `parts` of the batch; this rank's share of the loss.

        Every rank computes the whole loss: its cost is negligible beside the encoder's.
        """
        with torch.no_grad():
            vectors = [
                self._computed(units, step=step, micro=micro).detach()
                for micro, units in enumerate(micro_batches)
            ]
        rank = self.optimizer.rank
        sizes = [len(self.problem.rows("train", part)) for part in parts]
        # A rank without a part has computed one of another's units, to keep in step.
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
        """Outputs of the module for one micro-batch; the same numbers every time."""
        place = (step * self.optimizer.ranks + self.optimizer.rank) * MICRO_BATCHES + micro
        seed = self.recipe.seed_for("dropout", place)
        return self.approach.logits("train", self.problem.rows("train", units), seed)

    def _logits(self, split: str) -> Logits:
        return split_logits(self.problem, self.approach, split)
