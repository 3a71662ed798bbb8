"""Pre-training on one CUDA GPU: the product against Hugging Face.

    python benchmarks/training/gpu_training.py [--minutes 20] [--only large] [--out FILE]
    python benchmarks/training/gpu_training.py --self-test          the same logic, tiny, on a CPU

In:  nothing: the examples are drawn from a seed, with the lengths of real text (and once all full).
Out: benchmarks/results/gpu_training.json, written after every case, and a table on standard output.

Ours is the product itself, its Engine, training step and `prefetch`: compiled layers,
FlashAttention with dropout 0.1, fp32 masters; then in FP8, with CUDA graphs, and eager. Theirs is
BertForPreTraining in bf16 autocast with SDPA and fused AdamW, its batches on the device before the
clock starts: padded, compiled, length-grouped, and without padding (flash-attn, if installed).
For the modern family (`modern-…`) it is ModernBertForMaskedLM on full sequences of 1,024 or 8,192
tokens, 30 % of them masked, without dropout on either side; ours with AdamW and with Muon.
A step is one update on the same sequences for every side, in micro-batches of the size that is best
for that side: it is doubled until throughput stops improving or memory runs out.

Every case runs in a process of its own with a time limit, so a crash, a hang or running out of
memory costs one figure. The most important cases run first; those that the time budget does not
cover are listed as not run.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib import metadata
from itertools import cycle
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import PRECISION, ROOT, Arguments, Figures, markdown, write_result
from benchmarks.training.product_steps import Way, trainer, training_steps
from benchmarks.training.transformers_steps import (
    Inputs,
    hugging_face_model,
    micro_batches,
    update_of,
)
from benchmarks.training.workload import DISTINCT, Workload, encoder_config
from cloze.model.config import TrainingMachine
from cloze.model.encoder.operations.products import matrix_rate
from cloze.model.encoder.precision import require_fp8
from cloze.model.training.cuda_graphs import MOST_TOKENS
from cloze.model.training.start import training_environment

GOALS = {
    "large 512 ours": 885, "large 512 ours_fp8": 1023, "large 128 ours": 2500,
    "base 128 ours": 6470, "base 512 ours": 2480,
    "modern-17M 1024-full ours": 962, "modern-base 1024-full ours": 297,
    "modern-large 1024-full ours": 143,
}  # fmt: skip
"""Sequences per second on an H200. 1,023 is MLPerf's, on Wikipedia's sequences, half of
which is padding (Krell et al. 2021, arXiv 2107.02027); hence the table's mean lengths. For the
modern family: the throughput on an H100 that Ettin (Weller et al. 2025) and ModernBERT-base report,
985,000, 304,000 and 146,000 tokens per second."""

DATA_SHEET = {
    "H200": (989, 1979), "H100 PCIe": (756, 1513), "H100": (989, 1979), "B200": (2250, 4500),
    "A100": (312, None), "L40S": (362, 733),
}  # fmt: skip
"""Dense TFLOP/s of bf16 and FP8 products in NVIDIA's data sheets, by part of the device's name."""

OURS = {
    "ours": Way(PRECISION, compiled=True),
    "ours_fp8": Way("fp8", compiled=True),
    "ours_muon": Way(PRECISION, "muon", compiled=True),
    "ours_graphs": Way(PRECISION, compiled=True, graphs=True),
    "ours_eager": Way(PRECISION),
}
GAIN = 1.02
"""The search continues while a larger micro-batch is faster by at least this factor."""


@dataclass(frozen=True)
class Case:
    """One figure."""

    size: str
    shape: str
    """The maximum length, with `-full` appended if all sequences have it."""
    side: str

    def __str__(self) -> str:
        return f"{self.size} {self.shape} {self.side}"

    def workload(self, scale: "Scale") -> Workload:
        """Its batches."""
        longest = int(self.shape.removesuffix("-full"))
        return Workload(self.size, longest, scale.sequences[longest], self.shape.endswith("-full"))


def _cases(size: str, shape: str, sides: Sequence[str]) -> list[Case]:
    return [Case(size, shape, side) for side in sides]


@dataclass(frozen=True)
class Scale:
    """Sizes and limits, for a GPU or for the self-test."""

    device: str
    budgets: tuple[int, ...]
    """Micro-batch sizes to try, in tokens: real ones for ours, including padding for theirs."""
    sequences: dict[int, int]
    """Sequences per step, by maximum length."""
    seconds: float
    """How long the best micro-batch is timed; each candidate is timed for a third of it."""
    limit: float
    """Time limit of one case's process, in seconds."""
    cases: tuple[Case, ...]


FIRST = ("ours", "huggingface", "compiled", "ours_fp8")
MODERN = ("ours", "huggingface", "compiled", "ours_muon")
REST = ("grouped", "padding_free", "ours_graphs", "ours_eager")
GPU = Scale(
    "cuda",
    budgets=(8192, 16384, 32768, 65536, 131072),
    sequences={128: 1024, 512: 256, 1024: 128, 8192: 16},
    seconds=6.0,
    limit=240.0,
    cases=(
        *_cases("large", "512", FIRST),
        *_cases("large", "512-full", ("ours", "ours_fp8")),
        *_cases("base", "128", FIRST),
        *_cases("large", "512", REST),
        *_cases("base", "512", FIRST),
        *_cases("large", "128", FIRST),
        *_cases("17M", "128", ("ours", "ours_graphs", "huggingface", "compiled")),
        *_cases("68M", "128", ("ours", "ours_graphs", "huggingface", "compiled")),
        *_cases("modern-base", "1024-full", MODERN),
        *_cases("modern-17M", "1024-full", (*MODERN, "ours_graphs")),
        *_cases("modern-68M", "1024-full", MODERN),
        *_cases("modern-base", "8192-full", ("ours", "huggingface")),
        *_cases("modern-large", "1024-full", ("ours", "huggingface")),
        *_cases("base", "128", (*REST, "ours_muon")),
    ),
)
SELF_TEST = Scale(
    "cpu",
    budgets=(512, 1024),
    sequences={128: 8},
    seconds=0.2,
    limit=240.0,
    cases=(
        *_cases("tiny", "128", ("ours_eager", "huggingface", "padding_free")),
        *_cases("tiny", "128-full", ("ours_fp8",)),
        *_cases("modern-tiny", "128-full", ("ours_muon", "huggingface")),
    ),
)


Outcome = Figures
"""One case's figures, or in `not_run` why there are none. `mean_length` is in tokens; `tried` has
the examples per second by micro-batch size in tokens, or the error."""

Record = Figures
"""The result file: the results by case, versions, and the TFLOP/s of bf16 products measured with
large square ones and, also for FP8, in the data sheet."""

Steps = Callable[[int], Generator[object]]
"""From a micro-batch size in tokens to a generator that runs one training step per iteration."""


def our_steps(side: str, work: Workload, device: str) -> Steps:
    """The product; layers are compiled once for all micro-batch sizes."""
    way = OURS[side]
    if way.precision == "fp8" and device == "cuda":
        require_fp8(torch.device(device))
    trained = trainer(work, device=device, way=way)
    return lambda budget: training_steps(trained, work, token_budget=budget)


def hugging_face_steps(side: str, work: Workload, device: str) -> Steps:
    """Hugging Face's model, on batches that are on the device already."""
    packed = side == "padding_free"
    model = hugging_face_model(encoder_config(work.size), packed=packed).to(device).train()

    def on_device(inputs: Inputs) -> Inputs:
        return {k: v.to(device) if isinstance(v, torch.Tensor) else v for k, v in inputs.items()}

    def steps(budget: int) -> Generator[object]:
        torch.compiler.reset()  # otherwise a second size would be compiled with dynamic shapes
        compiled = side == "compiled"
        update = update_of(model, device=device, bf16=PRECISION == "bf16", compiled=compiled)
        batches = [
            [on_device(inputs) for inputs in micro_batches(side, work, batch, budget)]
            for batch in work.batches
        ]
        for parts in cycle(batches):
            yield float(update(parts))  # waits for the device, as logging the loss does

    return steps


def measured(case: Case, scale: Scale, budgets: Sequence[int]) -> Outcome:
    """Find the best micro-batch size among `budgets`, then time it."""
    work = case.workload(scale)
    if case.side == "ours_graphs":  # larger ones run without graphs, as in `ours`
        budgets = [budget for budget in budgets if budget < MOST_TOKENS]
    started = time.perf_counter()
    make = our_steps if case.side in OURS else hugging_face_steps
    steps = make(case.side, work, scale.device)
    tried: dict[str, float | str] = {}
    best, rate = 0, 0.0
    for budget in budgets:
        try:
            seconds, _ = _timed(steps(budget), scale.seconds / 3)
        except RuntimeError as error:  # including torch.OutOfMemoryError
            # The smallest size must fit.
            if not best:
                raise
            tried[str(budget)] = _last_line(str(error))
            break
        found = work.sequences / seconds
        tried[str(budget)] = round(found, 1)
        if found < rate * GAIN:
            break
        best, rate = budget, found
    warm = time.perf_counter() - started
    # The search may have used more than the best size needs.
    if scale.device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds, count = _timed(steps(best), scale.seconds)
    flops = statistics.fmean(work.flops(number) for number in range(DISTINCT))
    outcome: Outcome = {
        "examples_per_second": round(work.sequences / seconds, 1),
        "mean_length": round(work.mean_length, 1),
        "tflops": round(flops / seconds / 1e12, 3),
        "micro_batch_tokens": best,
        "tried": tried,
        "steps": count,
        "warm_up_seconds": round(warm, 1),
    }
    if scale.device == "cuda":
        outcome["memory_gb"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    return outcome


def _timed(steps: Generator[object], seconds: float) -> tuple[float, int]:
    """Median seconds per step after `DISTINCT` warm-up steps, and the number of steps timed."""
    times: list[float] = []
    with closing(steps):  # ends the thread of `prefetch` too
        for _ in range(DISTINCT):
            next(steps)
        until = time.perf_counter() + seconds
        # Every distinct batch at least once.
        while time.perf_counter() < until or len(times) < DISTINCT:
            before = time.perf_counter()
            next(steps)
            times.append(time.perf_counter() - before)
    return statistics.median(times), len(times)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return (lines[-1] if lines else "no message")[:300]


def in_a_process(case: str, scale: Scale, budgets: Sequence[int], *, limit: float) -> Outcome:
    """Run `--case` in a process of its own; a failure or a timeout becomes its outcome."""
    command = [sys.executable, __file__, "--case", case, "--budgets", *map(str, budgets)]
    command += ["--self-test"] if scale is SELF_TEST else []
    env = {**os.environ, **training_environment(TrainingMachine())}
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=limit, check=False
        )
    except subprocess.TimeoutExpired:
        return {"not_run": f"not done after {limit:.0f} s"}
    if done.returncode:
        return {"not_run": f"exit code {done.returncode}: {_last_line(done.stderr)}"}
    return dict(json.loads(done.stdout.splitlines()[-1]))


def run(scale: Scale, *, minutes: float, out: str, only: str = "") -> Record:
    """Run all cases, writing the result after each."""
    started = time.perf_counter()
    name = torch.cuda.get_device_name() if scale.device == "cuda" else platform.processor()
    # The first name that fits, so `H100 PCIe` stands before `H100`.
    sheet = next((rates for part, rates in DATA_SHEET.items() if part in name), (None, None))
    rate = in_a_process("matrix", scale, (), limit=scale.limit)
    versions = {"device": name, "python": platform.python_version(), "torch": torch.__version__}
    for package in ("transformers", "deepspeed", "triton", "flash-attn"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "absent"
    record: Record = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": {**versions, "cuda": str(torch.version.cuda)},
        "matrix_tflops": rate.get("tflops", 0.0),
        "data_sheet_tflops": dict(zip(("bf16", "fp8"), sheet, strict=True)),
        "results": {},
    }
    results = record["results"]
    for case in scale.cases:
        if only and only not in str(case):
            continue
        print(case, file=sys.stderr, flush=True)
        left = minutes * 60 - (time.perf_counter() - started)
        limit = min(scale.limit, left)
        if left < 30:
            results[str(case)] = {"not_run": f"{left:.0f} s were left"}
        else:
            budgets = scale.budgets
            eager = results.get(f"{case.size} {case.shape} huggingface", {})
            if case.side == "compiled" and "micro_batch_tokens" in eager:
                budgets = (eager["micro_batch_tokens"],)  # each size takes a minute to compile
            results[str(case)] = in_a_process(str(case), scale, budgets, limit=limit)
        write_result(out, record)
    return record


def table(record: Record) -> str:
    """The result as Markdown."""
    rate, sheet = record["matrix_tflops"], record["data_sheet_tflops"]["bf16"]
    header = ["model", "length", "side", "sequences/s", "mean length", "micro-batch", "TFLOP/s"]
    header += ["of measured", "of data sheet", "GB", "goal on H200"]
    rows: list[list[object]] = []
    for name, found in record["results"].items():
        cells: list[object] = [*name.split()]
        if "not_run" in found:
            rows.append([*cells, f"not run: {found['not_run']}", *[""] * 7])
            continue
        tflops = found["tflops"]
        cells += [f"{found['examples_per_second']:,.0f}", f"{found['mean_length']:.0f}"]
        cells += [f"{found['micro_batch_tokens']:,}", f"{tflops:.1f}"]
        cells += [f"{tflops / of:.0%}" if of else "" for of in (rate, sheet)]
        rows.append([*cells, found.get("memory_gb", ""), GOALS.get(name, "")])
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    rates = f"bf16 matrix rate: measured {rate} TFLOP/s, data sheet {sheet or 'unknown'}"
    return f"{versions}\n{rates}\n\n{markdown(header, rows)}"


def main() -> None:
    """Read the arguments, measure, write."""
    parser = Arguments(__doc__, output="")
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--self-test", action="store_true", help="the same logic, tiny, on a CPU")
    parser.add_argument("--case", default="", help=argparse.SUPPRESS)
    parser.add_argument("--budgets", type=int, nargs="*", default=(), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    scale = SELF_TEST if arguments.self_test else GPU
    if scale.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no CUDA device here; --self-test runs the same logic on a CPU")
    # TF32 in products that stay in fp32.
    torch.set_float32_matmul_precision("high")
    if arguments.case == "matrix":
        device = torch.device(scale.device)
        rate = matrix_rate(device, precision=torch.bfloat16, seconds=scale.seconds / 3)
        print(json.dumps({"tflops": round(rate / 1e12, 3)}))
    elif arguments.case:
        case = Case(*arguments.case.split())
        print(json.dumps(measured(case, scale, arguments.budgets)))
    else:
        name = "gpu_self_test" if arguments.self_test else "gpu_training"
        folder = ROOT / ("runs" if arguments.self_test else "benchmarks/results")
        out = arguments.output or str(folder / f"{name}.json")
        found = run(scale, minutes=arguments.minutes, out=out, only=arguments.only)
        print(table(found))


if __name__ == "__main__":
    main()
