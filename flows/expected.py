"""How long a run's stages will take on this machine, from what they have taken before.

In:  a run's configuration, a machine's, and the workspace with the records of earlier runs.
Out: `ExpectedTime` by stage: seconds, and what they rest on.

A stage that some run of this workspace has made is the measure: what it took beyond the start of
its program grows with its work, bytes of text or FLOPs. A stage that was never made here is
reckoned from the rates of preparation (flows/forecast.py) and, where there is no GPU, from this
machine's rate of matrix products, measured now.
"""

import json
import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from artifacts import filesystem
from artifacts.errors import ClozeError
from artifacts.filesystem import is_local
from artifacts.manifest import MANIFEST_NAME
from artifacts.store import open_artifact
from flows.config import MachineConfig, RunConfig
from flows.external_inputs import located
from flows.forecast import (
    EXAMPLES_RATE,
    TOKENS_RATE,
    WORD_PIECES_PER_BYTE,
    example_flops,
    expected_yield,
    steps_to_do,
)
from flows.record import find_record, list_runs
from flows.workspace import Workspace
from model.config import EncoderConfig, TaskConfig
from model.hardware import machine_precision

START_SECONDS = {
    **{"dedup": 3.0, "vocabulary": 3.0, "tokens": 3.0, "examples": 3.0, "labels": 2.5},
    **{"pretrain": 10.0, "finetune": 8.0, "evaluate": 8.0, "report": 3.0},
}
"""Of a stage's program before its work begins: imports, workers, compilation. Measured with
configs/smoke.toml, whose stages do hardly more."""

TEXT_PER_SOURCE_BYTE = 0.16
"""Bytes of docstrings for each byte of an installed package's Python files."""

CPU_STEP_SECONDS = 0.004
"""Of every optimizer step on processors, however small the encoder."""

CPU_SHARE = 0.4
"""Of the rate of large matrix products that training reaches: 0.41 in the demo, 0.36 for base."""

BF16_GAIN = {"AMX": 7.0, "AVX-512 BF16": 1.9}
"""Rate of bf16 products over that of fp32, by what `model.hardware` finds in the processor."""

SIZES = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")

MATRIX = 768
"""Rows and columns of the measured product: the width of BERT-base."""

MEASURING_SECONDS = 0.2

SPECIAL_TOKENS = 3
"""Of an example: [CLS] and a [SEP] after each of two texts."""

LABELLED_EXAMPLES = 1000
"""Of a task whose data are not here to be counted."""


@dataclass(frozen=True)
class ExpectedTime:
    """What one stage will take."""

    stage: str
    seconds: float
    basis: str
    """`as in run demo`, or what else the figure rests on."""


def expected_times(
    run: RunConfig,
    machine: MachineConfig,
    stages: Iterable[str],
    *,
    space: Workspace,
) -> list[ExpectedTime]:
    """What each of `stages` takes here."""
    work = Work(run)
    earlier = _earlier_stages(space)
    found, rate = [], 0.0
    for stage in stages:
        start, wanted = START_SECONDS.get(stage, 3.0), work.of(stage)
        known = [
            (abs(math.log((wanted + 1) / (done + 1))), name, done, seconds)
            for name, made, done, seconds in earlier
            if made == stage
        ]
        if known:
            _, name, done, seconds = min(known)
            start = min(start, seconds)
            scaled = start + (seconds - start) * (wanted / done if done else 1.0)
            basis = f"as in run {name}" if wanted == done else f"from run {name}, by its work"
            found.append(ExpectedTime(stage, scaled, basis))
            continue
        if not wanted:
            seconds, basis = 0.0, "start of its program"
        elif stage in ("vocabulary", "tokens", "dedup"):
            seconds, basis = wanted / TOKENS_RATE / machine.pipeline.workers, "measured rates"
        elif stage == "examples":
            seconds, basis = wanted / EXAMPLES_RATE / machine.pipeline.workers, "measured rates"
        elif has_gpu():
            seconds = wanted / (machine.rates.gpu_tflops * 1e12) / machine.training.ranks
            basis = f"{machine.rates.gpu_tflops:g} TFLOP/s (rates.gpu_tflops)"
        else:
            rate = rate or matrix_rate() * bf16_gain()
            steps = sum(steps_to_do(run)) if stage == "pretrain" else 0
            seconds = wanted / (CPU_SHARE * rate) + CPU_STEP_SECONDS * steps
            basis = f"no GPU; {rate / 1e9:,.0f} GFLOP/s measured on this machine"
        found.append(ExpectedTime(stage, start + seconds, basis))
    return found


def _earlier_stages(space: Workspace) -> list[tuple[str, str, float, float]]:
    """(run, stage, work, seconds) of every stage whose time is recorded in this workspace."""
    found = []
    for name in list_runs(space):
        record = find_record(space, name)
        try:
            run = RunConfig.model_validate(record.config) if record else None
        except ValidationError:
            continue  # a configuration of another version
        if record and run:
            work = Work(run)
            for stage, made in record.stages.items():
                if made.seconds is not None:
                    found.append((name, stage, work.of(stage), made.seconds))
    return found


class Work:
    """How much each stage of a run has to do: bytes of text, or FLOPs."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.encoder = _encoder_of(run) if run.finetune.encoder else run.encoder
        self.text_bytes = 0.0
        for source in run.corpus.sources if run.corpus else ():
            python = sum(_source_bytes(package) for package in source.packages)
            self.text_bytes += TEXT_PER_SOURCE_BYTE * python
            if source.path and is_local(source.path):
                path = Path(located(source.path))
                files = [path] if path.is_file() else path.rglob("*")
                self.text_bytes += sum(file.stat().st_size for file in files if file.is_file())

    def of(self, stage: str) -> float:
        """The work of `stage`; 0 where it is not worth counting."""
        examples = self.run.examples
        return {
            **dict.fromkeys(("dedup", "vocabulary", "tokens"), self.text_bytes),
            "examples": self.text_bytes * examples.copies * len(examples.max_seq_lengths),
            "pretrain": self._pretraining_flops(),
            "finetune": self._finetuning_flops(),
            "evaluate": self._evaluation_flops(),
        }.get(stage, 0.0)

    def _flops(self, length: int, *, masked: bool = True) -> float:
        """Of one example of at most `length` tokens, forward and backward."""
        tokens = expected_yield(length).mean_length
        predicted = self.run.examples.masking.masked_lm_prob * tokens if masked else 0.0
        return example_flops(
            self.encoder, self.run.vocabulary.size, tokens=tokens, masked=predicted
        )

    def _evaluation_flops(self) -> float:
        """Held-out text, forward only, by the encoder and by its random twin; tasks are scored."""
        if not self.run.corpus:
            return 0.0
        return 2 / 3 * self.run.evaluate.examples * self._flops(self._longest())

    def _longest(self) -> int:
        return max(self.run.examples.max_seq_lengths)

    def _pretraining_flops(self) -> float:
        recipe = self.run.pretrain
        steps = steps_to_do(self.run)
        trained = sum(
            count * recipe.batch_size * self._flops(phase.max_seq_length)
            for phase, count in zip(recipe.phases, steps, strict=True)
        )
        looks = sum(steps) // recipe.evaluate_every if recipe.evaluate_every else 0
        return trained + looks * recipe.evaluation_examples * self._flops(self._longest()) / 3

    def _finetuning_flops(self) -> float:
        config, total = self.run.finetune, 0.0
        for task in config.tasks:
            examples, tokens = self._labelled(task)
            one = example_flops(self.encoder, self.run.vocabulary.size, tokens=tokens, masked=0.0)
            epochs = task.epochs * len(config.seeds) * len(config.initialisations)
            if config.grid:
                epochs += sum(config.grid.epochs) * (
                    len(config.grid.batch_sizes) * len(config.grid.learning_rates)
                )
            total += epochs * examples * one
        return total

    def _labelled(self, task: TaskConfig) -> tuple[int, float]:
        """Training examples of a task and the tokens of one.

        Counted in its file, where a tagged sentence ends with a blank line and every other example
        is a line; else those that the labels stage makes, or guessed.
        """
        tokens, examples = expected_yield(task.max_seq_length).mean_length, 0
        path = Path(located(task.train)) if task.train and is_local(task.train) else None
        if path and path.is_file():
            with open(path, "rb") as lines:
                blank = [not line.strip() for line in lines]
            examples = sum(blank) if task.kind == "tagging" and any(blank) else len(blank)
            text = WORD_PIECES_PER_BYTE * path.stat().st_size / max(examples, 1)
            tokens = min(text + SPECIAL_TOKENS, task.max_seq_length)
        elif self.run.labels and task.kind == "tagging":
            examples = self.run.labels.tagging_train_sentences
        elif self.run.labels:
            examples = self.run.labels.pair_train_examples
        return task.train_examples or examples or LABELLED_EXAMPLES, tokens


def _source_bytes(package: str) -> int:
    """Bytes of an installed package's Python files; 0 if it is not here."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return 0
    return sum(file.size or 0 for file in files if file.suffix == ".py")


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return Path("/proc/driver/nvidia/version").exists()


def matrix_rate() -> float:
    """FLOPs a second of fp32 matrix products on this machine's processors, the best seen now.

    By processor time, as if nothing else ran: by the clock, other programs at work now would make
    tomorrow's run look ten times as long.
    """
    matrix = np.ones((MATRIX, MATRIX), np.float32)
    best, until = math.inf, time.perf_counter() + MEASURING_SECONDS
    while time.perf_counter() < until:
        started = time.process_time()
        matrix @ matrix
        best = min(best, time.process_time() - started)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return 2 * MATRIX**3 / best * (cores or 1)


def bf16_gain() -> float:
    """How much faster products are in the precision that trains fastest here."""
    precision, reason = machine_precision()
    gains = (gain for name, gain in BF16_GAIN.items() if reason.endswith(name))
    return next(gains, 1.0) if precision == "bf16" else 1.0


def _encoder_of(run: RunConfig) -> EncoderConfig:
    """The shape that is trained: the run's own, or that of the encoder which is given."""
    given = run.finetune.encoder
    try:
        if filesystem.exists(filesystem.join(given, MANIFEST_NAME)):
            table = open_artifact(given).read_json("config.json")
        else:
            table = json.loads(filesystem.read_bytes(filesystem.join(given, "config.json")))
        sizes = {name: table[name] for name in SIZES}
        family = "modern" if table.get("model_type") == "modernbert" else "bert"
        return EncoderConfig.model_validate({"preset": None, "family": family, **sizes})
    except (OSError, ValueError, LookupError, ClozeError):
        return run.encoder
