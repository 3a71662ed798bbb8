"""Fine-tuning the same weights on the same data: ours against the Hugging Face Trainer.

    python benchmarks/tasks/finetuning.py scores --data GLUE --task MRPC --systems ours --seeds 5
    python benchmarks/tasks/finetuning.py speed --data GLUE --task MRPC [--steps 60] [--rounds 3]

`scores`: the whole recipe with several seeds, and the time it took; with `--steps` one epoch over
as much of the training data as they take. `speed`: a few steps of ours, of the Trainer at its best
(batches of like length), of the Trainer without these and as it comes (fp32), in turn, several
rounds. Precision is bf16 where the processor has products for it, else fp32.
Both add to benchmarks/results/finetuning-*.json, so that tasks and systems may be measured one at a
time. The fits themselves are those of `finetuning_fit.py`, each a process of its own.
"""

import argparse
import json
import statistics
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Literal, cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import PRECISION, ROOT, machine, measure, write_result
from benchmarks.tasks.finetuning_fit import BATCH, RECIPES, Fit
from model.config import TrainingMachine
from model.training.environment import training_environment

RESULTS = ROOT / "benchmarks" / "results"
FIT = str(ROOT / "benchmarks" / "tasks" / "finetuning_fit.py")
SYSTEMS = {
    "ours": ("ours", PRECISION),
    f"trainer {PRECISION} by length": ("trainer_by_length", PRECISION),
    f"trainer {PRECISION}": ("trainer", PRECISION),
    "trainer fp32": ("trainer", "fp32"),  # as it comes
}
HEADLINES = {"MRPC": "f1", "SST-2": "accuracy"}
CLOCKS: tuple[Literal["seconds", "cpu_seconds"], ...] = ("seconds", "cpu_seconds")


class MeasuredFit(Fit):
    """A fit in a process of its own; with its seed, if it was given one."""

    peak_pss_mb: int
    """The largest memory."""


def run_one(system: str, arguments: argparse.Namespace, **more: int) -> MeasuredFit:
    """One fit in a process of its own."""
    side, precision = SYSTEMS[system]
    options = {"task": arguments.task, "precision": precision, "data": arguments.data, **more}
    options["threads"] = len(arguments.cores.split(","))
    command = [sys.executable, FIT, side]
    command += [part for name, value in options.items() for part in (f"--{name}", str(value))]
    threads = options["threads"]
    environment = training_environment(TrainingMachine(threads=int(threads)))  # both sides
    taken = measure(command, cores=arguments.cores, env=environment, memory=True)
    found = {**more, **taken.said, "peak_pss_mb": round(taken.peak_pss or 0)}
    print(f"{arguments.task} {system}: {found}", file=sys.stderr, flush=True)
    return cast("MeasuredFit", found)


def scores(arguments: argparse.Namespace) -> None:
    """The whole recipe with every seed; median and spread over the seeds."""
    result = kept("finetuning-scores.json")
    recipe: dict[str, float] = {**RECIPES[arguments.task], "batch": BATCH}
    task = result.setdefault(arguments.task, {"recipe": recipe})
    headline = HEADLINES[arguments.task]
    part = {"steps": arguments.steps} if arguments.steps else {}
    for system in arguments.systems.split(","):
        where = machine()
        fits: list[MeasuredFit] = []
        for seed in range(arguments.seeds):
            fits.append(run_one(system, arguments, seed=seed, **part))
            times: dict[str, object] = {
                clock: spread(fit[clock] for fit in fits) for clock in CLOCKS
            }
            task[system] = {
                "machine": where,
                headline: spread(fit["dev"][headline] for fit in fits),
                **times,
                "fits": fits,
            }
            keep("finetuning-scores.json", result)


def speed(arguments: argparse.Namespace) -> None:
    """Seconds per step, systems in turn; medians of the rounds, and how many times ours."""
    where = machine()
    rounds = [
        {system: run_one(system, arguments, steps=arguments.steps or 60) for system in SYSTEMS}
        for _ in range(arguments.rounds)
    ]
    found: dict[str, object] = {"machine": where, "batch": BATCH}
    for clock in CLOCKS:
        medians = {
            system: statistics.median(one[system][clock] / one[system]["steps"] for one in rounds)
            for system in SYSTEMS
        }
        times = {system: median / medians["ours"] for system, median in medians.items()}
        found[clock] = {"per_step": medians, "times_ours": times}
    result = kept("finetuning-speed.json")
    keep("finetuning-speed.json", {**result, arguments.task: {**found, "rounds": rounds}})
    print(json.dumps(found))


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median, worst and best over the seeds."""
    found = list(values)
    return {"median": statistics.median(found), "minimum": min(found), "maximum": max(found)}


def kept(name: str) -> dict[str, dict[str, object]]:
    """What earlier runs have measured."""
    path = RESULTS / name
    return dict(json.loads(path.read_text())) if path.exists() else {}


def keep(name: str, result: Mapping[str, object]) -> None:
    """Write it beside the other results."""
    write_result(str(RESULTS / name), result)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("scores", "speed"))
    parser.add_argument("--data", required=True, help="folder with MRPC/ and SST-2/ in TSV")
    parser.add_argument("--task", default="MRPC", choices=tuple(RECIPES))
    usual = f"ours,trainer {PRECISION}"
    parser.add_argument("--systems", default=usual, help="scores: which, by comma")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=0, help="one epoch of so many; scores: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cores", default="0,1")
    arguments = parser.parse_args()
    {"scores": scores, "speed": speed}[arguments.what](arguments)


if __name__ == "__main__":
    main()
