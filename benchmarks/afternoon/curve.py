"""What an hour buys: the tasks' scores at 1, 2, 5, 10, 20, 50 and 100 % of a run's steps.

    python benchmarks/afternoon/curve.py configs/afternoon.toml MILESTONES METRICS [--last RUN]

In:  the configuration; the folder of the run's key in `training.milestones`; its metrics.jsonl, of
     the unfinished run or of its artifact; the finished run, if it is.
Out: benchmarks/results/afternoon.json and afternoon.svg: of every point its steps, tokens, seconds,
     training loss and scores of the short grid, beside the published encoders.

Points before the end are encoders at the peak rate: the decay of the last fifth is still to come.
Those measured before are found again.
"""

import json
import sys
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from benchmarks.afternoon.short_grid import (
    MOST_ROWS,
    PUBLISHED,
    read,
    result_of,
    scores_of,
    shortened,
)
from benchmarks.measuring import Arguments, Figures, machine, write_result
from cloze.flows.config import RunConfig

WITHOUT_PRETRAINING = ("corpus", "cleaning", "quality", "dedup", "vocabulary", "examples")
OF_AN_ENCODER = ("encoder", "word_vectors", "pretrain", "evaluate")


def point_of(run: RunConfig, encoder: str, *, name: str) -> RunConfig:
    """The short grid on `encoder`, without the run that has made it."""
    table = shortened(run, name, {}, cola=True).model_dump(mode="json", exclude_none=True)
    for section in (*WITHOUT_PRETRAINING, *OF_AN_ENCODER):
        table.pop(section, None)
    table["finetune"]["encoder"] = encoder
    return RunConfig.model_validate(table)


def course(metrics: Path) -> list[Figures]:
    """Steps, tokens, seconds, training loss and learning rate, by line of the run's log."""
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    found: list[Figures] = []
    tokens = steps = seconds = 0.0
    for row in rows:
        if "tokens_per_s" not in row:
            continue  # a held-out evaluation
        # a rate over the steps since the last line, in training time alone
        tokens += row["tokens_per_s"] * row["step_seconds"] * (row["step"] - steps)
        steps, seconds = row["step"], row["seconds"]
        now = {"step": steps, "tokens": round(tokens), "seconds": seconds}
        found.append(now | {"loss": row["masked_lm_loss"], "rate": row["learning_rate"]})
    return found


def at(rows: list[Figures], step: int) -> Figures:
    """What the run had spent after `step` steps, between two lines of its log."""
    steps = [row["step"] for row in rows]
    names = ("tokens", "seconds", "loss")
    return {name: float(np.interp(step, steps, [row[name] for row in rows])) for name in names}


def plot(points: list[Figures], path: Path) -> None:
    """Every task and the mean against tokens, with the published figures as lines."""
    figure = Figure(figsize=(10, 3.4), layout="constrained")
    names = [name for name in PUBLISHED["BERT-Tiny"] if name in points[0]["scores"]]
    for axes, name in zip(figure.subplots(1, len(names)), names, strict=True):
        tokens = [point["tokens"] / 1e6 for point in points]
        axes.plot(tokens, [point["scores"][name] for point in points], "o-", color="C0")
        for label, style in (("BERT-Tiny", ":"), ("BERT-Mini", "--")):
            axes.axhline(PUBLISHED[label][name], color="0.5", linestyle=style, label=label)
        axes.set_xscale("log")
        # Less than a decade has no round powers: the points themselves are marked.
        axes.set_xticks(tokens, [f"{count:.0f}" for count in tokens], rotation=45)
        axes.minorticks_off()
        axes.set_title(f"{name}, {MOST_ROWS // 1000}k rows" if name == "SST-2" else name)
        axes.set_xlabel("million tokens")
        axes.grid(alpha=0.3)
    figure.axes[-1].legend(fontsize="small")
    figure.savefig(path)


def main() -> None:
    """Score every point that there is."""
    parser = Arguments(__doc__, output="afternoon.json")
    parser.add_argument("config")
    parser.add_argument("milestones", help="folder with step-00000220 and so on")
    parser.add_argument("metrics", help="metrics.jsonl of the run")
    parser.add_argument("--last", default="", help="the finished run")
    parser.add_options(space="runs", on="")
    arguments = parser.parse_args()
    run, rows = read(arguments.config), course(Path(arguments.metrics))
    folders = sorted(Path(arguments.milestones).glob("step-*"))
    encoders = {int(folder.name.removeprefix("step-")): str(folder) for folder in folders}
    if arguments.last:
        encoders[run.pretrain.steps] = arguments.last
    points: list[Figures] = []
    for step, encoder in encoders.items():
        point = point_of(run, encoder, name=f"{run.name}-at-{step}")
        scores = scores_of(result_of(point, space=arguments.space, machine=arguments.on))
        share = step / run.pretrain.steps
        rounded = {task: round(score, 2) for task, score in scores.items()}
        points.append({"share": share, "step": step, **at(rows, step), "scores": rounded})
        print(points[-1])
        found = {"machine": machine(), "published": PUBLISHED, "points": points}
        write_result(arguments.output, found)
        plot(points, Path(arguments.output).with_suffix(".svg"))


if __name__ == "__main__":
    main()
