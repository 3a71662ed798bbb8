"""A run's figures by name, to be listed and compared.

In:  the `summary.json` of a run.
Out: `{"package mlm_loss": 3.02, "tagging f1": 0.71, …}`.
"""

from pydantic import ValidationError

from artifacts import filesystem
from artifacts.summary import Summary
from flows.workspace import Workspace

SUMMARY_NAME = "summary.json"

ROLES = ("baseline", "random", "pretrained")

ERROR = " ±"
"""Ending of the name of a figure's standard error over the seeds."""

Figures = dict[str, float]


def read_summary(workspace: Workspace, run: str) -> Summary | None:
    """The summary of a run; None if it has no report yet, or one of another Cloze."""
    path = filesystem.join(workspace.run_folder(run), SUMMARY_NAME)
    try:
        return Summary.model_validate_json(filesystem.read_bytes(path))
    except (FileNotFoundError, ValidationError):
        return None


def figures(summary: Summary, *, roles: tuple[str, ...] = ROLES) -> Figures:
    """The figures by which runs are judged, the headline first; of tasks, systems in `roles`."""
    found: Figures = {}
    for model in summary.language_model:
        found[f"{model.split} mlm_loss"] = model.mlm_loss
        found[f"{model.split} mlm_accuracy"] = model.mlm_accuracy
        if model.initial_mlm_loss is not None:
            found[f"{model.split} initial_mlm_loss"] = model.initial_mlm_loss
        if model.next_sentence_accuracy is not None:
            found[f"{model.split} nsp_accuracy"] = model.next_sentence_accuracy
    for task in summary.tasks:
        for system in (system for system in task.systems if system.role in roles):
            scores = (system.test or system.dev).get(task.metric)
            if scores is not None:
                name = f"{task.name} {system.name} {task.metric}"
                found |= {name: scores.mean, f"{name}{ERROR}": scores.standard_error}
    if summary.pretraining and summary.pretraining.tokens:
        found["tokens seen"] = float(summary.pretraining.tokens)
    return found
