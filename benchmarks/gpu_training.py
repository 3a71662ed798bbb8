"""Pre-training on one CUDA GPU against Hugging Face, in at most eight minutes.

    python benchmarks/gpu_training.py [--minutes 8] [--out FILE]
    python benchmarks/gpu_training.py --self-test          the same logic, tiny, on a CPU

In:  nothing: the examples come from a seed, with the lengths of real text.
Out: benchmarks/results/gpu_training.json, and a table with versions on standard output.

Measures the bf16 matrix rate, then BERT-base and -large at 128 and 512: ours (packed, flash
attention with dropout 0.1, compiled layers, fp32 masters) and Hugging Face's (padded, SDPA, bf16
autocast, fused AdamW, eager and compiled). Whatever the time does not suffice for is listed as not
run. Needs torch, numpy, transformers and Cloze's own modules; no DeepSpeed, no compiler but triton.
"""

import argparse
import gc
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TypedDict

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.realistic import VOCABULARY, examples, padded
from model.config import EncoderConfig
from model.encoder.batch import Example, pack
from model.encoder.pretraining import PretrainingModel
from model.hugging_face.layout import hugging_face_config

ROOT = Path(__file__).resolve().parent.parent
GOALS = {("large", 128): 2080, ("large", 512): 725, ("base", 128): 6470, ("base", 512): 2480}
"""Examples per second on an H200."""
AIMS = {("large", 128): 2500, ("large", 512): 885, ("base", 128): 7900, ("base", 512): 3030}
DISTINCT = 4
"""Batches made beforehand; a loader's speed is another benchmark's claim."""


@dataclass(frozen=True)
class Scale:
    """How large everything is: a GPU's, or a self-test's."""

    device: str
    presets: tuple[str, ...]
    lengths: tuple[int, ...]
    matrix: int
    tokens: dict[str, int]
    """Tokens of our micro-batch, by preset; Hugging Face gets as many with its padding."""
    seconds: float
    """How long one configuration is timed."""
    compiled: bool


GPU = Scale("cuda", ("base", "large"), (128, 512), 8192, {"base": 65536, "large": 32768}, 8.0, True)
SELF_TEST = Scale("cpu", ("tiny",), (128,), 256, {"tiny": 1024}, 0.2, False)


@dataclass(frozen=True)
class Workload:
    """The same sequences for every side."""

    config: EncoderConfig
    batches: tuple[tuple[Example, ...], ...]
    longest: int

    def flops(self, batch: tuple[Example, ...]) -> float:
        """Of the matrix products on real tokens, forward and backward."""
        sizes = [len(example.input_ids) for example in batch]
        masked = sum(len(example.masked_lm_ids) for example in batch)
        width, layers = self.config.hidden_size, self.config.num_hidden_layers
        weights = layers * (4 * width**2 + 2 * width * self.config.intermediate_size)
        pairs = 12 * layers * width * sum(size * size for size in sizes)
        head = 6 * (width * VOCABULARY + width**2) * masked
        return 6.0 * weights * sum(sizes) + pairs + head


class Outcome(TypedDict, total=False):
    """What one configuration reaches, or why it was not run."""

    examples_per_second: float
    tflops: float
    steps: int
    warm_up_seconds: float
    memory_gb: float | None
    not_run: str


class Record(TypedDict):
    """Everything that is kept; the outcomes by `preset length side`."""

    date: str
    versions: dict[str, str]
    matrix_tflops: float
    results: dict[str, Outcome]


Step = Callable[[int], None]


def workload(preset: str, longest: int, scale: Scale) -> Workload:
    """Batches of as many sequences as fill the token budget."""
    config = EncoderConfig.model_validate({"preset": preset, "hidden_act": "gelu"})
    batches = []
    for seed in range(DISTINCT):
        chosen: list[Example] = []
        tokens = 0
        for example in examples(scale.tokens[preset] // 16, longest=longest, seed=seed):
            tokens += len(example.input_ids)
            if tokens > scale.tokens[preset]:
                break
            chosen.append(example)
        batches.append(tuple(chosen))
    return Workload(config, tuple(batches), longest)


def our_step(work: Workload, scale: Scale) -> Step:
    """bf16 weights over fp32 masters; one optimizer step per batch."""
    torch.manual_seed(0)
    model = PretrainingModel(work.config, VOCABULARY).to(scale.device)
    masters = [p.detach().clone().requires_grad_() for p in model.parameters()]
    model.bfloat16().train()
    weights = list(model.parameters())
    if scale.compiled:
        model.encoder.compile_layers()
    optimizer = adamw(masters)
    batches = [pack(batch).to(scale.device) for batch in work.batches]
    print(f"  attention: {model.encoder.attention_backend}", file=sys.stderr)

    def step(number: int) -> None:
        batch = batches[number % DISTINCT]
        sums = model(batch, number)
        loss = sums.masked_lm_loss / len(batch.masked_lm_ids)
        (loss + sums.next_sentence_loss / batch.sequences).backward()
        gradients = [torch.empty_like(master) for master in masters]
        torch._foreach_copy_(gradients, [weight.grad for weight in weights])
        for master, gradient in zip(masters, gradients, strict=True):
            master.grad = gradient
        torch.nn.utils.clip_grad_norm_(masters, 1.0)
        optimizer.step()
        torch._foreach_copy_(weights_data(weights), masters)
        for weight in weights:
            weight.grad = None

    return step


def weights_data(weights: list[torch.nn.Parameter]) -> list[torch.Tensor]:
    """The parameters without their gradient's history."""
    return [weight.detach() for weight in weights]


def hugging_face_step(work: Workload, scale: Scale, *, compiled: bool) -> Step:
    """Padded batches of the same sequences, in micro-batches of as many padded tokens as ours."""
    from transformers import BertConfig, BertForPreTraining

    torch.manual_seed(0)
    table = hugging_face_config(work.config, VOCABULARY)
    model: torch.nn.Module = BertForPreTraining(BertConfig(**table, attn_implementation="sdpa"))
    model.to(scale.device).train()
    forward = torch.compile(model) if compiled else model
    optimizer = adamw(list(model.parameters()))
    kept = [
        {
            name: tensor.to(scale.device)
            for name, tensor in padded(batch, longest=work.longest).items()
        }
        for batch in work.batches
    ]
    # One shape for all, or a compiled model would be compiled again for every batch.
    rows = min(len(batch) for batch in work.batches)

    def step(number: int) -> None:
        inputs = {name: tensor[:rows] for name, tensor in kept[number % DISTINCT].items()}
        with torch.autocast(scale.device, dtype=torch.bfloat16):
            loss = forward(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def adamw(parameters: list[torch.Tensor]) -> torch.optim.Optimizer:
    """Torch's fused AdamW."""
    return torch.optim.AdamW(parameters, lr=1e-4, eps=1e-6, weight_decay=0.01, fused=True)


def wait(device: str) -> None:
    """Until the device has done what it was given."""
    if device == "cuda":
        torch.cuda.synchronize()


def timed(step: Step, work: Workload, scale: Scale, *, whole: bool) -> Outcome:
    """Median over steps of examples per second; `whole`: a step takes all of a batch."""
    started = time.perf_counter()
    for number in range(DISTINCT + 2):
        step(number)
    wait(scale.device)
    warm_up = time.perf_counter() - started
    rows = min(len(batch) for batch in work.batches)
    per_second: list[float] = []
    flops: list[float] = []
    until = time.perf_counter() + scale.seconds
    number = 0
    while time.perf_counter() < until or len(per_second) < 3:
        batch = work.batches[number % DISTINCT]
        batch = batch if whole else batch[:rows]
        before = time.perf_counter()
        step(number)
        wait(scale.device)
        seconds = time.perf_counter() - before
        per_second.append(len(batch) / seconds)
        flops.append(work.flops(batch) / seconds)
        number += 1
    return {
        "examples_per_second": round(statistics.median(per_second), 1),
        "tflops": round(statistics.median(flops) / 1e12, 1),
        "steps": len(per_second),
        "warm_up_seconds": round(warm_up, 1),
        "memory_gb": round(torch.cuda.max_memory_allocated() / 1e9, 1)
        if scale.device == "cuda"
        else None,
    }


def matrix_rate(scale: Scale) -> float:
    """TFLOP/s of a square bf16 product, median."""
    left = torch.randn(scale.matrix, scale.matrix, dtype=torch.bfloat16, device=scale.device)
    seconds = []
    for _ in range(30):
        wait(scale.device)
        before = time.perf_counter()
        left @ left
        wait(scale.device)
        seconds.append(time.perf_counter() - before)
    return 2 * scale.matrix**3 / statistics.median(seconds) / 1e12


def measure_side(side: str, work: Workload, scale: Scale) -> Outcome:
    """One configuration; being out of memory is a result too."""
    gc.collect()
    if scale.device == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    torch.compiler.reset()
    try:
        if side == "ours":
            return timed(our_step(work, scale), work, scale, whole=True)
        compiled = side.endswith("compiled")
        step = hugging_face_step(work, scale, compiled=compiled)
        return timed(step, work, scale, whole=False)
    except torch.OutOfMemoryError as error:
        return {"not_run": f"out of memory: {str(error)[:100]}"}


def run(scale: Scale, minutes: float) -> Record:
    """Everything, ours first, then as much of the other side as time allows."""
    date, started = time.strftime("%Y-%m-%d"), time.perf_counter()
    rate = matrix_rate(scale)
    sides = ["ours", "huggingface"] + (["huggingface_compiled"] if scale.compiled else [])
    cases = [(preset, longest) for preset in scale.presets for longest in scale.lengths]
    results: dict[str, Outcome] = {}
    for side in sides:
        for preset, longest in cases:
            name = f"{preset} {longest} {side}"
            print(name, file=sys.stderr, flush=True)
            left = minutes * 60 - (time.perf_counter() - started)
            needed = 90 if side.endswith("compiled") else 2 * scale.seconds
            if left < needed:
                results[name] = {"not_run": f"{left:.0f} s were left"}
                continue
            results[name] = measure_side(side, workload(preset, longest, scale), scale)
    return {
        "date": date,
        "versions": versions(scale.device),
        "matrix_tflops": round(rate, 1),
        "results": results,
    }


def versions(device: str) -> dict[str, str]:
    """What the figures depend on."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("transformers", "triton"):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = str(torch.version.cuda)
    return found


def table(record: Record) -> str:
    """The result as Markdown."""
    rate = record["matrix_tflops"]
    lines = [
        ", ".join(f"{name} {version}" for name, version in record["versions"].items()),
        f"matrix rate {rate} TFLOP/s",
        "",
        "| model | length | side | examples/s | TFLOP/s | of matrix rate | goal on H200 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, found in record["results"].items():
        preset, longest, side = name.split()
        goal = GOALS.get((preset, int(longest)), "") if side == "ours" else ""
        if "not_run" in found:
            lines.append(f"| {preset} | {longest} | {side} | not run: {found['not_run']} | | | |")
            continue
        share = f"{found['tflops'] / rate:.0%}" if rate else ""
        lines.append(
            f"| {preset} | {longest} | {side} | {found['examples_per_second']:,.0f} "
            f"| {found['tflops']} | {share} | {goal} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Read the arguments, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/gpu_training.json"))
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    scale = SELF_TEST if arguments.self_test else GPU
    if scale.device == "cuda" and not torch.cuda.is_available():
        sys.exit("error: no CUDA device here; --self-test runs the same logic on a CPU")
    torch.set_float32_matmul_precision("high")
    record = run(scale, arguments.minutes)
    if not arguments.self_test:
        Path(arguments.out).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments.out).write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))


if __name__ == "__main__":
    main()
