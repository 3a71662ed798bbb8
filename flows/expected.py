"""How long a run's stages will take on this machine, from what they have taken before.

In:  a run's configuration, a machine's, and the workspace with the records of earlier runs.
Out: `ExpectedTime` by stage: seconds, and what they rest on.

A stage that some run of this workspace has made is the measure: what it took beyond the start of
its program grows with its work, bytes of text or FLOPs. A stage that was never made here, or only
by runs so small that they hardly did more than start, is estimated from rates: those of preparation
(flows/forecast.py) and, where there is no GPU, this machine's rate of matrix products, measured
now. Every constant below is of two cores of an AVX-512 processor with nothing else at work; with
them each stage of configs/smoke.toml and configs/demo.toml is within a factor of 1.5.
"""

import json
import math
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import numpy as np
from pydantic import ValidationError
from threadpoolctl import threadpool_limits

from artifacts import filesystem
from artifacts.digests import cache_directory
from artifacts.errors import ClozeError
from artifacts.filesystem import is_local, located
from flows.config import MachineConfig, RunConfig
from flows.external_inputs import read_model_config
from flows.forecast import (
    EXAMPLES_RATE,
    TOKENS_RATE,
    WORD_PIECES_PER_BYTE,
    example_flops,
    expected_yield,
    length_flops,
    sequences_to_read,
    steps_to_do,
)
from flows.record import find_record, list_runs
from flows.workspace import Workspace
from model.config import SIZE_NAMES, EncoderConfig, TaskConfig
from model.hardware import machine_precision

START_SECONDS = {
    **{"dedup": 1.2, "vocabulary": 1.2, "tokens": 1.0, "examples": 0.7, "labels": 0.9},
    **{"pretrain": 7.2, "finetune": 6.5, "evaluate": 3.9, "report": 1.85},
}
"""Of a stage's program before its work begins: imports, workers, compilation. Measured with
configs/smoke.toml, whose stages do hardly more."""

LEARNING_RATE = 9e6
"""Bytes of the vocabulary's sample from which word-pieces are learnt in a second."""

PARSING_RATE = 8.5e6
"""Bytes of Python that one core parses in a second."""

COUNTING_RATE = 0.8e6
"""Training tokens that the n-gram baseline of the evaluation counts in a second."""

TEXT_PER_SOURCE_BYTE = 0.16
"""Bytes of docstrings for each byte of an installed package's Python files."""

CPU_STEP_SECONDS = 0.004
"""Of every optimizer step on CPUs, however small the encoder."""

CPU_SHARE = 0.42
"""Of the rate of large matrix products, of one core times their number, that training reaches."""

BF16_GAIN = {"AMX": 3.5, "AVX-512 BF16": 1.9}
"""How much faster bf16 trains than fp32, by what `model.hardware` finds in the processor. AMX's
large products are seven times as fast; those of encoders trained on processors are not large."""

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
    work, rates = Work(run), Rates(machine)
    earlier = _earlier_stages(space)
    found = []
    for stage in stages:
        start, wanted = START_SECONDS.get(stage, 2.0), work.of(stage)
        known = [
            (abs(math.log((wanted + 1) / (done + 1))), name, done, seconds)
            for name, made, done, seconds in earlier
            # a run that did little more than start says nothing of more work
            if made == stage and (done == wanted or seconds > 2 * start)
        ]
        if known:
            _, name, done, seconds = min(known)
            start = min(start, seconds)
            scaled = start + (seconds - start) * (wanted / done if done else 1.0)
            basis = f"as in run {name}" if wanted == done else f"from run {name}, by its work"
            found.append(ExpectedTime(stage, scaled, basis))
        else:
            seconds, basis = rates.seconds(stage, work)
            found.append(ExpectedTime(stage, start + seconds, basis))
    return found


class Rates:
    """The rates of one machine."""

    def __init__(self, machine: MachineConfig) -> None:
        self.machine = machine
        self._cpu: dict[str, float] = {}

    def seconds(self, stage: str, work: "Work") -> tuple[float, str]:
        """Seconds of `stage` beyond the start of its program, and what they rest on."""
        amount, workers = work.of(stage), self.machine.pipeline.workers
        if not amount:
            return 0.0, "start of its program"
        if stage == "labels":  # one process parses
            return amount / PARSING_RATE, "measured rates"
        if stage == "examples":
            return amount / EXAMPLES_RATE / workers, "measured rates"
        if stage in ("vocabulary", "tokens", "dedup"):
            seconds = amount / TOKENS_RATE / workers
            if stage == "vocabulary":
                seconds += min(amount, work.run.vocabulary.sample_bytes) / LEARNING_RATE
                seconds += work.unparsed_bytes / PARSING_RATE / workers
            return seconds, "measured rates"
        seconds, basis = self._training(stage, work)
        if stage == "evaluate":
            tokens = work.text_bytes * WORD_PIECES_PER_BYTE
            seconds += min(tokens, work.run.evaluate.count_model_tokens) / COUNTING_RATE
        return seconds, basis

    def _training(self, stage: str, work: "Work") -> tuple[float, str]:
        """Seconds of matrix products and of the steps around them, and what they rest on."""
        flops = work.of(stage)
        if has_gpu():
            rate = self.machine.rates.gpu_tflops
            seconds = flops / (rate * 1e12) / self.machine.training.ranks
            return seconds, f"{rate:g} TFLOP/s (rates.gpu_tflops)"
        recipe = work.run.finetune if stage == "finetune" else work.run.pretrain
        precision = "fp32" if stage == "evaluate" else recipe.precision
        if precision not in self._cpu:
            gain = bf16_gain() if precision == "bf16" else 1.0
            self._cpu[precision] = matrix_rate() * gain
        rate = self._cpu[precision]
        steps = sum(steps_to_do(work.run)) if stage == "pretrain" else 0
        seconds = flops / (CPU_SHARE * rate) + CPU_STEP_SECONDS * steps
        return seconds, f"no GPU; {rate / 1e9:,.0f} GFLOP/s measured on this machine"


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
            found += [
                (name, stage, work.of(stage), made.seconds)
                for stage, made in record.stages.items()
                if made.seconds is not None
            ]
    return found


class Work:
    """How much each stage of a run has to do: bytes of text, or FLOPs."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.encoder = run.encoder
        if run.finetune.encoder:  # whose shape counts, where it can be read
            with suppress(OSError, ValueError, LookupError, ClozeError):
                table = json.loads(read_model_config(located(run.finetune.encoder)))
                sizes = {name: table[name] for name in SIZE_NAMES}
                family = "modern" if table.get("model_type") == "modernbert" else "bert"
                shape = {"preset": None, "family": family, **sizes}
                self.encoder = EncoderConfig.model_validate(shape)
        self.text_bytes, self.unparsed_bytes = 0.0, 0.0
        parsed = parsed_distributions()
        for source in run.corpus.sources if run.corpus else ():
            python = sum(_source_bytes(package) for package in source.packages)
            self.text_bytes += TEXT_PER_SOURCE_BYTE * python
            # docstrings that this node has parsed before are kept
            self.unparsed_bytes += python if parsed < len(source.packages) else 0
            if source.path and is_local(source.path):
                path = Path(located(source.path))
                files = [path] if path.is_file() else path.rglob("*")
                self.text_bytes += sum(file.stat().st_size for file in files if file.is_file())

    def of(self, stage: str) -> float:
        """The work of `stage`; 0 where it is not worth counting."""
        examples, labels = self.run.examples, self.run.labels
        labelled = (*labels.packages, *labels.test_packages) if labels else ()
        heldout = self.run.evaluate.examples if self.run.corpus else 0
        return {
            **dict.fromkeys(("dedup", "vocabulary", "tokens"), self.text_bytes),
            "examples": self.text_bytes * examples.copies * len(examples.max_seq_lengths),
            "labels": float(sum(map(_source_bytes, labelled))),
            "pretrain": self._pretraining_flops(),
            "finetune": self._finetuning_flops(),
            # forward only, by the encoder and by its random twin; tasks are only scored
            "evaluate": 2 / 3 * heldout * length_flops(self.run, self._longest()),
        }.get(stage, 0.0)

    def _longest(self) -> int:
        return max(self.run.examples.max_seq_lengths)

    def _pretraining_flops(self) -> float:
        recipe = self.run.pretrain
        steps = steps_to_do(self.run)
        trained = sum(
            count * length_flops(self.run, phase.max_seq_length)
            for phase, count in zip(recipe.phases, sequences_to_read(self.run), strict=True)
        )
        if recipe.optimizer.name == "muon":
            # five times three products a matrix, the smaller side squared
            encoder = self.encoder
            matrices = 25.0 * encoder.num_hidden_layers * encoder.hidden_size
            trained += sum(steps) * (matrices * encoder.layer_weights)
        looks = sum(steps) // recipe.evaluate_every if recipe.evaluate_every else 0
        looked_at = looks * recipe.evaluation_examples
        return trained + looked_at * length_flops(self.run, self._longest()) / 3

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
        elif self.run.pairs and not task.train:
            examples, tokens = self.run.pairs.train_pairs, 2 * tokens
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


def parsed_distributions() -> int:
    """How many packages this node has parsed for their docstrings: it keeps what it finds."""
    return len(filesystem.list_names(str(cache_directory("docstrings"))))


def has_gpu() -> bool:
    """Whether this machine has an NVIDIA GPU."""
    return Path("/proc/driver/nvidia/version").exists()


def matrix_rate() -> float:
    """FLOPs a second of fp32 matrix products on this machine's processors, the best seen now.

    In processor time, as if nothing else ran: in wall-clock time, programs running now would make
    tomorrow's run look ten times as long. With one thread, since several would spin while they wait
    for each other on a busy machine.
    """
    matrix = np.ones((MATRIX, MATRIX), np.float32)
    best, until = math.inf, time.perf_counter() + MEASURING_SECONDS
    with threadpool_limits(1, user_api="blas"):
        while best == math.inf or time.perf_counter() < until:
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
