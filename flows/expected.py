"""Expected duration of a run's stages on this machine, from earlier runs or from rates.

In:  the configurations of a run and a machine, and a workspace with records of earlier runs.
Out: `ExpectedTime` for each stage: seconds, and the basis of the estimate.

If a run of this workspace has made the stage, its duration beyond the program's start-up is scaled
by the amount of work, in bytes of text or FLOPs. Otherwise, or if those runs did little more than
start up, the estimate uses rates: those of preparation (flows/forecast.py) and, on a CPU, this
machine's speed of matrix products, measured now. With the constants below the demo's training,
fine-tuning and evaluation take what is estimated within a factor of 1.5 on two otherwise idle cores
with AMX, with AVX-512 BF16 and with AVX2.
"""

import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache, cached_property
from importlib import metadata
from itertools import product
from pathlib import Path

from pydantic import ValidationError

from cloze.artifacts import filesystem
from cloze.artifacts.digests import cache_directory
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.filesystem import find_files, is_local, located
from cloze.artifacts.progress import clock, say
from cloze.artifacts.store import processor
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.external_inputs import read_model_config
from cloze.flows.forecast import (
    EXAMPLES_RATE,
    TOKENS_RATE,
    WORD_PIECES_PER_BYTE,
    expected_yield,
    length_flops,
    phases_to_do,
)
from cloze.flows.workspace import Workspace, find_record, list_runs
from cloze.model.config import (
    MOST_COUNTED_TOKENS,
    SIZE_NAMES,
    EncoderConfig,
    TaskConfig,
    contexts_of,
)
from cloze.pipeline.config.settings import SPANS_OF_A_PASSAGE, SPANS_TOGETHER, SourceConfig

START_SECONDS = {
    **{"boilerplate": 1.0, "scores": 1.5, "dedup": 1.2, "vocabulary": 1.2, "tokens": 1.0},
    "examples": 0.7,
    **{"labels": 0.9, "pretrain": 7.2, "finetune": 6.5, "evaluate": 3.9, "report": 1.85},
}
"""Start-up of each stage's program: imports, workers, compilation. Measured with
configs/smoke.toml, whose stages do little else."""

LEARNING_RATE = 9e6
"""Bytes per second of the sample from which the vocabulary is trained."""

PARSING_RATE = 8.5e6
"""Bytes of Python that one core parses per second."""

COUNTING_RATE = 0.8e6
"""Training tokens that the n-gram baseline counts per second."""

NEIGHBOURS_RATE, FLOPS_PER_TOKEN = 3e6, 13e3
"""Tokens whose neighbours one core counts per second for word vectors; and FLOPs that it needs for
their singular vectors in the time of one token."""

SINGULAR_PRODUCTS = 17
"""Products of the matrix of neighbours with as many vectors as are wanted: two in each of seven
iterations, and three more."""

TEXT_PER_SOURCE_BYTE = 0.16
"""Bytes of docstrings per byte of an installed package's Python files."""

CPU_STEP_SECONDS = 0.007
"""Overhead of each optimizer step on CPUs, for any size of encoder."""

PRODUCT_SHARE = 0.75
"""Speed of an encoder's matrix products as a share of that of large ones."""

ELEMENT_SECONDS = 2.3e-10
"""Seconds that one core needs for everything but products, per FLOP of an encoder one unit wide and
per byte of a number: the work grows with the width, the FLOPs with its square."""

SLOWEST_RATE = 2e10
"""FLOP/s that any machine makes on which a run takes minutes rather than hours."""

BUSY = 1.5
"""Runnable processes per core above which others than the run's own slowed it down."""

ASSUMED_RATE = 2e11
"""FLOP/s where none can be measured, for example because torch is not installed."""

TAGGED_TOKENS, PAIR_TOKENS = 19.3, 29.3
"""Mean tokens of the sentences and pairs that the stage `labels` makes of docstrings."""

SPECIAL_TOKENS = 3
"""Special tokens of an example: [CLS], and a [SEP] after each of two texts."""

TOKENS_PER_WORD, SPAN_TOKENS = 1.35, 12.0
"""Of English text; and tokens of the spans of a few words that a student also learns."""

LATE = 1.25
"""How many times its expected duration a stage may take before anything is said."""

WORTH_CORRECTING = 20.0
"""Seconds that a stage was to take before its lateness says something of the others.

One that was to be short starts up and reads files, mostly."""

LABELLED_EXAMPLES = 1000
"""Assumed for a task whose data are not on this machine."""


@dataclass(frozen=True)
class ExpectedTime:
    """The expected duration of one stage."""

    stage: str
    seconds: float
    basis: str
    """The basis of the estimate, for example `as in run demo`."""


class Announced:
    """What was announced of a run's stages, corrected while it goes on."""

    def __init__(self, expected: Iterable[ExpectedTime]) -> None:
        self._left = {each.stage: each.seconds for each in expected}

    @contextmanager
    def watching(self, stage: str) -> Iterator[None]:
        """Say so, with the reason, as soon as `stage` takes longer than was announced."""
        seconds = self._left.get(stage, 0.0)

        def late() -> None:
            say(
                f"{stage}: longer than the {clock(seconds)} expected: {slow_because()}; its own "
                "lines say what remains"
            )

        timer = threading.Timer(LATE * seconds, late)
        timer.daemon = True  # keeps no process alive that a signal ends
        if seconds >= WORTH_CORRECTING:
            timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def correction(self, stage: str, seconds: float) -> str:
        """What the stages after `stage` take if they are late as it was; empty if it was not."""
        expected = self._left.pop(stage, 0.0)
        left = sum(self._left.values())
        if expected < WORTH_CORRECTING or seconds <= LATE * expected or not left:
            return ""
        pace = seconds / expected
        return (
            f"took {clock(seconds)}, not {clock(expected)}: {slow_because()}; at this pace the "
            f"rest takes {clock(pace * left)}, not {clock(left)}"
        )


def slow_because() -> str:
    """The reason why stages take longer than expected."""
    load = load_per_core()
    if load > BUSY:
        return f"other programs take their share of this machine ({load:.1f} processes per core)"
    return "it does not sustain the speed that was measured"


def expected_times(
    run: RunConfig,
    machine: MachineConfig,
    stages: Iterable[str],
    *,
    space: Workspace,
    rate: float | None = None,
) -> list[ExpectedTime]:
    """The expected duration of each of `stages` on this machine.

    `rate`: FLOP/s to assume of its processor instead of measuring, which takes seconds.
    """
    run = machine.decided(run)
    work = Work(run)
    earlier = []  # (run, stage, work, seconds, load) of every stage with a recorded duration
    for run_name in list_runs(space):
        # another run's record may be damaged, or its configuration of another version
        with suppress(UsageError, ValidationError):
            if record := find_record(space, run_name):
                done_run = RunConfig.model_validate(record.config)
                done_work = Work(done_run)
                earlier += [
                    (run_name, stage, done_work.of(stage), made.seconds, made.load or 0.0)
                    for stage, made in record.stages.items()
                    # One whose time was limited has made fewer steps than its configuration says.
                    if made.seconds is not None
                    and not limit_of(stage, done_run)
                    # A FLOP in bf16 takes a third of the time, and on another machine any other.
                    and done_run.precision(stage) == run.precision(stage)
                    and (machine.is_elsewhere(stage) or made.processor in ("", processor()))
                ]
    found = []
    for stage in stages:
        limit = limit_of(stage, run)
        start, wanted = START_SECONDS.get(stage, 2.0), work.of(stage)
        # The nearest amount of work, as a ratio, comes first.
        known = [
            (abs(math.log((wanted + 1) / (done + 1))), name, done, seconds, load)
            for name, made, done, seconds, load in earlier
            # a run that did little more than start up cannot be scaled
            if made == stage and (done == wanted or seconds > 2 * start)
        ]
        if known:
            _, name, done, seconds, load = min(known)
            start = min(start, seconds)
            # start-up does not grow with the work
            scaled = start + (seconds - start) * (wanted / done if done else 1.0)
            basis = f"as in run {name}" if wanted == done else f"scaled from run {name}"
            if load > BUSY:
                basis += f", slowed down by other programs ({load:.1f} processes per core)"
            found.append(ExpectedTime(stage, scaled, basis))
        else:
            seconds, basis = seconds_by_rates(stage, work, machine, rate=rate)
            found.append(ExpectedTime(stage, start + seconds, basis))
        if limit and found[-1].seconds > start + limit:
            found[-1] = ExpectedTime(stage, start + limit, f"limited by {stage}.minutes")
    return found


def limit_of(stage: str, run: RunConfig) -> float:
    """The seconds that training may take in `stage`; 0 without a limit."""
    minutes = {"pretrain": run.pretrain.minutes, "finetune": run.finetune.minutes}
    return 60 * minutes.get(stage, 0.0)


@dataclass(frozen=True)
class Timed:
    """Training that was timed just now: its run, and seconds without the start of its program."""

    run: RunConfig
    seconds: float


def training_seconds(
    run: RunConfig,
    machine: MachineConfig,
    stage: str,
    *,
    space: Workspace,
    timed: Timed | None = None,
) -> float:
    """Seconds of training in `stage`, scaled from what was `timed` or else as expected."""
    work = Work(run)
    if timed:
        return timed.seconds * work.of(stage) / Work(timed.run).of(stage)
    (expected,) = expected_times(run, machine, [stage], space=space)
    start = START_SECONDS[stage]
    # Of a run that did little more than start up, what remains is the error of its start-up.
    if expected.seconds > 2 * start:
        return expected.seconds - start
    seconds, _ = seconds_by_rates(stage, work, machine)
    return seconds


def seconds_by_rates(
    stage: str, work: "Work", machine: MachineConfig, *, rate: float | None = None
) -> tuple[float, str]:
    """Seconds of `stage` beyond the start-up of its program, and their basis.

    `rate`: FLOP/s to assume of a CPU instead of measuring.
    """
    amount, workers = work.of(stage), machine.pipeline.workers
    if not amount:
        return 0.0, "start-up of its program"
    # by a single process each
    if alone := {"labels": PARSING_RATE, "word_vectors": NEIGHBOURS_RATE}.get(stage):
        return amount / alone, "measured rates"
    if stage == "examples":
        return amount / EXAMPLES_RATE / workers, "measured rates"
    if stage in ("vocabulary", "tokens", "dedup", "boilerplate", "scores"):
        seconds = amount / TOKENS_RATE / workers
        if stage == "vocabulary":
            seconds += min(amount, work.run.vocabulary.sample_bytes) / LEARNING_RATE
            seconds += work.unparsed_bytes / PARSING_RATE / workers
        return seconds, "measured rates"
    counting = 0.0
    # The n-gram baseline is counted on the CPU, wherever the encoder runs.
    if stage == "evaluate":
        tokens = work.text_bytes * WORD_PIECES_PER_BYTE
        counting = min(tokens, work.run.evaluate.count_model_tokens) / COUNTING_RATE
    if machine.device(stage) == "cuda":
        tflops = machine.rates.gpu_tflops
        seconds = amount / (tflops * 1e12) / (machine.training.ranks * machine.nodes(stage))
        return counting + seconds, f"{tflops:g} TFLOP/s (rates.gpu_tflops)"
    precision = work.run.precision(stage)
    rates = matrix_rates() if rate is None else {}
    rate = rate or rates.get(precision, rates.get("fp32", ASSUMED_RATE))
    # Work on single elements goes by their bytes; of a wide encoder's FLOPs it is a smaller part.
    elements = ELEMENT_SECONDS * (4 if precision == "fp32" else 2) / work.encoder.hidden_size
    # Seconds per FLOP: for products, and for everything else, which all cores share.
    each = 1 / (PRODUCT_SHARE * rate) + elements / cores()
    how = "measured on this machine" if rates else "assumed, since torch could not be run"
    seconds = counting + amount * each + CPU_STEP_SECONDS * work.steps(stage)
    return seconds, f"no GPU; {rate / 1e9:,.0f} GFLOP/s {how}"


class Work:
    """The amount of work in each stage of a run: bytes of text, or FLOPs."""

    def __init__(self, run: RunConfig) -> None:
        self.run = run
        self.encoder = run.encoder
        given = run.finetune.encoder or (run.distill.teacher if run.distill else "")
        if given:  # use its shape if it can be read
            with suppress(OSError, ValueError, LookupError, RecursionError, ClozeError):
                table = json.loads(read_model_config(given))
                sizes = {name: table[name] for name in SIZE_NAMES}
                family = "modern" if table.get("model_type") == "modernbert" else "bert"
                shape = {"preset": None, "family": family, **sizes}
                self.encoder = EncoderConfig.model_validate(shape)
        self.text_bytes, self.unparsed_bytes = 0.0, 0.0
        self.weighted_bytes = 0.0
        """Bytes of text times the weight of their source."""
        parsed = parsed_distributions()
        for source in run.corpus.sources if run.corpus else ():
            python = sum(_source_bytes(package) for package in source.packages)
            size = docstring_bytes(source.packages)
            # docstrings parsed on this machine before are cached
            self.unparsed_bytes += python if parsed < len(source.packages) else 0
            size += _local_bytes(source)
            self.text_bytes += size
            self.weighted_bytes += size * source.weight

    def of(self, stage: str) -> float:
        """The work of `stage`; 0 if it is negligible."""
        return self._amounts.get(stage, 0.0)

    @cached_property
    def _amounts(self) -> dict[str, float]:
        """The work by stage."""
        examples, labels = self.run.examples, self.run.labels
        labelled = (*labels.packages, *labels.test_packages) if labels else ()
        heldout = self.run.evaluate.examples if self.run.corpus else 0
        flops, _ = self._fine_tuning
        return {
            **dict.fromkeys(
                ("boilerplate", "scores", "dedup", "vocabulary", "tokens"), self.text_bytes
            ),
            "examples": self.weighted_bytes * examples.copies * len(examples.max_seq_lengths),
            "labels": float(sum(map(_source_bytes, labelled))),
            "word_vectors": self._vector_tokens(),
            "pretrain": self._pretraining_flops(),
            "negatives": self._mining_flops(),
            "finetune": flops,
            **self._distillation_flops(),
            # forward passes of the encoder and of a random one; tasks are only scored
            "evaluate": 2 / 3 * heldout * self._longest_flops,
        }

    def steps(self, stage: str) -> float:
        """Optimizer steps of `stage`."""
        if stage == "finetune":
            _, steps = self._fine_tuning
            return steps
        if stage == "distill" and self.run.distill:
            return self._lessons[0] * self.run.distill.epochs / self.run.distill.batch_size
        return sum(steps for steps, _ in self._phases) if stage == "pretrain" else 0

    @cached_property
    def _phases(self) -> list[tuple[int, int]]:
        """Steps and sequences of each phase of pre-training."""
        return phases_to_do(self.run)

    @cached_property
    def _longest_flops(self) -> float:
        """FLOPs of one of the longest pre-training examples."""
        return length_flops(self.run, max(self.run.examples.max_seq_lengths))

    def _pretraining_flops(self) -> float:
        recipe, steps = self.run.pretrain, self.steps("pretrain")
        trained = sum(
            sequences * length_flops(self.run, phase.max_seq_length)
            for phase, (_, sequences) in zip(recipe.phases, self._phases, strict=True)
        )
        if recipe.optimizer.name == "muon":
            # five iterations of three products per matrix; in fp32, halves of symmetric ones
            encoder = self.encoder
            each = 12.0 if recipe.precision == "fp32" else 25.0
            matrices = each * encoder.num_hidden_layers * encoder.hidden_size
            trained += steps * (matrices * encoder.layer_weights)
        evaluations = steps // recipe.evaluate_every if recipe.evaluate_every else 0
        evaluated = evaluations * recipe.evaluation_examples
        return trained + evaluated * self._longest_flops / 3

    def _vector_tokens(self) -> float:
        """Tokens to count for word vectors, with as many as take the time of the decomposition."""
        if not self.run.word_vectors:
            return 0.0
        size, width = self.run.vocabulary.size, self.encoder.hidden_size
        products = 2.0 * SINGULAR_PRODUCTS * size * contexts_of(size) * width
        counted = min(self.text_bytes * WORD_PIECES_PER_BYTE, MOST_COUNTED_TOKENS)
        return counted + products / FLOPS_PER_TOKEN

    def _mining_flops(self) -> float:
        """Forward passes over the queries and passages whose negatives are mined."""
        flops = 0.0
        for task in self.run.finetune.tasks if self.run.negatives else ():
            if task.family.ranks:
                examples, tokens = self._labelled(task)
                flops += examples * self._flops_of(tokens) / 3
        return flops

    @cached_property
    def _lessons(self) -> tuple[float, float]:
        """Number of texts to distil on, and tokens in one."""
        config, pairs = self.run.distill, self.run.pairs
        if config and config.task:
            rows, tokens = _lines_and_tokens(config.texts)
            return float(rows), min(tokens + SPECIAL_TOKENS, config.max_seq_length)
        if not (config and pairs):
            return 0.0, 0.0
        passage = min(TOKENS_PER_WORD * pairs.words + SPECIAL_TOKENS, config.max_seq_length)
        # each passage with one of its spans
        return 4.0 * self._train_pairs, (passage + SPAN_TOKENS) / 2

    @cached_property
    def _train_pairs(self) -> float:
        """Pairs of passages to train on; of little text fewer than are wanted."""
        pairs = self.run.pairs
        assert pairs
        text = sum(map(_local_bytes, pairs.sources))
        if pairs.kind not in ("neighbours", "spans") or not text:
            return pairs.train_pairs
        passages = WORD_PIECES_PER_BYTE * text / (TOKENS_PER_WORD * pairs.words)
        each = (0.5 - pairs.heldout_share) * (SPANS_OF_A_PASSAGE if pairs.kind == "spans" else 1.0)
        return min(pairs.train_pairs, each * passages)

    def _distillation_flops(self) -> dict[str, float]:
        """A forward pass of the teacher, and training of the student, on all lessons."""
        config, (texts, tokens) = self.run.distill, self._lessons
        if not config:
            return {}
        of_teacher = texts * self._flops_of(tokens)
        layers = config.layers / self.encoder.num_hidden_layers
        width = (config.width or self.encoder.hidden_size) / self.encoder.hidden_size
        trained = config.epochs * layers * width**2 * of_teacher
        return {"lessons": of_teacher / 3, "distill": trained}

    def _flops_of(self, tokens: float) -> float:
        """FLOPs of training on a sequence of so many tokens."""
        return self.encoder.training_flops(
            self.run.vocabulary.size, tokens=tokens, squared=tokens**2, masked=0.0
        )

    @cached_property
    def _fine_tuning(self) -> tuple[float, float]:
        """FLOPs and optimizer steps of all trials."""
        config, flops, steps = self.run.finetune, 0.0, 0.0
        for task in config.tasks:
            examples, tokens = self._labelled(task)
            one = self._flops_of(tokens)
            if task.family.reranks:  # one sequence for each candidate
                one *= 1 + task.reranking.negatives
            recipes = [(task.epochs, task.batch_size)] * len(config.seeds)
            if grid := config.grid:
                # Every combination of the grid is a trial, with its own epochs and batches, of
                # which the best is the first seed's as well.
                found = [*product(grid.epochs, grid.batch_sizes)] * len(grid.learning_rates)
                recipes = [*recipes[1:], *found]
            recipes *= len(config.initialisations)
            flops += examples * one * sum(epochs for epochs, _ in recipes)
            flops += len(recipes) * self._ranked_flops(task)
            steps += examples * sum(epochs / batch_size for epochs, batch_size in recipes)
        return flops, steps

    def _ranked_flops(self, task: TaskConfig) -> float:
        """Forward passes of a trial over a whole collection, once for each held-out file."""
        if not (task.family.ranks and task.family.compares_vectors):
            return 0.0
        passages, tokens = _lines_and_tokens(task.collection.passages)
        held_out = sum(map(bool, (task.dev, task.test, *task.more.values())))
        tokens = min(tokens + SPECIAL_TOKENS, task.max_seq_length)
        return held_out * passages * self._flops_of(tokens) / 3

    def _labelled(self, task: TaskConfig) -> tuple[int, float]:
        """Number of training examples of a task, and tokens per example.

        Counted in its file, with a blank line after each tagged sentence or one example per line;
        else as configured for the stage that makes them, or assumed.
        """
        tokens, examples = expected_yield(task.max_seq_length).mean_length, 0
        path = Path(located(task.train)) if task.train and is_local(task.train) else None
        if path and path.is_file():
            with open(path, "rb") as lines:
                blank = [not line.strip() for line in lines]
            examples = sum(blank) if task.family.parts and any(blank) else len(blank)
            text = WORD_PIECES_PER_BYTE * path.stat().st_size / max(examples, 1)
            if task.collection.passages:  # the rows hold ids
                files = (task.collection.passages, task.collection.queries)
                text = sum(_lines_and_tokens(file)[1] for file in files)
            tokens = min(text + SPECIAL_TOKENS, task.max_seq_length)
        elif self.run.labels and task.family.parts:
            examples = self.run.labels.tagging_train_sentences
            tokens = min(TAGGED_TOKENS, task.max_seq_length)
        elif self.run.pairs and not task.train:
            # a query and a passage, or one of many spans of a passage, which is read with one
            own = SPAN_TOKENS + 2 * tokens / SPANS_TOGETHER
            tokens = own if self.run.pairs.kind == "spans" else 2 * tokens
            examples = math.ceil(self._train_pairs)
        elif self.run.labels:
            examples = self.run.labels.pair_train_examples
            tokens = min(PAIR_TOKENS, task.max_seq_length)
        # A setting wins over what was counted, that over an assumption.
        return task.train_examples or examples or LABELLED_EXAMPLES, tokens


def _local_bytes(source: SourceConfig) -> float:
    """Bytes of a source's files, if they are on this machine; 0 else."""
    if source.path and is_local(source.path):
        # a missing folder is refused elsewhere, with a remedy
        with suppress(UsageError):
            return sum(file.size for file in find_files(source.path, source.exclude))
    return 0


def _lines_and_tokens(location: str) -> tuple[int, float]:
    """Lines of a local file, and tokens in one on average; (0, 0) of any other file."""
    path = Path(located(location)) if location and is_local(location) else None
    if not (path and path.is_file()):
        return 0, 0.0
    with open(path, "rb") as file:
        lines = sum(1 for _ in file)
    return lines, WORD_PIECES_PER_BYTE * path.stat().st_size / max(lines, 1)


def docstring_bytes(packages: Sequence[str]) -> float:
    """Estimated bytes of text in the docstrings of installed packages."""
    return TEXT_PER_SOURCE_BYTE * sum(map(_source_bytes, packages))


def _source_bytes(package: str) -> int:
    """Bytes of an installed package's Python files; 0 if it is not installed."""
    try:
        files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return 0
    return sum(file.size or 0 for file in files if file.suffix == ".py")


def parsed_distributions() -> int:
    """The number of packages whose docstrings are cached on this machine."""
    return len(filesystem.list_names(str(cache_directory("docstrings"))))


def load_per_core() -> float:
    """Runnable processes per core over the last minute; 0 where the system does not count them."""
    try:
        return os.getloadavg()[0] / cores()
    except OSError:
        return 0.0


def busy_now() -> str:
    """That other programs take their share of this machine at present; empty if they do not."""
    load = load_per_core()
    if load <= BUSY:
        return ""
    return (
        f"this machine is busy now ({load:.1f} processes per core); times are those of a run that "
        "has it to itself, unless they say otherwise"
    )


def cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def matrix_rates() -> dict[str, float]:
    """FLOP/s of matrix products on all cores of this machine, by precision.

    Empty if torch cannot be run; without bf16 if the machine has no products for it. Measured in
    processor time, so that programs running now do not inflate the estimate, on all cores at once
    and until their clocks have settled, in a process of its own, which also imports torch: three to
    four seconds.
    """
    program = (sys.executable, "-P", "-m", "cloze.model.encoder.operations.products")
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    measured = (float(line) for line in done.stdout.split())
    return dict(zip(("fp32", "bf16"), measured, strict=False))
