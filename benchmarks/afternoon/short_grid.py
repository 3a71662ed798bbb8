"""The tasks by which recipes and points of a curve are compared: one cell of the grid, one seed.

In:  a configuration with the five GLUE tasks, and what a run changes in it.
Out: `Scores`: of each task on dev in percent, and the mean of four as in Google's table.

A whole grid takes an hour; here one batch size and one rate, and a part of SST-2's rows, so that a
rung takes minutes. Scores of one seed differ by a point or two without any reason.
"""

import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path

import tomli_w

from cloze.artifacts.errors import ClozeError
from cloze.flows.config import RunConfig
from cloze.flows.report.figures import read_summary
from cloze.flows.report.summary import Summary
from cloze.flows.variants import changed
from cloze.flows.workspace import workspace

CELL = {"batch_size": 32, "learning_rate": 5e-4, "epochs": 4}
MOST_ROWS = 10_000
"""Of SST-2's 67,349."""

IN_MEAN = {"SST-2": "accuracy", "MRPC": "accuracy", "STS-B": "spearman", "RTE": "accuracy"}
"""The tasks whose mean is taken, and by which metric; BERT-Tiny and -Mini learn nothing of CoLA."""

_TABLE = {
    "BERT-Tiny": (0.0, 83.2, 71.1, 73.6, 57.2),
    "BERT-Mini": (0.0, 85.9, 71.8, 73.3, 57.9),
    "BERT-Small": (27.8, 89.7, 76.2, 77.0, 61.8),
}
PUBLISHED = {
    name: dict(zip(("CoLA", *IN_MEAN), row, strict=True)) | {"mean": sum(row[1:]) / 4}
    for name, row in _TABLE.items()
}
"""google-research/bert, README: the test server's, the best of 20 cells (Turc et al. 2019)."""

Scores = dict[str, float]


def read(config: str) -> RunConfig:
    """The configuration in a file."""
    return RunConfig.model_validate(tomllib.loads(Path(config).read_text("utf-8")))


def shortened(
    run: RunConfig, name: str, settings: Mapping[str, object], *, cola: bool
) -> RunConfig:
    """`run` under another name, with some settings changed and the short grid for its tasks."""
    table = changed(run, name, {**settings}, source=name).model_dump(mode="json")  # type: ignore[dict-item]
    tasks = [
        {**task, **CELL, "train_examples": MOST_ROWS if task["name"] == "SST-2" else 0}
        for task in table["finetune"]["tasks"]
        if cola or task["name"] in IN_MEAN
    ]
    protocol = {"grid": None, "seeds": [0], "initialisations": ["pretrained"], "save": "none"}
    table["finetune"] |= {"tasks": tasks, **protocol}
    return RunConfig.model_validate(table)


def result_of(run: RunConfig, *, space: str, machine: str = "") -> Summary:
    """Execute `run` in the workspace `space`, or find it there; what its report says."""
    folder = Path(space) / "configs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run.name}.toml"
    path.write_text(tomli_w.dumps(run.model_dump(mode="json", exclude_none=True)), "utf-8")
    on = ["--on", machine] if machine else []
    command = [sys.executable, "-P", "-m", "cloze", "run", str(path), "--workspace", space]
    # in the current folder, to which the paths of a configuration refer
    done = subprocess.run([*command, "--without-prefect", *on], stdout=sys.stderr, check=False)
    if done.returncode:
        raise ClozeError(f"run {run.name}: exit code {done.returncode}; see above")
    summary = read_summary(workspace(space), run.name)
    if summary is None:
        raise ClozeError(f"{space}: run {run.name} has left no summary; expected one after a run")
    return summary


def scores_of(summary: Summary) -> Scores:
    """The score of each task on dev in percent, and the mean of the four if all are there."""
    found = {
        task.name: 100 * system.dev[IN_MEAN.get(task.name, task.metric)].mean
        for task in summary.tasks
        for system in task.systems
        if system.role == "pretrained"
    }
    if not found.keys() >= IN_MEAN.keys():
        return found  # the mean of fewer is another figure
    return found | {"mean": sum(found[name] for name in IN_MEAN) / len(IN_MEAN)}
