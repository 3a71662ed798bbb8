"""One fit: one task, one beginning, one seed.

In:  a `Problem`, a `Reader` (the model), a `Recipe`.
Out: `FitResult`: scores by epoch, predictions of the chosen epoch.

The seed decides the order of the data, the head, and dropout; nothing else is left to chance.
"""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from artifacts.errors import ClozeError
from artifacts.rng import address, permutation
from model.config import OptimizerConfig, TaskConfig
from model.finetune.inference import split_logits
from model.finetune.local_optimizer import MakeUpdates, OwnUpdates
from model.finetune.readers import Reader
from model.tasks.base import Prediction, Problem
from model.tasks.features import Places

SEED_BITS = 62
MICRO_BATCHES = 1 << 12
"""More micro-batches than a step can have: addresses of their dropout."""

Advance = Callable[[int], None]


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How one fit goes."""

    task: TaskConfig
    optimizer: OptimizerConfig
    """Moments, decay and clipping; rate and warm-up are the task's."""

    warmup_share: float
    precision: str = "fp32"
    """Of the engine's copies where ranks split a batch; else the reader has its own."""

    seed: int
    attempt: int = 0
    """Above 0: started again after an early failure."""

    evaluations: int = 0
    """Dev evaluations, spread evenly over the epochs; 0: after every epoch."""

    select: str = "last"
    """Which epoch is kept: `last`, or `best` on dev."""

    token_budget: int = 16384
    """Tokens per micro-batch."""

    def chance(self, purpose: str, number: int = 0) -> int:
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
class EpochScores:
    """What one epoch gave."""

    epoch: int
    train_loss: float
    dev: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FitResult:
    """What one fit gave."""

    chosen_epoch: int
    scores: dict[str, dict[str, float]]
    """By split with answers and metric, of the chosen epoch."""

    predictions: dict[str, list[Prediction]]
    """By split but the training one."""

    epochs: tuple[EpochScores, ...] = ()
    steps: int = 0
    seconds: float = 0.0


class Fit:
    """A fit in progress."""

    def __init__(
        self,
        problem: Problem,
        reader: Reader,
        recipe: Recipe,
        make_updates: MakeUpdates = OwnUpdates,
    ) -> None:
        self.problem = problem
        self.reader = reader
        self.recipe = recipe
        self.units = problem.units("train")
        self.steps_per_epoch = -(-self.units // recipe.task.batch_size)
        self.steps = recipe.task.epochs * self.steps_per_epoch
        self.schedule = recipe.schedule(self.steps)
        self.updates = make_updates(reader, self.schedule, self.steps, recipe.precision)
        self._unit_tokens = problem.unit_tokens("train")

    def run(self, advance: Advance) -> FitResult:
        """Train all epochs; `advance` hears of every step."""
        started = time.monotonic()
        chosen: FitResult | None = None
        history: list[EpochScores] = []
        for epoch in range(1, self.recipe.task.epochs + 1):
            loss = self._epoch(epoch, advance)
            if self._is_judged(epoch):
                dev = self._predict("dev")
                history.append(EpochScores(epoch, loss, self._score("dev", dev, dev)))
                if self._is_better(history[-1], chosen):
                    chosen = self._judged(history[-1], dev)
        if chosen is None:
            raise AssertionError("the last epoch is always judged")
        seconds = time.monotonic() - started
        return replace(chosen, epochs=tuple(history), steps=self.steps, seconds=seconds)

    def _epoch(self, epoch: int, advance: Advance) -> float:
        """Mean loss of one pass over the training data."""
        order = permutation(self.recipe.chance("order", epoch), self.units)
        self.reader.module.train()
        losses: list[Tensor] = []
        terms = 0
        for index in range(self.steps_per_epoch):
            size = self.recipe.task.batch_size
            number = (epoch - 1) * self.steps_per_epoch + index
            loss, count = self._step(number, order[index * size : (index + 1) * size])
            losses.append(loss)
            terms += count
            advance(1)
        total = self.updates.sum(float(torch.stack(losses).sum(dtype=torch.float64)))
        return self._finite(total / terms, epoch)

    def _finite(self, loss: float, epoch: int) -> float:
        if not math.isfinite(loss):
            task = self.recipe.task
            raise ClozeError(
                f"task {task.name}, seed {self.recipe.seed}, epoch {epoch}: the loss is {loss}; "
                f"lower its learning_rate (now {task.learning_rate:g})"
            )
        return loss

    def _step(self, number: int, units: Places) -> tuple[Tensor, int]:
        """One update; the loss summed over the batch's terms, and their number."""
        count = len(self.problem.targets("train", units))
        ours = np.array_split(units, self.updates.ranks)[self.updates.rank]
        weight = (
            1.0 / count if len(ours) else 0.0
        )  # a rank that has run out takes part all the same
        losses = [
            self._backward(part, weight, (number, micro))
            for micro, part in enumerate(self._micro_batches(ours if len(ours) else units[:1]))
        ]
        self.updates.step(number)
        return torch.stack(losses).sum() * float(len(ours) > 0), count

    def _backward(self, units: Places, weight: float, place: tuple[int, int]) -> Tensor:
        """Gradients of one micro-batch's part of the mean loss; its loss, summed over terms."""
        step, micro = place
        address = (step * self.updates.ranks + self.updates.rank) * MICRO_BATCHES + micro
        rows, seed = self.problem.rows("train", units), self.recipe.chance("dropout", address)
        logits = self.reader.logits("train", rows, seed)
        targets = torch.from_numpy(self.problem.targets("train", units)).to(logits.device)
        loss = self.problem.loss(logits, targets)
        self.updates.backward(loss * weight)
        return loss.detach()

    def _micro_batches(self, units: Places) -> list[Places]:
        """The batch in parts of about the token budget."""
        ends = np.cumsum(self._unit_tokens[units])
        groups = (ends - 1) // self.recipe.token_budget
        return list(np.split(units, np.flatnonzero(np.diff(groups)) + 1))

    def _is_judged(self, epoch: int) -> bool:
        """`evaluations` epochs, evenly spread; the last one always."""
        epochs = self.recipe.task.epochs
        wanted = self.recipe.evaluations or epochs
        before = (epoch - 1) * wanted // epochs
        return epoch * wanted // epochs > before or epoch == epochs

    def _is_better(self, epoch: EpochScores, chosen: FitResult | None) -> bool:
        """Whether the fit stays with this epoch, as far as is known."""
        if self.recipe.select == "last" or not epoch.dev:
            return epoch.epoch == self.recipe.task.epochs
        headline = self.problem.headline
        return chosen is None or epoch.dev[headline] > chosen.scores["dev"][headline]

    def _judged(self, epoch: EpochScores, dev: list[Prediction] | None) -> FitResult:
        """The result, if the fit stays with this epoch."""
        predictions, scores = {}, {}
        for split in self.problem.sequences:
            if split != "train":
                raw = dev if split == "dev" else self._predict(split)
                predictions[split] = self.problem.settled(dev, raw or [])
                scores[split] = self._score(split, dev, raw)
        return FitResult(epoch.epoch, scores, predictions)

    def _predict(self, split: str) -> list[Prediction] | None:
        """Predictions of a split; None where there is no such split."""
        if split not in self.problem.sequences:
            return None
        return self.problem.predictions(split, split_logits(self.problem, self.reader, split))

    def _score(
        self, split: str, dev: list[Prediction] | None, predictions: list[Prediction] | None
    ) -> dict[str, float]:
        if predictions is None or not self.problem.labelled(split):
            return {}
        return self.problem.score(split, self.problem.settled(dev, predictions))
