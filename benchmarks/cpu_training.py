"""Pre-training on a CPU against Hugging Face at its best and as its Trainer is configured.

    python benchmarks/cpu_training.py [--presets mini base] [--rounds 3]

In:  nothing: the examples come from a seed, with the lengths of real text (mean 104 of 128).
Out: benchmarks/results/cpu_training.json, and a table on standard output.

Every side runs in a process of its own with the same allocator settings and cores; the sides take
turns, so that a machine that slows down slows all of them. A side's figure is the median of all its
steps. FLOPs count matrix products on real tokens only; the matrix rate is measured between steps.
"""

import argparse
import statistics
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.measuring import ROOT, machine, measure, write_result
from model.config import TrainingMachine
from model.training.environment import training_environment

SIDES = ("ours", "bare", "huggingface_bf16", "huggingface_fp32")
GOALS = {"mini": (2.5, 5.5), "base": (1.6, 4.3)}
"""How much faster than Hugging Face's best, and than its default."""
AIMS = {"mini": (3.5, 8.0), "base": (2.2, 6.0)}
STEPS = {
    "mini": {"ours": 16, "bare": 16, "huggingface_bf16": 5, "huggingface_fp32": 4},
    "base": {"ours": 5, "bare": 5, "huggingface_bf16": 2, "huggingface_fp32": 2},
}
WARM_UP = {"mini": 4, "base": 2}


def run_side(preset: str, side: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """One turn of one side."""
    command = [sys.executable, str(ROOT / "benchmarks" / "training_steps.py"), side]
    command += ["--preset", preset, "--steps", str(STEPS[preset][side])]
    command += ["--warm-up", str(WARM_UP[preset]), "--batch-size", str(arguments.batch_size)]
    command += ["--activation", arguments.activation]
    return measure(command, cores=arguments.cores, env=training_environment(TrainingMachine())).said


def summary(turns: list[dict[str, Any]]) -> dict[str, Any]:
    """A side's figures over all its turns."""
    seconds = [s for turn in turns for s in turn["seconds"]]
    tokens = [t for turn in turns for t in turn["tokens"]]
    flops = [f for turn in turns for f in turn["flops"]]
    per_second = [t / s for t, s in zip(tokens, seconds, strict=True)]
    return {
        "tokens_per_second": round(statistics.median(per_second), 1),
        "spread": [round(min(per_second), 1), round(max(per_second), 1)],
        "gflops": round(
            statistics.median(f / s for f, s in zip(flops, seconds, strict=True)) / 1e9
        ),
        "matrix_gflops": round(statistics.median(r for t in turns for r in t["rates"]) / 1e9),
        "steps": len(seconds),
        "kernels": turns[0]["kernels"],
    }


def compare(preset: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """All sides in turns, and what the comparison says."""
    turns: dict[str, list[dict[str, Any]]] = {side: [] for side in arguments.sides}
    for number in range(arguments.rounds):
        for side in arguments.sides:
            turns[side].append(run_side(preset, side, arguments))
            print(f"{preset} round {number + 1} {side}", file=sys.stderr, flush=True)
    sides = {side: summary(of_side) for side, of_side in turns.items()}
    rate = statistics.median(side["matrix_gflops"] for side in sides.values())
    ours = sides["ours"]["tokens_per_second"]
    found: dict[str, Any] = {
        f"times_{side}": round(ours / figures["tokens_per_second"], 2)
        for side, figures in sides.items()
        if side.startswith("huggingface")
    }
    found["share_of_matrix_rate"] = round(sides["ours"]["gflops"] / rate, 3)
    if "bare" in sides:
        found["share_of_deepspeed"] = round(1 - ours / sides["bare"]["tokens_per_second"], 3)
    return {"sides": sides, "matrix_gflops": rate, **found, "goals": GOALS.get(preset)}


def table(results: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = ["| model | side | real tokens/s | GFLOP/s | ours is faster |", "|---|---|---|---|---|"]
    for preset, result in results.items():
        for side, figures in result["sides"].items():
            times = result.get(f"times_{side}", "")
            lines.append(
                f"| {preset} | {side} | {figures['tokens_per_second']:,.0f} "
                f"| {figures['gflops']:,} | {times} |"
            )
        lines.append(
            f"| {preset} | matrix rate | | {result['matrix_gflops']:,.0f} "
            f"| ours reaches {result['share_of_matrix_rate']:.0%} of it |"
        )
    return "\n".join(lines)


def main() -> None:
    """Read the arguments, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--presets", nargs="+", default=["mini", "base"])
    parser.add_argument("--sides", nargs="+", default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--activation", default="gelu", choices=["gelu", "gelu_tanh"])
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/cpu_training.json"))
    arguments = parser.parse_args()
    results = {preset: compare(preset, arguments) for preset in arguments.presets}
    versions = {name: metadata.version(name) for name in ("torch", "transformers", "deepspeed")}
    record = {
        "machine": machine(),
        "versions": versions,
        "settings": {"batch_size": arguments.batch_size, "hidden_act": arguments.activation},
        "results": results,
    }
    write_result(arguments.out, record)
    print(table(results))


if __name__ == "__main__":
    main()
