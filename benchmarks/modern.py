"""The modern encoder against transformers' ModernBERT at its best on a CPU.

    python benchmarks/modern.py [--cases train-17M-1024 embed-68M-8192 …] [--rounds 2]

In:  nothing: the sequences come from a seed.
Out: benchmarks/results/modern.json, and a table on standard output.

The sides take turns in one run, each in a process of its own; see cpu_training.py, whose medians
and repeated turns these are. What both compute, and what is the best of theirs, is said in
modern_steps.py. Cases measured by an earlier call stay in the result, with their machine and date.
"""

import argparse
import json
import sys
from functools import partial
from importlib import metadata
from pathlib import Path

from pydantic import TypeAdapter

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.cpu_training import BEST, Comparison, Turn, compare, table
from benchmarks.measuring import PRECISION, ROOT, machine, measure, write_result
from model.config import TrainingMachine
from model.training.environment import training_environment

SIDES = ("ours", *BEST)
SEQUENCES = {128: 64, 1024: 8, 4096: 2, 8192: 1}
"""Of a step, so that it has 8,192 tokens."""
GOALS = {128: 2.0, 1024: 2.0, 4096: 4.0, 8192: 4.0}
"""How much faster than the faster of transformers' two."""
CASES = (
    *(f"train-{preset}-{length}" for preset in ("17M", "68M") for length in SEQUENCES),
    *(f"embed-{preset}-8192" for preset in ("17M", "68M")),
)


def run_side(case: str, side: str, arguments: argparse.Namespace) -> Turn:
    """One turn of one side."""
    task, preset, length = case.split("-")
    command = [sys.executable, str(ROOT / "benchmarks" / "modern_steps.py"), side]
    command += ["--task", task, "--preset", preset, "--length", length]
    command += ["--sequences", str(SEQUENCES.get(int(length), 1))]
    command += ["--warm-up", str(arguments.warm_up), "--steps", str(arguments.steps)]
    taken = measure(command, cores=arguments.cores, env=training_environment(TrainingMachine()))
    return TypeAdapter(Turn).validate_python(taken.said)


def main() -> None:
    """Read the arguments, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", default=list(CASES))
    parser.add_argument("--sides", nargs="+", default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--warm-up", type=int, default=2)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--cores", default="0,1")
    parser.add_argument("--out", default=str(ROOT / "benchmarks/results/modern.json"))
    arguments = parser.parse_args()
    found: dict[str, Comparison] = {}
    for case in arguments.cases:
        where = {
            "machine": machine(),
            "versions": {name: metadata.version(name) for name in ("torch", "transformers")},
            "settings": {"precision": PRECISION},
        }
        goal = GOALS.get(int(case.rpartition("-")[2]))
        found[case] = compare(
            case,
            partial(run_side, case, arguments=arguments),
            sides=arguments.sides,
            rounds=arguments.rounds,
            goals=goal and (goal, goal),
        )
        out = Path(arguments.out)
        earlier = json.loads(out.read_text()) if out.exists() else {}
        write_result(arguments.out, {**earlier, case: {**where, **found[case].record()}})
    print(table(found))


if __name__ == "__main__":
    main()
