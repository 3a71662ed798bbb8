"""The loop: `train` (until when) → `train_step` (accumulate, clip, schedule) → `micro_step`.

In:  an engine, batches, and those who watch, save and judge.
Out: a trained engine; or `Terminated` after a checkpoint, where someone wanted the run to stop.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from artifacts.errors import ClozeError
from artifacts.program import Terminated
from artifacts.progress import say
from artifacts.rng import address
from model.config import PretrainConfig
from model.data.micro_batches import StepBatch
from model.encoder.batch import PackedBatch
from model.training.curve import Curve
from model.training.distributed import World
from model.training.engine import Engine, StepOutcome
from model.training.evaluation import Scores
from model.training.fault_injection import Strike
from model.training.saving import Saver
from model.training.schedule import learning_rate
from model.training.stopping import Stop
from model.training.telemetry import StepRecord, Telemetry
from model.training.watchdog import Watchdog


class Watchers(NamedTuple):
    """Those who look on."""

    telemetry: Telemetry
    watchdog: Watchdog
    stop: Stop
    at: Strike
    evaluate: Callable[[int], Scores | None]
    """Held-out scores after a step; None where there is no held-out split."""
    rows_of: Callable[[StepBatch], list[str]]
    """The examples of a batch by name."""
    flops_of: Callable[[StepBatch], float]


@dataclass(frozen=True)
class Plan:
    """What the loop needs to know of the configuration."""

    recipe: PretrainConfig
    seed: int
    checkpoint_every: int
    max_skipped_steps: int
    facts: dict[str, Any]
    """What a checkpoint says about the run it belongs to."""


@dataclass
class Trainer:
    """One run on one rank."""

    engine: Engine
    world: World
    plan: Plan
    curve: Curve
    saver: Saver
    watch: Watchers
    step: int = 0
    """Steps done."""
    skipped_in_row: int = 0
    heldout: Scores | None = None
    """The latest held-out scores."""
    _evaluated_at: int = field(default=-1, init=False)

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on where a checkpoint was taken."""
        self.step = int(state["step"])
        self.skipped_in_row = int(state["skipped_in_row"])
        self.watch.telemetry.spent = float(state["seconds"])
        self.curve.restore(state["curve"])
        self.heldout = Scores(**state["heldout"]) if state["heldout"] else None

    def train(self, batches: Iterable[StepBatch]) -> None:
        """Until the batches end, or someone wants to stop."""
        before = time.monotonic()
        for batch in batches:
            waited = time.monotonic() - before
            wants_stop = self.train_step(batch, started=before, waited=waited)
            self._after_step(batch, wants_stop=wants_stop)
            before = time.monotonic()

    def train_step(self, batch: StepBatch, *, started: float, waited: float) -> bool:
        """Accumulate the micro-batches' gradients, update once; whether a rank wants to stop."""
        rate = learning_rate(
            batch.step, steps=self.plan.recipe.steps, optimizer=self.plan.recipe.optimizer
        )
        sums = torch.zeros(4, device=self.world.device)
        for micro, micro_batch in enumerate(batch.micro_batches):
            sums += self.micro_step(batch, micro_batch, micro=micro)
        self._at("before_step", batch.step)
        outcome = self.engine.step(rate)
        self._at("after_step", batch.step)
        *totals, stop = self.world.sum([*sums.tolist(), float(self.watch.stop.wanted)])
        scores = Scores.of(totals, masked=batch.masked, labelled=batch.labelled)
        self.step = batch.step + 1
        self._judge(batch, outcome)
        if outcome.applied:
            self._record(batch, scores, outcome, rate=rate, started=started, waited=waited)
        return stop > 0

    def micro_step(self, batch: StepBatch, micro_batch: PackedBatch, *, micro: int) -> Tensor:
        """Forward and backward of one micro-batch; its four sums, `[4]`."""
        seed = address(self.plan.seed, "dropout", batch.step, self.world.rank, micro) >> 1
        sums = self.engine.forward(micro_batch, dropout_seed=seed)
        # Divided by the counts of the global batch, so that it does not matter how it is cut; the
        # 1e-5 is the reference's (run_pretraining.py:279).
        loss = sums.masked_lm_loss / (batch.masked + 1e-5)
        if self.plan.recipe.next_sentence_loss:
            loss = loss + sums.next_sentence_loss / max(batch.labelled, 1)
        else:
            loss = loss + sums.next_sentence_loss * 0.0
        self.engine.backward(loss * self._at("after_forward", batch.step))
        self._at("after_backward", batch.step)
        return torch.stack([value.detach().float() for value in sums])

    def _at(self, site: str, step: int) -> float:
        self.watch.watchdog.alive(site, step)
        return self.watch.at(site, step)

    def _judge(self, batch: StepBatch, outcome: StepOutcome) -> None:
        """Count steps skipped because a gradient was not finite; too many in a row are the end."""
        if outcome.applied:
            self.skipped_in_row = 0
            return
        self.skipped_in_row += 1
        rows = self.watch.rows_of(batch)
        where = ", ".join(rows[:4]) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")
        if self.world.is_first:
            say(f"warning: step {self.step} skipped, its gradient is not finite; rows {where}")
        if self.skipped_in_row >= self.plan.max_skipped_steps:
            raise ClozeError(
                f"{self.skipped_in_row} steps in a row had no finite gradient, the last was step "
                f"{self.step} with rows {where}; lower optimizer.learning_rate, or look at "
                "these rows with `cloze inspect`"
            )

    def _record(
        self,
        batch: StepBatch,
        scores: Scores,
        outcome: StepOutcome,
        *,
        rate: float,
        started: float,
        waited: float,
    ) -> None:
        loss = scores.masked_lm_loss
        if self.plan.recipe.next_sentence_loss:
            loss += scores.next_sentence_loss
        self.curve.add(
            self.step,
            (loss, scores.masked_lm_loss, scores.next_sentence_loss, scores.masked_lm_accuracy),
        )
        self.watch.telemetry.add(
            StepRecord(
                step=self.step,
                loss=loss,
                **asdict(scores),
                gradient_norm=outcome.gradient_norm,
                learning_rate=rate,
                examples=batch.examples,
                tokens=batch.tokens,
                flops=self.watch.flops_of(batch),
                seconds=time.monotonic() - started,
                waited=waited,
                imbalance=batch.imbalance,
            )
        )

    def _after_step(self, batch: StepBatch, *, wants_stop: bool) -> None:
        last = self.step == self.plan.recipe.steps
        if last or self.step % self.plan.recipe.evaluate_every == 0:
            self._evaluate()
        if last or wants_stop or self.step % self.plan.checkpoint_every == 0:
            self._save()
        self.saver.check()
        if wants_stop and not last:
            self.saver.wait()
            self.world.barrier()
            raise Terminated

    def _evaluate(self) -> None:
        self.watch.watchdog.alive("evaluation", self.step)
        scores = self.watch.evaluate(self.step - 1)
        if scores is None:
            return
        self.heldout, self._evaluated_at = scores, self.step
        self.curve.add_heldout(self.step, asdict(scores))
        self.watch.telemetry.add_heldout(self.step, asdict(scores))
        if self.world.is_first:
            say(
                f"pretrain step={self.step}/{self.plan.recipe.steps} "
                f"heldout_mlm={scores.masked_lm_loss:.3f} "
                f"heldout_mlm_accuracy={scores.masked_lm_accuracy:.3f} "
                f"heldout_nsp_accuracy={scores.next_sentence_accuracy:.3f}"
            )

    def _save(self) -> None:
        self.watch.watchdog.alive("checkpoint", self.step)
        judged = self.heldout if self._evaluated_at == self.step else None
        self.saver.save(
            self.step,
            self.engine,
            {
                **self.plan.facts,
                "step": self.step,
                "updates": self.engine.updates,
                "seconds": self.watch.telemetry.spent,
                "skipped_in_row": self.skipped_in_row,
                "heldout_loss": judged.masked_lm_loss if judged else None,
                "heldout": asdict(self.heldout) if self.heldout else None,
                "curve": self.curve.state(),
            },
        )
