"""The race: held-out loss over wall-clock time, against the Hugging Face Trainer at its best.

    python benchmarks/race.py --examples WORKSPACE/artifacts/examples/KEY --preset mini --steps 600

In:  an examples artifact.
Out: benchmarks/results/race.json and race.svg: both curves, and how much sooner ours reaches the
     lowest loss that both reach.

Both sides have the same text, vocabulary, architecture, initial weights, batch order, schedule and
cores; they run one after the other, each in a process of its own with the same allocator settings.
"""

import argparse
import json
import os
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import measuring
from benchmarks.measuring import PRECISION, ROOT
from cloze.artifacts.store import Artifact, open_artifact
from cloze.model.config import PretrainStage, TrainingMachine
from cloze.model.training.start import training_environment

Points = list[tuple[int, float, float]]
"""Step, seconds of training, held-out MLM loss."""


def configuration(arguments: argparse.Namespace) -> dict[str, object]:
    """The recipe of both sides."""
    recipe = {
        "seed": 12345,
        "encoder": {"preset": arguments.preset, "initializer_range": arguments.initializer_range},
        "pretrain": {
            "steps": arguments.steps,
            "batch_size": arguments.batch_size,
            "phases": [{"max_seq_length": arguments.max_seq_length, "share": 1.0}],
            "precision": PRECISION,
            "evaluate_every": max(1, arguments.steps // 12),
            "evaluation_examples": 512,
            "optimizer": {
                "learning_rate": arguments.learning_rate,
                "warmup_steps": arguments.steps // 20,
                "bias_correction": True,  # torch's AdamW always corrects
            },
        },
    }
    return PretrainStage.model_validate(recipe).model_dump(mode="json")


def ours(config: dict[str, object], examples: Artifact, scratch: Path, *, threads: int) -> Points:
    """Our side: the stage's program, as a flow starts it."""
    table = measuring.write_table(
        scratch,
        "pretrain",
        format_version=PretrainStage.format_version,
        config=config,
        inputs={"examples": examples},
        # no checkpoint within the race
        machine={"threads": threads, "checkpoint_every": 10**6, "log_every": 10},
    )
    _run("-P", "-m", "cloze.model.training.pretrain", *table, threads=threads)
    artifact = open_artifact(str(scratch / "pretrain"))
    curve, log = (
        [json.loads(line) for line in artifact.read_bytes(name).splitlines()]
        for name in ("curve.jsonl", "metrics.jsonl")
    )
    # The log has seconds of training; evaluations are placed between its lines.
    steps, seconds = [row["step"] for row in log], [row["seconds"] for row in log]
    return [
        (p["step"], float(np.interp(p["step"], steps, seconds)), p["heldout"]["masked_lm_loss"])
        for p in curve
        if "heldout" in p
    ]


def theirs(config: dict[str, object], scratch: Path, *, threads: int, **settings: object) -> Points:
    """The other side, in `peers/huggingface_trainer.py`."""
    path = scratch / "settings.json"
    settings |= {"config": config, "scratch": str(scratch / "theirs"), "threads": threads}
    path.write_text(json.dumps(settings))
    program = str(ROOT / "benchmarks" / "peers" / "huggingface_trainer.py")
    said = _run(program, str(path), threads=threads)
    return [tuple(point) for point in json.loads(said.splitlines()[-1])["points"]]


def _run(*arguments: str, threads: int) -> str:
    variables = training_environment(TrainingMachine(threads=threads))
    environment = {**os.environ, **variables, "OMP_NUM_THREADS": str(threads)}
    return measuring.output_of([sys.executable, *arguments], env=environment)


def sooner(our_points: Points, their_points: Points) -> float:
    """Their seconds over ours to the lowest held-out loss that both reach."""
    # The higher of both sides' lowest losses: one that each of them reaches.
    goal = max(min(p[2] for p in points) for points in (our_points, their_points))
    return _seconds_to(goal, their_points) / _seconds_to(goal, our_points)


def _seconds_to(goal: float, points: Points) -> float:
    """When the curve first reaches `goal`, interpolated linearly between its points."""
    for (_, before, above), (_, after, below) in pairwise(points):
        if below <= goal:
            share = (above - goal) / (above - below) if above > below else 1.0
            return before + min(max(share, 0.0), 1.0) * (after - before)
    return points[-1][1]


def plot(curves: dict[str, Points], path: Path, *, title: str) -> None:
    """Plot held-out loss over seconds, one line per side."""
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for name, points in curves.items():
        axes.plot([p[1] for p in points], [p[2] for p in points], marker="o", label=name)
    axes.set_xlabel("seconds of training")
    axes.set_ylabel("held-out masked-LM loss, nats")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path)


def main() -> None:
    """Read the arguments, run both sides, write figures and plot."""
    parser = measuring.Arguments(__doc__, output="race.json")
    parser.add_argument("--examples", required=True, help="directory of an examples artifact")
    parser.add_options(preset="mini", steps=600, batch_size=32, max_seq_length=128)
    parser.add_options(learning_rate=1e-3, initializer_range=0.02, threads=os.cpu_count())
    parser.add_argument("--compile", action="store_true", help="torch.compile their model")
    arguments = parser.parse_args()
    config, record = configuration(arguments), measuring.machine()
    examples, threads = str(Path(arguments.examples).resolve()), arguments.threads
    with tempfile.TemporaryDirectory() as folder:
        scratch = Path(folder)
        our_points = ours(config, open_artifact(examples), scratch, threads=threads)
        their_points = theirs(
            config, scratch, examples=examples, threads=threads, compile=arguments.compile
        )
    curves = {"Cloze": our_points, f"Hugging Face Trainer, {PRECISION}": their_points}
    ratio = sooner(our_points, their_points)
    measuring.write_result(
        arguments.output,
        {"machine": record, "arguments": vars(arguments), "sooner": ratio, "curves": curves},
    )
    plot(
        curves,
        Path(arguments.output).with_suffix(".svg"),
        title=f"{arguments.preset}, {threads} cores: {ratio:.1f} times sooner",
    )
    print(f"{ratio:.2f} times sooner; {arguments.output}")


if __name__ == "__main__":
    main()
