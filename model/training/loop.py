"""The loop of pre-training: `train` → `train_step` → `micro_step`.

In:  an engine, batches, held-out batches.
Out: a trained engine, the curve, checkpoints; or `Terminated` after a checkpoint if asked to stop.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.progress import say
from cloze.artifacts.rng import address
from cloze.artifacts.runtime.program import Terminated
from cloze.model.config import PretrainStage, TrainingMachine
from cloze.model.data.batch import PackedBatch
from cloze.model.data.micro_batches import BatchSource, StepBatch, on_device, prefetch
from cloze.model.training.checkpoints import Checkpoints, Identity, Milestones, RunState
from cloze.model.training.continuation import Continuation
from cloze.model.training.cuda_graphs import StepGraphs
from cloze.model.training.distributed import World
from cloze.model.training.engine import Engine
from cloze.model.training.health import Alarms, Deadline, Stop, Watchdog, shortening
from cloze.model.training.telemetry import Curve, StepRecord, Telemetry


def mean_scores(sums: Sequence[float], *, masked: int, labelled: int) -> dict[str, float]:
    """The four sums of `PretrainingSums` as means; losses in nats.

    `masked`, `labelled`: the tokens and examples that they are summed over, in all micro-batches.
    """
    mlm_loss, nsp_loss, mlm_correct, nsp_correct = sums
    return {
        "masked_lm_loss": mlm_loss / max(masked, 1),
        "masked_lm_accuracy": mlm_correct / max(masked, 1),
        "next_sentence_loss": nsp_loss / max(labelled, 1),
        "next_sentence_accuracy": nsp_correct / max(labelled, 1),
    }


@dataclass
class Trainer:
    """One run on one rank."""

    stage: PretrainStage
    machine: TrainingMachine
    identity: Identity
    vocabulary_size: int
    world: World
    engine: Engine
    source: BatchSource
    heldout_sources: Mapping[int, BatchSource]
    """Held-out batches by sequence length; empty without a held-out split."""

    checkpoints: Checkpoints
    telemetry: Telemetry
    alarms: Alarms
    watchdog: Watchdog
    stop: Stop
    curve: Curve

    continuation: Continuation | None = None
    """Set if this run continues a finished one."""

    step: int = 0
    skipped_in_row: int = 0
    """Most recent consecutive steps without a finite gradient."""

    heldout_by_source: Mapping[str, Mapping[int, BatchSource]] = field(default_factory=dict)
    """Held-out batches of each source, if sources are mixed."""

    heldout: dict[str, float] | None = None
    """The latest `mean_scores` of the held-out examples."""

    deadline: Deadline | None = None
    """Set if the time is limited."""

    milestones: Milestones | None = None
    """Where encoders of some steps are kept; None: nowhere."""

    graphs: StepGraphs | None = None
    """Passes captured as CUDA graphs; None: kernels are launched individually."""

    def restore(self, state: RunState) -> None:
        """Continue from a checkpoint."""
        self.step = state["step"]
        self.skipped_in_row = state["skipped_in_row"]
        self.telemetry.spent = state["seconds"]
        sources = self.curve.sources
        self.curve = Curve(self.stage.pretrain.steps, sources=sources, **state["curve"])
        self.heldout = state["heldout"]
        if self.deadline:
            self.deadline.spent = state["elapsed"]
            made = tuple((after, end) for after, end in state["shortened"])
            self.engine.schedule = replace(self.engine.schedule, shortened=made)

    def train(self) -> None:
        """Train until all steps are done or a rank is asked to stop."""
        every, end = self.stage.pretrain.evaluate_every, self.engine.schedule.end
        # The schedule's end, not the configured one: an earlier attempt may have shortened it.
        self.curve.end = self.telemetry.steps = end
        make = on_device(self.source, self.world.device)
        before = time.monotonic()
        with closing(self.checkpoints), closing(prefetch(make, self.step, end)) as batches:
            for batch in batches:
                waited = time.monotonic() - before
                stopping = self.train_step(batch, started=before, waited=waited)
                last = self.step == self.engine.schedule.end
                # Evaluated before it is saved: a checkpoint records its own held-out loss.
                evaluating = last or self.step % every == 0
                if evaluating:
                    self.evaluate(batch)
                if self.milestones and self.milestones.is_due(self.step):
                    self.watchdog.reached("checkpoint", self.step)
                    parameters, writes = self.engine.state(), self.world.is_first
                    self.milestones.save(parameters, self.step, writes=writes)
                if last or stopping or self.step % self.machine.checkpoint_every == 0:
                    self.save(evaluated=evaluating)
                # A failed write is raised at the next step rather than with the next checkpoint;
                # before leaving, wait for it.
                self.checkpoints.wait(only_if_done=not last and not stopping)
                if stopping and not last:
                    # no rank leaves before the first one has written
                    self.world.barrier()
                    raise Terminated
                # Batches were prefetched for the end known at the start; a deadline may have moved
                # it forward.
                if last:
                    break
                # Only now, so that neither an evaluation nor saving counts as waiting for the next
                # batch.
                before = time.monotonic()

    def train_step(self, batch: StepBatch, *, started: float, waited: float) -> bool:
        """Accumulate the gradients of the micro-batches and update once; True to stop the run."""
        # [5]: the four `PretrainingSums`, and whether this rank was asked to stop
        sums = torch.zeros(5, device=self.world.device)
        batch.wait_for_copies()
        for micro, micro_batch in enumerate(batch.micro_batches):
            sums[:4] += self.micro_step(batch, micro_batch, micro=micro)
        # Summed with the losses, without an exchange of its own, so that all ranks stop after the
        # same step.
        sums[4] = self.stop.wanted
        self.watchdog.reached("before_step", batch.step)
        outcome = self.engine.step(batch.step, sums)
        self.watchdog.reached("after_step", batch.step)
        *totals, stopping = outcome.sums.tolist()
        self.step = batch.step + 1
        # After a skipped step, too: it has taken its time, and deciding is collective, so no rank
        # may leave it out.
        if self.deadline:
            schedule = shortening(self.engine.schedule, self.step, self.deadline, self.world)
            self.engine.schedule = schedule
            self.curve.end = self.telemetry.steps = schedule.end
        if outcome.applied:
            self.skipped_in_row = 0
            scores = mean_scores(totals, masked=batch.masked, labelled=batch.labelled)
            has_sentence_loss = self.stage.pretrain.next_sentence_loss
            nsp = scores["next_sentence_loss"] if has_sentence_loss else 0.0
            record = StepRecord(
                step=self.step,
                loss=scores["masked_lm_loss"] + nsp,
                **scores,
                gradient_norm=float(outcome.gradient_norm),
                learning_rate=outcome.learning_rate,
                examples=batch.examples,
                tokens=batch.tokens,
                flops=self.stage.encoder.training_flops(
                    self.vocabulary_size,
                    tokens=batch.tokens,
                    squared=batch.squared_lengths,
                    masked=batch.masked,
                ),
                seconds=time.monotonic() - started,
                waited=waited,
                imbalance=batch.imbalance,
                source_tokens=batch.source_tokens,
            )
            self.curve.add(record)
            self.telemetry.add(record)
            for warning in self.alarms.check(record) if self.world.is_first else ():
                say(f"warning: {warning}")
        else:
            self._skip(batch)
        return bool(stopping > 0)

    def micro_step(self, batch: StepBatch, micro_batch: PackedBatch, *, micro: int) -> Tensor:
        """Forward and backward pass of a micro-batch; its four sums, [4]."""
        # 63 bits, as torch's generators take; each rank and micro-batch has noise of its own
        seed = address(self.stage.seed, "dropout", batch.step, self.world.rank, micro) >> 1
        # Divided by the counts of the global batch, so that the loss does not depend on how the
        # batch is split; the 1e-5 is the reference's (run_pretraining.py:279).
        has_sentence_loss = self.stage.pretrain.next_sentence_loss
        labelled = float(max(batch.labelled, 1)) if has_sentence_loss else math.inf
        divisors = (batch.masked + 1e-5, labelled)
        if self.graphs is not None:
            replayed = self.graphs.micro_step(micro_batch, divisors, seed=seed)
            if replayed is not None:
                self.watchdog.reached("after_backward", batch.step)
                return replayed
        sums = self.engine.forward(micro_batch, dropout=seed)
        self.watchdog.reached("after_forward", batch.step)
        loss = sums.loss(*divisors)
        self.engine.backward(loss, last=micro + 1 == len(batch.micro_batches))
        self.watchdog.reached("after_backward", batch.step)
        return torch.stack([value.detach().float() for value in sums])

    def evaluate(self, batch: StepBatch) -> None:
        """Score the held-out examples of the batch's length, if there are any.

        The examples are fixed; every rank computes its share.
        """
        length = batch.address.max_seq_length
        source = self.heldout_sources.get(length)
        if source is None:
            return
        self.heldout = self._scores(source)
        by_source = {
            name: self._scores(sources[length])
            for name, sources in self.heldout_by_source.items()
            if length in sources
        }
        self.curve.add_heldout(self.step, self.heldout, by_source)
        self.telemetry.add_heldout(self.step, self.heldout, by_source)

    def _scores(self, source: BatchSource) -> dict[str, float]:
        """The `mean_scores` of all batches of `source`."""
        device = self.world.device
        sums, masked, labelled = torch.zeros(4, dtype=torch.float64, device=device), 0, 0
        make = on_device(source, device)
        for number in range(source.curriculum.steps):
            self.watchdog.reached("evaluation", self.step)  # takes minutes with a large encoder
            heldout = make(number)
            heldout.wait_for_copies()
            for micro_batch in heldout.micro_batches:
                found = self.engine.forward(micro_batch, dropout=None)
                sums += torch.stack([value.double() for value in found])
            masked += heldout.masked
            labelled += heldout.labelled
        return mean_scores(self.world.sum(sums), masked=masked, labelled=labelled)

    def save(self, *, evaluated: bool) -> None:
        """Save the current state; `evaluated`: it has its own held-out scores."""
        self.watchdog.reached("checkpoint", self.step)
        state: RunState = {
            **self.identity,
            "step": self.step,
            "updates": self.engine.updates,
            "seconds": self.telemetry.spent,
            "skipped_in_row": self.skipped_in_row,
            "heldout_loss": self.heldout["masked_lm_loss"] if self.heldout and evaluated else None,
            "heldout": self.heldout,
            "curve": self.curve.state(),
            "elapsed": self.deadline.elapsed if self.deadline else 0.0,
            "shortened": self.engine.schedule.shortened,
        }
        self.checkpoints.save(self.engine.state(), state, writes=self.world.is_first)

    def _skip(self, batch: StepBatch) -> None:
        """Count a step without a finite gradient; too many in a row end the run."""
        self.skipped_in_row += 1
        rows = self.source.rows_of(batch)
        where = ", ".join(rows[:4]) + (f" and {len(rows) - 4} more" if len(rows) > 4 else "")
        if self.world.is_first:
            say(f"warning: step {self.step} skipped, its gradient is not finite; rows {where}")
        if self.skipped_in_row >= self.machine.max_skipped_steps:
            raise ClozeError(
                f"{self.skipped_in_row} steps in a row had no finite gradient, the last was step "
                f"{self.step} with rows {where}; lower optimizer.learning_rate, or "
                "inspect these rows with `cloze inspect`"
            )
