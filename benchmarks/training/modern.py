"""The modern encoder against transformers' ModernBERT at its best on a CPU.

    python benchmarks/training/modern.py [--cases train-17M-1024 embed-68M-8192 …] [--rounds 2]

In:  nothing: the sequences are drawn from a seed.
Out: benchmarks/results/modern.json, and a table on standard output.

The sides take turns as in cpu_training.py; training_steps.py describes their settings. Cases
measured earlier stay in the result file, each with its own machine and date.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.measuring import Arguments
from benchmarks.training.cpu_training import BEST, Case, compare_all

SIDES = ("ours", *BEST)
SEQUENCES = {128: 64, 1024: 8, 4096: 2, 8192: 1}
"""Sequences per step: 8,192 tokens."""
GOALS = {128: 2.0, 1024: 2.0, 4096: 4.0, 8192: 4.0}
"""How much faster than the faster of transformers' two."""
CASES = (
    *(f"train-{preset}-{length}" for preset in ("17M", "68M") for length in SEQUENCES),
    *(f"embed-{preset}-8192" for preset in ("17M", "68M")),
)


def main() -> None:
    """Read the arguments, compare, write."""
    parser = Arguments(__doc__, output="modern.json", cases=list(CASES), sides=list(SIDES))
    parser.add_options(rounds=2, warm_up=2, steps=3, cores="0,1")
    arguments = parser.parse_args()
    cases = []
    for name in arguments.cases:
        task, preset, length = name.split("-")
        options = {"task": task, "preset": f"modern-{preset}", "longest": length}
        options |= {"batch_size": SEQUENCES.get(int(length), 1), "warm_up": arguments.warm_up}
        goal = GOALS.get(int(length))
        steps = arguments.steps
        cases.append(Case(name, options, steps, steps, (goal, goal) if goal else None))
    compare_all(cases, arguments, {})


if __name__ == "__main__":
    main()
