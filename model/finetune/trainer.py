"""Training for one trial: one task, one initial encoder, one seed.

In:  a `Problem`, an `Approach` (the module to train), a `Recipe`.
Out: `TrialResult`: scores by epoch, predictions of the selected epoch.

The seed determines the order of the data, the head's initialisation, and dropout; nothing else is
random. The engine is that of pre-training at ZeRO 0, by default with AdamW, linear warm-up and
decay, and gradients clipped by their global norm (paper, A.3; reference: optimization.py).

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

import numpy as np
import torch
from torch import Tensor

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.results import EpochRecord
from cloze.artifacts.rng import address, permutation
from cloze.model.config import FinetuneConfig, Shortened, TaskConfig
from cloze.model.finetune.approaches import Approach, split_logits
from cloze.model.tasks.base import Logits, Prediction, Problem
from cloze.model.tasks.features import Places, cut_by_budget
from cloze.model.training.distributed import World
from cloze.model.training.engine import Replicated, StepOutcome
from cloze.model.training.health import Deadline, shortening
from cloze.model.training.optimizer import Schedule
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

    shortened: Shortened = ()
    """How an earlier trial was shortened by its time limit, to be repeated."""

    deadline: Deadline | None = None
    """The time limit, counting from now."""

    def seed_for(self, purpose: str, number: int = 0) -> int:
        """A 62-bit seed for one purpose."""
        return address(self.seed, self.attempt, self.task.name, purpose, number) >> (64 - SEED_BITS)

    def schedule(self, steps: int) -> Schedule:
        """The optimizer with this task's learning rate and warm-up."""
        # A share of the planned steps; a schedule that is shortened later keeps the warm-up it has
        # made.
        warmup_steps = round(steps * self.config.warmup_share)
        own = {"learning_rate": self.task.learning_rate, "warmup_steps": warmup_steps}
        optimizer = self.config.optimizer.model_copy(update=own)
        return Schedule(optimizer, steps, shortened=self.shortened)


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
    shortened: Shortened = ()


def trial_result(problem: Problem, logits: Mapping[str, Logits], *, epoch: int = 0) -> TrialResult:
    """Predictions from each split's logits, and scores of labelled splits."""
    raw = {split: problem.predictions(split, found) for split, found in logits.items()}
    dev = raw.get("dev")
    predictions = {split: problem.thresholded(dev, found) for split, found in raw.items()}
    scores = {
        split: problem.score(split, found) if problem.labelled(split) else {}
        for split, found in predictions.items()
    }
    return TrialResult(epoch, scores, predictions, dict(logits))


class TrialTrainer:
    """A trial in progress."""

    def __init__(
        self,
        problem: Problem,
        approach: Approach,
        recipe: Recipe,
        world: World | None = None,
    ) -> None:
        """`world`: the ranks that share its batches; None: this process trains alone."""
        self.problem = problem
        self.approach = approach
        self.recipe = recipe
        self.units = problem.units("train")
        self.steps_per_epoch = -(-self.units // recipe.task.batch_size)
        self.steps = recipe.task.epochs * self.steps_per_epoch
        self.world = world or World(0, 1, next(approach.module.parameters()).device)
        # A gradient that is not finite shows in the mean of the epoch, read once on a GPU.
        self.engine = Replicated(
            approach.computed,
            world=self.world,
            schedule=recipe.schedule(self.steps),
            skips_nonfinite=False,
        )
        self._unit_tokens = problem.unit_tokens("train")
        self.step = 0
        """Steps made."""

    def run(self, advance: Advance) -> TrialResult:
        """Train all epochs, or until the time is over; `advance` is called after every step.

        Leaves the module with the weights of the selected epoch.
        """
        started = time.monotonic()
        give_back_memory()  # an earlier trial's
        self.problem.begin(lambda split: split_logits(self.problem, self.approach, split))
        headline, epochs = self.problem.headline, self.recipe.task.epochs
        evaluations = self.recipe.config.evaluations or epochs
        chosen: TrialResult | None = None
        history: list[EpochRecord] = []
        # `kept` holds the weights of the best epoch so far, unless they are those of the last one.
        module, kept = self.approach.module, None

        def logits_of(splits: Iterable[str]) -> dict[str, Logits]:
            return {split: split_logits(self.problem, self.approach, split) for split in splits}

        for epoch in range(1, epochs + 1):
            loss = self.train_epoch(epoch, advance)
            last = self.step == self.engine.schedule.end
            if not last and epoch * evaluations // epochs == (epoch - 1) * evaluations // epochs:
                continue  # evaluations are spread evenly; the last epoch always has one
            logits = logits_of({"dev"} & self.problem.sequences.keys())
            give_back_memory()  # evaluation uses larger batches, of other sizes
            dev = trial_result(self.problem, logits).scores.get("dev", {})
            record = EpochRecord(epoch=epoch, train_loss=loss, dev=dev)
            history.append(record)
            if self.recipe.config.select == "last" or not record.dev:
                better = last
            else:
                # The first of equals is kept.
                better = chosen is None or record.dev[headline] > chosen.scores["dev"][headline]
            if better:
                others = [s for s in self.problem.sequences if s not in ("train", *logits)]
                logits |= logits_of(others)
                chosen = trial_result(self.problem, logits, epoch=epoch)
                # What is saved must be what was scored; the last epoch's weights are there anyway.
                if not last:
                    kept = {name: value.clone() for name, value in module.state_dict().items()}
            if last:
                break
        if chosen is None:
            raise AssertionError("the last epoch is always evaluated")
        if kept is not None and chosen.chosen_epoch < epoch:
            module.load_state_dict(kept)
        seconds = time.monotonic() - started
        return replace(
            chosen,
            epochs=tuple(history),
            steps=self.step,
            seconds=seconds,
            shortened=self.engine.schedule.shortened,
        )

    def missed_decay(self, result: TrialResult) -> float:
        """The factor by which weight decay scales what has no gradient up to the selected epoch."""
        steps = min(result.chosen_epoch * self.steps_per_epoch, self.engine.schedule.end)
        return self.engine.schedule.missed_decay(steps)

    def train_epoch(self, epoch: int, advance: Advance) -> float:
        """Train one epoch, or as much of it as the schedule has; return its mean loss."""
        order = permutation(self.recipe.seed_for("order", epoch), self.units)
        self.approach.module.train()
        outcomes: list[Tensor] = []
        terms = 0
        size = self.recipe.task.batch_size
        for index in range(self.steps_per_epoch):
            number = (epoch - 1) * self.steps_per_epoch + index
            outcome, count = self.train_step(number, order[index * size : (index + 1) * size])
            # Read once per epoch, as reading would make the host wait for a GPU in every step.
            outcomes.append(torch.cat([outcome.sums, outcome.gradient_norm[None]]))
            terms += count
            advance(1)
            self.step = number + 1
            if self.recipe.deadline:
                schedule, deadline = self.engine.schedule, self.recipe.deadline
                self.engine.schedule = shortening(schedule, self.step, deadline, self.world)
            if self.step == self.engine.schedule.end:
                break
        loss, norm = torch.stack(outcomes).sum(0).tolist()
        if not math.isfinite(loss + norm):
            task = self.recipe.task
            raise ClozeError(
                f"task {task.name}, seed {self.recipe.seed}, epoch {epoch}: the loss is "
                f"{loss / terms}, the norm of its gradients {norm / self.steps_per_epoch}; lower "
                f"its learning_rate (now {task.learning_rate:g})"
            )
        return float(loss / terms)

    def train_step(self, number: int, units: Places) -> tuple[StepOutcome, int]:
        """Make one step; its outcome, with the loss summed over its terms, and their number."""
        count = len(self.problem.targets("train", units))
        # Every rank knows the whole batch, and takes its part by its number: nothing is sent. All
        # divide by the same count of terms, so the sum of the ranks' gradients is that of one
        # process.
        parts = np.array_split(units, self.world.ranks)
        ours = parts[self.world.rank]
        # A rank without examples still takes part in the collectives, with a loss of weight 0.
        weight = 1.0 / count if len(ours) else 0.0
        # A micro-batch of nothing would have no graph, and the reduction would wait for its
        # gradients.
        part = ours if len(ours) else units[:1]
        micro_batches = cut_by_budget(
            part, self._unit_tokens[part], token_budget=self.recipe.token_budget
        )
        # A loss over all pairs of the batch cannot be taken one micro-batch at a time.
        if self.problem.joint and (len(micro_batches) > 1 or self.world.ranks > 1):
            loss = self._joint_backward(parts, micro_batches, weight, step=number)
        else:
            losses = []
            for micro, members in enumerate(micro_batches):
                logits = self._computed(members, step=number, micro=micro)
                targets = torch.from_numpy(self.problem.targets("train", members))
                loss = self.problem.loss(logits, targets)
                self.engine.backward(loss * weight, last=micro + 1 == len(micro_batches))
                losses.append(loss.detach())
            loss = torch.stack(losses).sum() * float(len(ours) > 0)
        return self.engine.step(number, loss[None]), count

    def _joint_backward(
        self, parts: list[Places], micro_batches: list[Places], weight: float, *, step: int
    ) -> Tensor:
        """Gradients of a joint loss over all ranks' `parts` of the batch; this rank's share of it.

        Every rank computes the whole loss, whose cost is negligible next to the encoder's.
        """
        # First pass, without a graph: the vectors of the whole batch.
        with torch.no_grad():
            vectors = [
                self._computed(units, step=step, micro=micro).detach()
                for micro, units in enumerate(micro_batches)
            ]
        rank = self.world.rank
        sizes = [len(self.problem.rows("train", part)) for part in parts]
        # A rank without a part has computed another's unit, to take part in the collectives.
        own = torch.cat(vectors)[: sizes[rank]]
        first = sum(sizes[:rank])
        # [rows of all ranks, D], the leaf with respect to which the gradient is taken.
        whole = self.world.gather_rows(own, first=first, total=sum(sizes)).requires_grad_()
        targets = self.problem.targets("train", np.concatenate(parts))
        loss = self.problem.loss(whole, torch.from_numpy(targets))
        (gradients,) = torch.autograd.grad(loss, whole)
        # Second pass, micro-batch by micro-batch: with the same dropout the same vectors, whose
        # inner product with their cached gradients has the loss's gradient.
        for micro, units in enumerate(micro_batches):
            again = self._computed(units, step=step, micro=micro)
            cached = gradients[first : first + len(again)] if weight else torch.zeros_like(again)
            loss_again = (again * cached).sum() * weight
            self.engine.backward(loss_again, last=micro + 1 == len(micro_batches))
            first += len(again)
        # once, since every rank has computed the whole loss
        return loss.detach() * float(rank == 0)

    def _computed(self, units: Places, *, step: int, micro: int) -> Tensor:
        """Outputs of the module for one micro-batch; deterministic."""
        # A different number for every step, rank and micro-batch of the trial.
        place = (step * self.world.ranks + self.world.rank) * MICRO_BATCHES + micro
        exact = self.problem.has_exact_targets
        seed = None if exact else self.recipe.seed_for("dropout", place)
        return self.approach.logits("train", self.problem.rows("train", units), seed)
