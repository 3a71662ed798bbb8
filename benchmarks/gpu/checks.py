"""Checks of the training step that need a GPU, besides its speed: one JSON line per check.

    python -m benchmarks.gpu.checks syncs|shapes|profile|parity [--self-test]

In:  nothing: batches are drawn from a seed (workload.py).
Out: syncs:   host waits per step, reported by `torch.cuda.set_sync_debug_mode`: at most one.
     shapes:  graph breaks and distinct graphs of compiled layers in 20 steps.
     profile: the kernels that take the most time in five steps.
     parity:  the loss in fp32 on the CPU and on the GPU over 200 steps: at most 0.01 nats apart.

`--self-test` runs the same logic, tiny, on a CPU, only to show that the program works. The exit
code is 1 if a check fails.
"""

import argparse
import collections
import json
import os
import sys
import warnings
from collections.abc import Callable
from contextlib import closing

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.measuring import Arguments, output_of
from benchmarks.training.product_steps import Way, trainer, training_steps
from benchmarks.training.workload import Workload
from cloze.model.config import TrainingMachine
from cloze.model.training.start import training_environment

Finding = dict[str, object]

PARITY = 0.01
"""Largest difference between the losses of both devices at any step, in nats."""


def workloads(device: str) -> dict[str, Workload]:
    """One of each family, small enough for a minute and large enough for the kernels to show."""
    if device == "cuda":
        return {
            "bert": Workload("base", 128, 256),
            "modern": Workload("modern-base", 1024, 32, full=True),
        }
    return {
        "bert": Workload("tiny", 128, 8),
        "modern": Workload("modern-tiny", 128, 2, full=True),
    }


def syncs(device: str) -> Finding:
    """How often the host waits for the GPU per step, over ten steps, and where."""
    found: dict[str, dict[str, int]] = {}
    for name, work in workloads(device).items():
        steps = training_steps(trainer(work, device=device), work, token_budget=16384)
        with closing(steps):
            # The first steps compile and allocate, which makes the host wait.
            for _ in range(3):
                next(steps)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("warn")
                for _ in range(10):
                    next(steps)
                if device == "cuda":
                    torch.cuda.set_sync_debug_mode("default")
        # By the text of torch's warning about a synchronising call; other warnings do not count.
        waited = [one for one in caught if "synchroniz" in str(one.message)]
        found[name] = dict(collections.Counter(f"{one.filename}:{one.lineno}" for one in waited))
    waits = {name: sum(places.values()) / 10 for name, places in found.items()}
    return {"waits_a_step": waits, "places": found, "passed": max(waits.values()) <= 1}


KINDS = {"bert": 1, "modern": 3}
"""Kinds of layers, each compiled once: a modern encoder's first has no norm, some are local."""


def shapes(device: str) -> Finding:
    """Dynamo's counters after 20 steps of compiled layers; TORCH_LOGS shows the details."""
    found: dict[str, object] = {}
    passed = True
    for name, work in workloads(device).items():
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        trained = trainer(work, device=device, way=Way(compiled=True))
        with closing(training_steps(trained, work, token_budget=16384)) as steps:
            for _ in range(20 if device == "cuda" else 2):
                next(steps)
        counters = torch._dynamo.utils.counters
        breaks = dict(counters["graph_break"])
        graphs = counters["stats"].get("unique_graphs", 0)
        found[name] = {"graphs": graphs, "graph_breaks": breaks}
        # at most two per kind: torch recompiles once with dynamic shapes
        passed = passed and not breaks and graphs <= 2 * KINDS[name]
    return {"found": found, "passed": passed}


def kernels(device: str) -> Finding:
    """Five steps under torch's profiler."""
    work = workloads(device)["bert"]
    trained = trainer(work, device=device, way=Way(compiled=True))
    on_gpu = device == "cuda"
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
    with closing(training_steps(trained, work, token_budget=16384)) as steps:
        for _ in range(5):
            next(steps)
        with profile(activities=activities) as recorded:
            for _ in range(5):
                next(steps)
    name = "self_device_time_total" if on_gpu else "self_cpu_time_total"
    found = sorted(recorded.key_averages(), key=lambda event: -getattr(event, name))
    total = sum(getattr(event, name) for event in found) or 1.0
    top = [
        {"name": event.key[:120], "calls": event.count, "share": getattr(event, name) / total}
        for event in found[:25]
    ]
    # `total` is in microseconds, of five steps.
    return {"milliseconds_a_step": total / 5e3, "top": top, "passed": True}


PARITY_SIDES = {
    "bert": ("tiny", "adamw"),
    "modern": ("modern-tiny", "adamw"),
    "modern muon": ("modern-tiny", "muon"),
}
"""Size and optimizer."""


def losses(device: str, side: str, *, steps: int) -> list[float]:
    """The loss of each step in fp32 without dropout."""
    # No TF32 on a GPU.
    torch.set_float32_matmul_precision("highest")
    size, optimizer = PARITY_SIDES[side]
    work = Workload(size, 128, 16 if size == "tiny" else 8)
    dry = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    way = Way("fp32", optimizer)
    trained = trainer(work, device=device, way=way, steps=steps, encoder=dry)
    with closing(training_steps(trained, work, token_budget=4096)) as training:
        for _ in range(steps):
            next(training)
    return [float(str(point["loss"])) for point in trained.curve.points]


def parity(device: str) -> Finding:
    """The same steps on both devices, each in a process: DeepSpeed allows one device in each."""
    curves: list[dict[str, list[float]]] = []
    steps = 200 if device == "cuda" else 3
    for where in ("cpu", device):
        command = [sys.executable, "-m", "benchmarks.gpu.checks", "losses"]
        command += ["--device", where, "--steps", str(steps)]
        machine = TrainingMachine.model_validate({"device": where})
        environment = {**os.environ, **training_environment(machine)}
        said = output_of(command, env=environment)
        curves.append(json.loads(said.splitlines()[-1])["losses"])
    here, there = curves
    apart = {
        side: max(abs(a - b) for a, b in zip(here[side], there[side], strict=True)) for side in here
    }
    # Shows that the losses have moved at all.
    learnt = {side: curve[0] - curve[-1] for side, curve in here.items()}
    passed = max(apart.values()) <= PARITY
    return {"largest_difference": apart, "learnt": learnt, "passed": passed}


CHECKS: dict[str, Callable[[str], Finding]] = {
    "syncs": syncs,
    "shapes": shapes,
    "profile": kernels,
    "parity": parity,
}


def main() -> None:
    """Run one check, print its result."""
    parser = Arguments(__doc__)
    parser.add_argument("check", choices=(*CHECKS, "losses"))
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=200, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = "cpu" if arguments.self_test else arguments.device
    if arguments.check == "losses":
        curves = {side: losses(device, side, steps=arguments.steps) for side in PARITY_SIDES}
        print(json.dumps({"losses": curves}))
        return
    found = CHECKS[arguments.check](device)
    print(json.dumps({"check": arguments.check, "device": device, **found}))
    sys.exit(not found["passed"])


if __name__ == "__main__":
    main()
