"""The training of a student: steps over all lessons, checkpoints, the curve of its losses.

In:  lessons, the module that learns them, a recipe.
Out: the trained module; `Terminated` after a checkpoint if the program is asked to stop. The order
     of the lessons is a function of seed and step, so a course that goes on from a checkpoint is
     the one that was never interrupted.
"""

from typing import Protocol

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor, nn

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.progress import Progress
from cloze.artifacts.rng import address, permutation
from cloze.artifacts.runtime.program import Terminated
from cloze.model.config import DistillStage
from cloze.model.encoder.precision import computed_in
from cloze.model.tasks.features import Places
from cloze.model.training.checkpoints import Checkpoints, Identity, RunState, resume
from cloze.model.training.distributed import World
from cloze.model.training.engine import Replicated
from cloze.model.training.health import Stop
from cloze.model.training.optimizer import Schedule

CURVE_POINTS = 100


class Lessons(Protocol):
    """What a student learns."""

    names: tuple[str, str]
    """Of its two losses."""
    weights: tuple[float, float]

    def __len__(self) -> int:
        """Number of texts, which batches are made of."""

    def losses(self, computed: nn.Module, chosen: Places, *, step: int) -> tuple[Tensor, Tensor]:
        """The losses of a batch, for which `computed` computes with the student's parameters."""


class Course:
    """One training of a student."""

    def __init__(
        self, stage: DistillStage, lessons: Lessons, model: nn.Module, world: World
    ) -> None:
        config = stage.distill
        self.stage = stage
        self.lessons = lessons
        self.model = model
        self.world = world
        # The rest of an epoch that fills no batch is left out: the next epoch draws another order,
        # so over several each text gets its turn.
        self.batches = max(len(lessons) // config.batch_size, 1)
        self.steps = config.epochs * self.batches
        warmup = round(self.steps * config.warmup_share)
        optimizer = config.optimizer.model_copy(update={"warmup_steps": warmup})
        self.computed = computed_in(config.precision, model)
        self.engine = Replicated(
            self.computed, world=world, schedule=Schedule(optimizer, self.steps)
        )
        self.curve: list[dict[str, JsonValue]] = []
        # Losses since the last point of the curve, which is their mean: single batches differ too
        # much to be drawn.
        self._sums, self._count = [0.0, 0.0], 0

    def train(
        self, checkpoints: Checkpoints, identity: Identity, stop: Stop, *, every: int
    ) -> None:
        """Make all steps, from the latest checkpoint on; `Terminated` after one if asked to."""
        saved, first = resume(checkpoints, world=self.world, identity=identity), 0
        # What a step depends on is all here: the parameters with the optimizer's state, the number
        # of steps made, and the half-summed point of the curve.
        if saved is not None:
            shapes = {name: value.shape for name, value in self.model.named_parameters()}
            state = dict(saved.parameters(shapes, world=self.world))
            self.engine.restore(state, updates=saved.state["updates"])
            first, curve = saved.state["step"], saved.state["curve"]
            self.curve, self._sums = curve["points"], curve["sums"]
            self._count = curve["count"]
        progress = Progress("distill", self.steps, unit="steps", done=first)
        self.model.train()
        try:
            for number in range(first, self.steps):
                found = zip(self.lessons.names, self._step(number), strict=True)
                progress.advance(1, " ".join(f"{name}={loss:.4f}" for name, loss in found))
                if stop.wanted or (number + 1) % every == 0:
                    checkpoints.save(
                        self.engine.state(), self._state(identity, number + 1), writes=True
                    )
                if stop.wanted:
                    checkpoints.wait()
                    raise Terminated
                # A failure to write in the thread behind is raised at the next step rather than at
                # the end.
                checkpoints.wait(only_if_done=True)
        finally:
            checkpoints.close()
        self.model.eval()

    def _step(self, number: int) -> list[float]:
        """One update; the two losses before it."""
        pair = self.lessons.losses(self.computed, self._rows(number), step=number)
        terms = [weight * loss for weight, loss in zip(self.lessons.weights, pair, strict=True)]
        # One backward pass of the sum: the two losses share everything but their last products.
        self.engine.backward(terms[0] + terms[1], last=True)
        outcome = self.engine.step(number, torch.stack(pair).detach())
        # Pre-training skips such a step; a course is short, so it asks for a lower rate instead.
        if not outcome.applied:
            rate = self.stage.distill.optimizer.learning_rate
            raise ClozeError(
                f"distill, step {number + 1}: its gradient is not finite; lower "
                f"distill.optimizer.learning_rate (now {rate:g})"
            )
        found: list[float] = outcome.sums.tolist()
        self._note(number + 1, found)
        return found

    def _rows(self, number: int) -> Places:
        """The texts of one step, each of an epoch in one batch."""
        epoch, place = divmod(number, self.batches)
        # The order of an epoch is a function of its number alone, so a course that goes on need not
        # know what was read before.
        order = permutation(address(self.stage.seed, "distill", epoch), len(self.lessons))
        size = self.stage.distill.batch_size
        rows: Places = np.asarray(order[place * size : (place + 1) * size], np.int64)
        return rows

    def _note(self, step: int, found: list[float]) -> None:
        self._sums = [total + one for total, one in zip(self._sums, found, strict=True)]
        self._count += 1
        # A point wherever the share of the steps made passes another hundredth, however many steps
        # there are.
        if step * CURVE_POINTS // self.steps > (step - 1) * CURVE_POINTS // self.steps:
            means = (total / self._count for total in self._sums)
            self.curve.append({"step": step, **dict(zip(self.lessons.names, means, strict=True))})
            self._sums, self._count = [0.0, 0.0], 0

    def _state(self, identity: Identity, step: int) -> RunState:
        return {
            **identity,
            "step": step,
            "updates": self.engine.updates,
            "seconds": 0.0,
            "skipped_in_row": 0,
            "heldout_loss": None,
            "heldout": None,
            "curve": {"points": [*self.curve], "sums": self._sums, "count": self._count},
            "elapsed": 0.0,
            "shortened": (),
        }
