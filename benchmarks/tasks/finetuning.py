"""Fine-tuning the same weights on the same data: ours against the Hugging Face Trainer.

    python benchmarks/tasks/finetuning.py scores --data GLUE --task MRPC --systems ours --seeds 5
    python benchmarks/tasks/finetuning.py speed --data GLUE --task MRPC [--steps 60] [--rounds 3]

In:  a folder with GLUE's own files.
Out: benchmarks/results/finetuning-scores.json or finetuning-speed.json. Results of other tasks and
     systems stay in the file, so that they can be measured one at a time.

`scores` runs the whole recipe with several seeds and times it; with `--steps`, one epoch over as
much of the training data as that takes. `speed` runs a few steps of each system in turns: ours, the
Trainer at its best (length-grouped batches), without grouping, and with its defaults (fp32).
Precision is bf16 where the processor has products for it, else fp32. Each fit is a process of
finetuning_fit.py.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks import measuring
from benchmarks.measuring import PRECISION, ROOT
from benchmarks.tasks.finetuning_fit import BATCH, RECIPES, Fit

RESULT = str(ROOT / "benchmarks" / "results" / "finetuning-{}.json")
SYSTEMS = {
    "ours": ("ours", PRECISION),
    f"trainer {PRECISION} by length": ("trainer_by_length", PRECISION),
    f"trainer {PRECISION}": ("trainer", PRECISION),
    "trainer fp32": ("trainer", "fp32"),  # its default
}
HEADLINES = {"MRPC": "f1", "SST-2": "accuracy"}
CLOCKS = ("seconds", "cpu_seconds")


def run_one(system: str, arguments: argparse.Namespace, **more: int) -> Fit:
    """One fit in a process of its own, with the options it was given and its peak memory."""
    side, precision = SYSTEMS[system]
    threads = len(arguments.cores.split(","))
    options = {"task": arguments.task, "precision": precision, "data": arguments.data, **more}
    taken = measuring.measure_program(
        "tasks/finetuning_fit.py",
        side,
        *measuring.flags(**options, threads=threads),
        cores=arguments.cores,
        threads=threads,
        memory=True,
    )
    found = {**more, **taken.said, "peak_pss_mb": round(taken.peak_pss or 0)}
    print(f"{arguments.task} {system}: {found}", file=sys.stderr, flush=True)
    return found


def scores(arguments: argparse.Namespace) -> None:
    """The whole recipe with every seed; median and spread over the seeds."""
    path = RESULT.format("scores")
    result = measuring.read_result(path)
    recipe = {**RECIPES[arguments.task], "batch": BATCH}
    task = result.setdefault(arguments.task, {"recipe": recipe})
    headline = HEADLINES[arguments.task]
    part = {"steps": arguments.steps} if arguments.steps else {}
    for system in arguments.systems.split(","):
        where, fits = measuring.machine(), []
        for seed in range(arguments.seeds):
            fits.append(run_one(system, arguments, seed=seed, **part))
            task[system] = {
                "machine": where,
                headline: spread(fit["dev"][headline] for fit in fits),
                **{clock: spread(fit[clock] for fit in fits) for clock in CLOCKS},
                "fits": fits,
            }
            measuring.write_result(path, result)


def speed(arguments: argparse.Namespace) -> None:
    """Seconds per step, systems in turns; medians over the rounds, and ratios to ours."""
    where, steps = measuring.machine(), arguments.steps or 60
    runs = measuring.in_turns(
        SYSTEMS, lambda system: run_one(system, arguments, steps=steps), rounds=arguments.rounds
    )
    found: dict[str, object] = {"machine": where, "batch": BATCH}
    for clock in CLOCKS:
        medians = {
            system: statistics.median(fit[clock] / fit["steps"] for fit in fits)
            for system, fits in runs.items()
        }
        times = {system: median / medians["ours"] for system, median in medians.items()}
        found[clock] = {"per_step": medians, "times_ours": times}
    rounds = [dict(zip(runs, fits, strict=True)) for fits in zip(*runs.values(), strict=True)]
    measuring.add_result(RESULT.format("speed"), arguments.task, {**found, "rounds": rounds})
    print(json.dumps(found))


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, minimum and maximum over the seeds."""
    found = list(values)
    return {"median": statistics.median(found), "minimum": min(found), "maximum": max(found)}


def main() -> None:
    """Read the arguments, measure."""
    parser = measuring.Arguments(__doc__)
    parser.add_argument("what", choices=("scores", "speed"))
    parser.add_argument("--data", required=True, help="folder with MRPC/ and SST-2/ in TSV")
    usual = f"ours,trainer {PRECISION}"
    parser.add_argument("--systems", default=usual, help="for scores: systems, comma-separated")
    steps = "one epoch of this many; default: for scores, all"
    parser.add_argument("--steps", type=int, default=0, help=steps)
    parser.add_options(task=tuple(RECIPES), seeds=5, rounds=3, cores="0,1")
    arguments = parser.parse_args()
    {"scores": scores, "speed": speed}[arguments.what](arguments)


if __name__ == "__main__":
    main()
