"""One run of pre-training on one rank: its parts put together, trained, exported, committed.

In:  the stage table and what it holds.
Out: the finished artifact.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any

import torch
from torch.utils.tensorboard import SummaryWriter

from artifacts import filesystem
from artifacts.errors import UsageError
from artifacts.stage import StageTable
from artifacts.store import open_artifact
from model.config import PretrainStage, TrainingMachine
from model.data.micro_batches import BatchSource, Prefetcher, StepBatch
from model.encoder.pretraining import PretrainingModel
from model.training.alarms import Alarms
from model.training.assembly import (
    HELDOUT,
    Inputs,
    evaluation_source,
    matrix_rate,
    new_model,
    read_inputs,
    training_source,
    unigram_entropy,
)
from model.training.checkpoints import Checkpoints
from model.training.curve import Curve
from model.training.distributed import World
from model.training.engine import Engine
from model.training.evaluation import Scores, evaluate
from model.training.export import Finished, export
from model.training.fault_injection import Strike
from model.training.loop import Plan, Trainer, Watchers
from model.training.resuming import Resumed, resume
from model.training.saving import Saver
from model.training.stopping import Stop
from model.training.telemetry import Telemetry, peak_memory, training_flops
from model.training.watchdog import Watchdog


@dataclass
class Run:
    """Everything one rank knows of its run."""

    table: StageTable
    stage: PretrainStage
    machine: TrainingMachine
    world: World
    watchdog: Watchdog
    at: Strike

    def complete(self) -> None:
        """Train to the end, from a checkpoint if there is one, and commit the artifact."""
        self.world.require_agreement(
            {"stage table": self.table.key, "examples": self.inputs.artifact.digest}
        )
        resumed = self._resume()
        engine = self._engine(resumed)
        with Stop().listening() as stop, self._log(resumed.step if resumed else 0) as log:
            trainer = Trainer(
                engine=engine,
                world=self.world,
                plan=self._plan(),
                curve=Curve(self.stage.pretrain.steps),
                saver=Saver(self.checkpoints, self.world),
                watch=self._watchers(engine, stop, log),
            )
            if resumed is not None:
                trainer.restore(resumed.state)
            self._train(trainer)
        self._finish(trainer)

    @cached_property
    def inputs(self) -> Inputs:
        """The examples."""
        return read_inputs(open_artifact(self.table.input_path("examples")), self.stage)

    @cached_property
    def source(self) -> BatchSource:
        """The run's batches."""
        return training_source(self.inputs, self.stage, machine=self.machine, world=self.world)

    @cached_property
    def checkpoints(self) -> Checkpoints:
        """Where the run's checkpoints are."""
        chosen = self.machine.checkpoints or self.table.output
        if not filesystem.is_local(chosen):
            raise UsageError(
                f"{chosen}: checkpoints want a local or shared file system; "
                "set training.checkpoints to a folder there"
            )
        directory = Path(filesystem.local_path(chosen)) / "checkpoints"
        return Checkpoints(directory, self.machine.keep_checkpoints, self.at)

    @cached_property
    def model(self) -> PretrainingModel:
        """The model as training begins."""
        return new_model(self.stage, self.machine, tokenizer=self.inputs.tokenizer)

    def _facts(self) -> dict[str, Any]:
        """What a checkpoint must agree on with the run that goes on from it."""
        inputs = {role: given.digest for role, given in self.table.inputs.items()}
        return {"config": self.table.keyed_config, "inputs": inputs}

    def _plan(self) -> Plan:
        return Plan(
            recipe=self.stage.pretrain,
            seed=self.stage.seed,
            checkpoint_every=self.machine.checkpoint_every,
            max_skipped_steps=self.machine.max_skipped_steps,
            facts=self._facts(),
        )

    def _resume(self) -> Resumed | None:
        shapes = {name: parameter.shape for name, parameter in self.model.named_parameters()}
        return resume(self.checkpoints, world=self.world, shapes=shapes, facts=self._facts())

    def _engine(self, resumed: Resumed | None) -> Engine:
        if resumed is not None:
            # Before DeepSpeed takes the model: its bf16 weights must be the rounded masters.
            masters = {name: kept.master for name, kept in resumed.parameters.items()}
            self.model.load_state_dict(masters)
        engine = Engine(
            self.model.to(self.world.device),
            world=self.world,
            machine=self.machine,
            recipe=self.stage.pretrain,
        )
        if resumed is not None:
            engine.restore(resumed.parameters, updates=resumed.state["updates"])
        return engine

    def _watchers(self, engine: Engine, stop: Stop, log: IO[str]) -> Watchers:
        return Watchers(
            telemetry=self._telemetry(log),
            watchdog=self.watchdog,
            stop=stop,
            at=self.at,
            evaluate=self._evaluator(engine),
            rows_of=self.source.rows_of,
            flops_of=self._flops,
        )

    def _telemetry(self, log: IO[str]) -> Telemetry:
        size = self.inputs.tokenizer.size
        precision = torch.bfloat16 if self.stage.pretrain.precision == "bf16" else torch.float32
        rate = self.world.sum([matrix_rate(self.world.device, precision=precision)])[0]
        first = self.world.is_first
        folder = self.machine.tensorboard if first else ""
        on_gpu = self.world.device.type == "cuda"
        return Telemetry(
            stage=self.table.stage,
            steps=self.stage.pretrain.steps,
            log_every=self.machine.log_every,
            matrix_rate=rate,
            alarms=Alarms(unigram_entropy(self.source, vocabulary_size=size) if first else 0.0),
            log=log,
            tensorboard=SummaryWriter(folder) if folder else None,
            speaks=first,
            memory=torch.cuda.max_memory_allocated if on_gpu else peak_memory,
        )

    def _flops(self, batch: StepBatch) -> float:
        return training_flops(
            self.stage.encoder,
            self.inputs.tokenizer.size,
            tokens=batch.tokens,
            squared=batch.squared_lengths,
            masked=batch.masked,
        )

    def _evaluator(self, engine: Engine) -> Callable[[int], Scores | None]:
        def heldout(step: int) -> Scores | None:
            length = self.source.curriculum.batch(step).max_seq_length
            source = self._heldout_source(length)
            if source is None:
                return None
            return evaluate(engine, self._judged(source, step), world=self.world)

        return heldout

    def _judged(self, source: BatchSource, step: int) -> Iterator[StepBatch]:
        """Held-out batches, each a sign of life: judging a large encoder takes its time."""
        for number in range(source.curriculum.steps):
            self.watchdog.alive("evaluation", step)
            yield source(number)

    def _heldout_source(self, max_seq_length: int) -> BatchSource | None:
        return evaluation_source(
            self.inputs,
            self.stage,
            split=HELDOUT,
            max_seq_length=max_seq_length,
            share=self.source.share,
        )

    def _train(self, trainer: Trainer) -> None:
        batches = Prefetcher(self.source, trainer.step, self.stage.pretrain.steps)
        try:
            trainer.train(batches)
            trainer.saver.wait()
        finally:
            batches.close()
            trainer.saver.close()

    def _finish(self, trainer: Trainer) -> None:
        masters = {name: kept.master for name, kept in trainer.engine.state()}
        if self.world.is_first:
            finished = Finished(
                masters=masters,
                curve=trainer.curve.json_lines(),
                metrics=self._metrics_path().read_bytes(),
                heldout=trainer.heldout,
                updates=trainer.engine.updates,
                execution={
                    "device": self.world.device.type,
                    "ranks": self.world.ranks,
                    "zero_stage": self.machine.zero_stage,
                    "training_seconds": round(trainer.watch.telemetry.spent, 3),
                    "checkpoint_seconds": round(trainer.saver.seconds, 3),
                },
            )
            export(self.table, self.stage, self.inputs, finished)
            shutil.rmtree(self.checkpoints.directory)
        self.world.barrier()

    def _metrics_path(self) -> Path:
        return self.checkpoints.directory / "metrics.jsonl"

    @contextmanager
    def _log(self, done: int) -> Iterator[IO[str]]:
        """The JSON lines of telemetry, those of steps that will be done again left out."""
        if not self.world.is_first:
            with open(os.devnull, "w") as nowhere:
                yield nowhere
            return
        path = self._metrics_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        kept = [line for line in lines if line.endswith("\n") and json.loads(line)["step"] <= done]
        path.write_text("".join(kept))
        log = path.open("a")
        try:
            yield log
        finally:
            with suppress(OSError):  # what could not be written has been said already
                log.close()
