"""Our side of the training benchmarks: the product's own engine, trainer and training step.

In:  a recipe, or a workload (workload.py) of batches drawn from a seed.
Out: `engine_of`, the product's engine around a new model; `trainer`, its `Trainer` around that;
     `training_steps`, which passes it batches through the product's `prefetch`.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import torch

from benchmarks.training.workload import DISTINCT, VOCABULARY, Workload, cut, encoder_config
from cloze.model.config import PretrainStage, TrainingMachine
from cloze.model.data.batch import pack_sequences
from cloze.model.data.micro_batches import StepBatch, on_device, prefetch
from cloze.model.data.order import BatchAddress
from cloze.model.encoder.models import Encoder, PretrainingModel
from cloze.model.encoder.precision import computed_in
from cloze.model.training.checkpoints import Checkpoints
from cloze.model.training.cuda_graphs import StepGraphs
from cloze.model.training.distributed import World, join_world
from cloze.model.training.engine import Replicated
from cloze.model.training.health import Alarms, Stop, Watchdog
from cloze.model.training.loop import Trainer
from cloze.model.training.optimizer import Schedule
from cloze.model.training.telemetry import Curve, Telemetry

STEPS = 1_000_000
"""Length of the schedule, which no benchmark completes."""


@dataclass(frozen=True)
class Way:
    """How the product computes a step, and with which optimizer."""

    precision: str = "bf16"
    optimizer: str = "adamw"
    compiled: bool = False
    """Compiled layers, if it is on a GPU."""
    graphs: bool = False
    """Forward and backward passes as CUDA graphs."""


USUAL = Way()


def engine_of(
    stage: PretrainStage, vocabulary_size: int, *, world: World, way: Way = USUAL
) -> Replicated:
    """The product's engine around a model drawn from the seed; `way` has the stage's precision."""
    torch.manual_seed(stage.seed)
    model = PretrainingModel(
        Encoder(stage.encoder, vocabulary_size, fp8=way.precision == "fp8")
    ).to(world.device)
    if way.compiled and world.device.type == "cuda":
        model.encoder.compile_layers()
    recipe = stage.pretrain
    return Replicated(
        computed_in(recipe.precision, model),
        world=world,
        schedule=Schedule(recipe.optimizer, recipe.steps),
        keeps_gradients=way.graphs,
    )


def trainer(
    work: Workload,
    *,
    device: str,
    way: Way = USUAL,
    steps: int = STEPS,
    encoder: Mapping[str, float] | None = None,
) -> Trainer:
    """The product's trainer of one rank.

    `encoder`: fields of the architecture that differ. The trainer has no data source of its own:
    `training_steps` passes it batches.
    """
    recipe = {
        "steps": steps,
        "precision": way.precision,
        "batch_size": work.sequences,
        "optimizer": {"name": way.optimizer, "warmup_steps": steps // 100},
        "next_sentence_loss": not work.is_modern,
    }
    config = encoder_config(work.size, **(encoder or {}))
    stage = PretrainStage.model_validate(
        {"seed": 1, "encoder": config.model_dump(), "pretrain": recipe}
    )
    machine = TrainingMachine.model_validate({"device": device, "cuda_graphs": way.graphs})
    world = join_world(threads=torch.get_num_threads(), timeout=600.0, device=device)
    engine = engine_of(stage, VOCABULARY, world=world, way=way)
    return Trainer(
        stage=stage,
        machine=machine,
        identity={"config": {}, "inputs": {}},
        vocabulary_size=VOCABULARY,
        world=world,
        engine=engine,
        graphs=StepGraphs(engine) if way.graphs else None,
        source=None,  # type: ignore[arg-type]  # only `Trainer.train` reads it
        heldout_sources={},
        checkpoints=Checkpoints(Path("never-written"), 1),
        telemetry=Telemetry(steps, steps, 1.0, world.device),
        alarms=Alarms(0.0),
        watchdog=Watchdog(0, 600.0),
        stop=Stop(),
        curve=Curve(steps),
    )


def training_steps(trained: Trainer, work: Workload, *, token_budget: int) -> Generator[int]:
    """Run one step per iteration, from 0 on; batches are packed and copied ahead."""

    def make(step: int) -> StepBatch:
        batch, lengths = work.batches[step % DISTINCT], work.lengths[step % DISTINCT]
        return StepBatch(
            step=step,
            address=BatchAddress(work.longest, 0, 0, len(batch)),
            micro_batches=tuple(pack_sequences(part) for part in cut(batch, token_budget)),
            masked=work.masked(step),
            labelled=len(batch),
            examples=len(batch),
            tokens=int(lengths.sum()),
            squared_lengths=int((lengths**2).sum()),
            imbalance=0.0,
        )

    device = trained.world.device
    with closing(prefetch(on_device(make, device), 0, STEPS)) as batches:
        for number, batch in zip(count(), batches, strict=False):
            trained.train_step(batch, started=time.monotonic(), waited=0.0)
            yield number
