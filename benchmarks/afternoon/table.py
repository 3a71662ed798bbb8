"""The table: every task at the best point of its grid, over seeds, beside Google's encoders.

    python benchmarks/afternoon/table.py afternoon

In:  finished runs of a workspace that have fine-tuned one encoder on the grid, all tasks in one run
     or each in its own; the run that pre-trained it (--encoder), whose statistics are copied.
Out: benchmarks/results/afternoon_table.json: by task the chosen point, dev in percent for every
     seed and the median, what the other points had with the first seed; the mean of four tasks; the
     same from random weights, if a run has them.

Of a task in several runs the last one counts. One that was searched with a part of the grid says so
by the points that it tried.
"""

import statistics
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.afternoon.short_grid import IN_MEAN, PUBLISHED
from benchmarks.measuring import Arguments, Figures, machine, write_result
from cloze.artifacts.results import Trial, Trials
from cloze.flows.workspace import run_artifact, writable_workspace


def row(trials: list[Trial]) -> Figures:
    """One task's figures, of its trials with the pre-trained encoder."""
    metric = IN_MEAN.get(trials[0].task, trials[0].metric)
    score = {one.label: round(100 * one.dev[metric], 2) for one in trials}
    seeds = [one for one in trials if not one.point]
    return {
        "metric": metric,
        "batch_size": seeds[0].batch_size,
        "learning_rate": seeds[0].learning_rate,
        "dev": [score[one.label] for one in seeds],
        "median": statistics.median(score[one.label] for one in seeds),
        "tried": {one.point: score[one.label] for one in trials if one.point},
    }


def main() -> None:
    """Read the runs, and write the table."""
    parser = Arguments(__doc__, output="afternoon_table.json")
    parser.add_argument("runs", nargs="+", help="names of runs")
    parser.add_options(workspace="runs", encoder="")
    arguments = parser.parse_args()
    space = writable_workspace(arguments.workspace)
    by_system: dict[str, dict[str, Figures]] = {"pretrained": {}, "random": {}}
    for name in arguments.runs:
        artifact = run_artifact(space, name, stage="finetune")
        trials = Trials.model_validate(artifact.read_json("trials.json")).trials
        for system, tasks in by_system.items():
            own = [one for one in trials if one.system == system]
            for task in dict.fromkeys(one.task for one in own):
                tasks[task] = row([one for one in own if one.task == task])
    found: Figures = {"machine": machine(), "published (test)": PUBLISHED}
    if arguments.encoder:
        encoder = run_artifact(space, arguments.encoder, stage="pretrain")
        found["encoder"] = {"digest": encoder.digest, **encoder.manifest.statistics}
    for system, tasks in by_system.items():
        found[f"{system} (dev)"] = tasks
        if tasks.keys() >= IN_MEAN.keys():
            medians = [float(str(tasks[name]["median"])) for name in IN_MEAN]
            found[f"{system}, mean of four"] = round(statistics.mean(medians), 2)
    write_result(arguments.output, found)


if __name__ == "__main__":
    main()
