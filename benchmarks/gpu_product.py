"""The product's own training step on batches drawn from a seed: what the GPU programs here measure.

In:  an architecture, a sequence length, how many sequences a step has.
Out: `Workload`, the same sequences for every side; `trainer`, the product's `Trainer` around its
     `Engine`; `training_steps`, which runs it behind the product's `Prefetcher`.

The lengths are those of real text (benchmarks/realistic.py), or all full.
"""

import time
from collections.abc import Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np
import torch

from benchmarks.realistic import MASKED_SHARE, VOCABULARY, cut, examples
from model.config import EncoderConfig, PretrainStage, TrainingMachine
from model.data.batch import Example, pack
from model.data.micro_batches import GpuSource, Prefetcher, StepBatch
from model.data.order import BatchAddress
from model.encoder.pretraining import PretrainingModel
from model.training.checkpoints import Checkpoints
from model.training.cuda_graphs import StepGraphs
from model.training.distributed import join_world
from model.training.engine import Engine
from model.training.loop import Trainer
from model.training.monitoring.health import Alarms, Stop, Watchdog
from model.training.monitoring.telemetry import Curve, Telemetry, training_flops

SIZES = {
    "17M": (7, 256, 4, 384),
    "68M": (19, 512, 8, 768),
}
"""Layers, width, heads, inner width of Ettin's small encoders (Weller et al. 2025), with BERT's own
layers: launches weigh most on small models."""

LONGEST = 8192
"""Positions of modern encoders; they have no table of them, so it costs nothing."""

MODERN_MASKED = 0.3
"""Share of the tokens that modern encoders predict."""

DISTINCT = 4
"""Batches drawn; later steps see them again."""

STEPS = 1_000_000
"""Of the schedule, which no benchmark comes to the end of."""


def encoder_config(size: str, **changes: float) -> EncoderConfig:
    """A preset or one of `SIZES`, with exact GELU as Hugging Face has it.

    Behind `modern-`: a preset of that family, without dropout, of which transformers has none.
    """
    family, _, preset = size.rpartition("-")
    table: dict[str, object] = {"preset": size, "hidden_act": "gelu", **changes}
    if family:
        table = {"family": family, "preset": preset, "hidden_dropout_prob": 0.0, **changes}
        table |= {"max_position_embeddings": LONGEST}
    if size in SIZES:
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        table |= {"preset": None, **dict(zip(names, SIZES[size], strict=True))}
    return EncoderConfig.model_validate(table)


@dataclass(frozen=True)
class Workload:
    """One architecture and its batches, `sequences` of at most `longest` tokens a step."""

    size: str
    longest: int
    sequences: int
    full: bool = False
    """All sequences as long as the longest."""

    @cached_property
    def batches(self) -> list[list[Example]]:
        """`DISTINCT` global batches."""
        share = MODERN_MASKED if self.is_modern else MASKED_SHARE
        return [
            examples(
                self.sequences, longest=self.longest, seed=seed, full=self.full, masked_share=share
            )
            for seed in range(DISTINCT)
        ]

    @property
    def is_modern(self) -> bool:
        """Whether the encoder is of the modern family."""
        return self.size.startswith("modern-")

    @cached_property
    def lengths(self) -> list[np.ndarray]:
        """[sequences] of each batch."""
        return [np.array([len(one.input_ids) for one in batch]) for batch in self.batches]

    @property
    def mean_length(self) -> float:
        """Tokens of a sequence."""
        return float(np.mean(self.lengths))

    def flops(self, number: int) -> float:
        """Of the matrix products of one step on real tokens, forward and backward."""
        lengths, batch = self.lengths[number % DISTINCT], self.batches[number % DISTINCT]
        return training_flops(
            encoder_config(self.size),
            VOCABULARY,
            tokens=int(lengths.sum()),
            squared=int((lengths**2).sum()),
            masked=sum(len(one.masked_lm_ids) for one in batch),
        )

    def step_batch(self, step: int, *, token_budget: int) -> StepBatch:
        """What the product's `BatchSource` makes of a global batch, for one rank."""
        batch, lengths = self.batches[step % DISTINCT], self.lengths[step % DISTINCT]
        return StepBatch(
            step=step,
            address=BatchAddress(self.longest, 0, 0, len(batch)),
            micro_batches=tuple(pack(part) for part in cut(batch, token_budget)),
            masked=sum(len(one.masked_lm_ids) for one in batch),
            labelled=len(batch),
            examples=len(batch),
            tokens=int(lengths.sum()),
            squared_lengths=int((lengths**2).sum()),
            imbalance=0.0,
        )


def trainer(
    work: Workload,
    *,
    device: str,
    precision: str = "bf16",
    optimizer: str = "adamw",
    compiled: bool = False,
    graphs: bool = False,
    steps: int = STEPS,
    encoder: Mapping[str, float] | None = None,
) -> Trainer:
    """The product's trainer of one rank.

    `graphs`: passes as CUDA graphs; `encoder`: fields of the architecture that differ. It never
    reads a batch of its own: `training_steps` gives it some.
    """
    recipe = {
        "steps": steps,
        "precision": precision,
        "batch_size": work.sequences,
        "optimizer": {"name": optimizer, "warmup_steps": steps // 100},
        "next_sentence_loss": not work.is_modern,
    }
    config = encoder_config(work.size, **(encoder or {}))
    stage = PretrainStage.model_validate(
        {"seed": 1, "encoder": config.model_dump(), "pretrain": recipe}
    )
    machine = TrainingMachine.model_validate({"device": device, "cuda_graphs": graphs})
    world = join_world(threads=torch.get_num_threads(), timeout=600.0, device=device)
    torch.manual_seed(stage.seed)
    model = PretrainingModel(stage.encoder, VOCABULARY, fp8=precision == "fp8").to(world.device)
    if compiled:
        model.encoder.compile_layers()
    engine = Engine(model, world=world, machine=machine, recipe=stage.pretrain)
    return Trainer(
        stage=stage,
        machine=machine,
        identity={"config": {}, "inputs": {}},
        vocabulary_size=VOCABULARY,
        world=world,
        engine=engine,
        graphs=StepGraphs(engine) if graphs else None,
        source=None,  # type: ignore[arg-type]  # only `Trainer.train` reads it
        heldout_sources={},
        checkpoints=Checkpoints(Path("never-written"), 1),
        telemetry=Telemetry("pretrain", steps, steps, 1.0, world.device, logs=False),
        alarms=Alarms(0.0),
        watchdog=Watchdog(0, 600.0),
        stop=Stop(),
        curve=Curve(steps),
    )


def training_steps(trained: Trainer, work: Workload, *, token_budget: int) -> Generator[int]:
    """Steps from 0 on, one each time it is asked; batches are packed and copied ahead."""

    def make(step: int) -> StepBatch:
        return work.step_batch(step, token_budget=token_budget)

    device = trained.world.device
    source = GpuSource(make, device) if device.type == "cuda" else make
    with closing(Prefetcher(source, 0, STEPS)) as batches:
        for number, batch in zip(count(), batches, strict=False):
            trained.train_step(batch, started=time.monotonic(), waited=0.0)
            yield number
