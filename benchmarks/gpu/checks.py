"""What only a GPU can say of the training step, beside its speed: one JSON line a check.

    python -m benchmarks.gpu.checks syncs|shapes|profile|parity [--self-test]

In:  nothing: batches come from a seed (product.py).
Out: syncs:   host waits a step, as `torch.cuda.set_sync_debug_mode` sees them: at most one.
     shapes:  recompilations, graph breaks and distinct graphs of compiled layers in 20 steps.
     profile: the kernels that take the most time in five steps, and the share of idle time.
     parity:  the loss in fp32 on the CPU and on the GPU over 200 steps: at most 0.01 nats apart.

`--self-test` runs the same logic, tiny, on a CPU: it shows that the program works, no more. The
exit code is 1 where a check fails.
"""

import argparse
import collections
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from contextlib import closing

import torch
from torch.profiler import ProfilerActivity, profile

from benchmarks.gpu_product import Workload, trainer, training_steps
from model.config import TrainingMachine
from model.training.environment import training_environment

Finding = dict[str, object]

PARITY = 0.01
"""Nats between the losses of both devices, at any step."""


def workload(device: str) -> Workload:
    """Small enough to be done in a minute, large enough that kernels show."""
    return Workload("base", 128, 256) if device == "cuda" else Workload("tiny", 128, 8)


def syncs(device: str) -> Finding:
    """How often the host waited for the GPU in each of ten steps, and where."""
    work = workload(device)
    steps = training_steps(trainer(work, device=device), work, token_budget=16384)
    with closing(steps):
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
    places = collections.Counter(
        f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)
    )
    a_step = sum(places.values()) / 10
    return {"waits_a_step": a_step, "places": dict(places), "passed": a_step <= 1}


def shapes(device: str) -> Finding:
    """Dynamo's counters after 20 steps of compiled layers; details: TORCH_LOGS."""
    work = workload(device)
    torch._dynamo.utils.counters.clear()
    trained = trainer(work, device=device, compiled=device == "cuda")
    with closing(training_steps(trained, work, token_budget=16384)) as steps:
        for _ in range(20):
            next(steps)
    counters = torch._dynamo.utils.counters
    breaks = dict(counters["graph_break"])
    graphs = counters["stats"].get("unique_graphs", 0)
    # One with gradients; a second where torch found that a size was not one after all.
    return {"graphs": graphs, "graph_breaks": breaks, "passed": not breaks and graphs <= 2}


def kernels(device: str) -> Finding:
    """Five steps under torch's profiler."""
    work = workload(device)
    trained = trainer(work, device=device, compiled=device == "cuda")
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
    return {"milliseconds_a_step": total / 5e3, "top": top, "passed": True}


def losses(device: str, *, steps: int) -> list[float]:
    """The loss of each step in fp32 without dropout."""
    torch.set_float32_matmul_precision("highest")
    work = Workload("tiny", 128, 16)
    dry = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    trained = trainer(work, device=device, precision="fp32", steps=steps, encoder=dry)
    with closing(training_steps(trained, work, token_budget=4096)) as training:
        for _ in range(steps):
            next(training)
    return [float(str(point["loss"])) for point in trained.curve.points]


def parity(device: str) -> Finding:
    """The same steps on both devices, in a process each: DeepSpeed knows one device a process."""
    curves = []
    steps = 200 if device == "cuda" else 10
    for where in ("cpu", device):
        command = [sys.executable, "-m", "benchmarks.gpu.checks", "losses"]
        command += ["--device", where, "--steps", str(steps)]
        machine = TrainingMachine.model_validate({"device": where})
        environment = {**os.environ, **training_environment(machine)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        curves.append(json.loads(done.stdout.splitlines()[-1])["losses"])
    apart = max(abs(a - b) for a, b in zip(*curves, strict=True))
    learnt = curves[0][0] - curves[0][-1]
    return {"largest_difference": apart, "learnt": learnt, "passed": apart <= PARITY}


CHECKS: dict[str, Callable[[str], Finding]] = {
    "syncs": syncs,
    "shapes": shapes,
    "profile": kernels,
    "parity": parity,
}


def main() -> None:
    """Run one check, print what it found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("check", choices=(*CHECKS, "losses"))
    parser.add_argument("--self-test", action="store_true")
    parser.add_argument("--device", default="cuda", help=argparse.SUPPRESS)
    parser.add_argument("--steps", type=int, default=200, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    device = "cpu" if arguments.self_test else arguments.device
    if arguments.check == "losses":
        print(json.dumps({"losses": losses(device, steps=arguments.steps)}))
        return
    found = CHECKS[arguments.check](device)
    print(json.dumps({"check": arguments.check, "device": device, **found}))
    sys.exit(not found["passed"])


if __name__ == "__main__":
    main()
