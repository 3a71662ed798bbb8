"""The figures of a run: by name, to be listed and compared; the most important ones in sentences.

In:  the `summary.json` of a run.
Out: `{"package mlm_loss": 3.02, "tagging f1": 0.71, …}`; at most seven lines for a terminal.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from artifacts import filesystem
from artifacts.results import TaskScore
from artifacts.summary import Summary
from flows.record import SUMMARY_NAME
from flows.report import wording
from flows.report.units import duration, memory, nats, percent
from flows.workspace import Workspace

ROLES = ("baseline", "random", "pretrained")

ERROR = " ±"
"""Ending of the name of a figure's standard error over the seeds."""

Figures = dict[str, float]

MOST_LINES = 7
NAME_WIDTH = 15


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


def terminal_lines(summary: Summary) -> list[str]:
    """The title and what most deserves to be known, most important first."""
    facts = [f"  {name:<{NAME_WIDTH}} {fact}" for name, fact in _facts(summary)]
    return [summary.title, *facts][:MOST_LINES]


def _facts(summary: Summary) -> Iterator[tuple[str, str]]:
    model = wording.headline(summary)
    init = wording.began_from(summary)
    if init:
        yield "began from", "; ".join(part for part in (init, wording.before(summary)) if part)
    if general := wording.forgotten(summary):
        yield "general text", general
    if model:
        where = wording.split_name(summary, model.split)
        yield (
            "MLM accuracy",
            f"{percent(model.mlm_accuracy)} on {where} "
            f"(n-gram baseline {percent(model.count_model_accuracy)})",
        )
        yield (
            "MLM loss",
            f"{nats(model.mlm_loss)} (n-gram baseline {nats(model.count_model_loss)}, "
            f"unigram entropy {nats(model.unigram_entropy)})",
        )
    for task in summary.tasks[:2]:
        if found := wording.search_found(task):
            yield "search", found
        yield wording.task_name(task.name).lower(), _task(task)
    if model and model.next_sentence_accuracy is not None:
        majority = percent(model.next_sentence_majority or 0.0)
        yield "NSP accuracy", f"{percent(model.next_sentence_accuracy)} (majority {majority})"
    seconds = sum(step.seconds or 0.0 for step in summary.steps)
    if seconds:
        peak = max((step.peak_memory or 0 for step in summary.steps), default=0)
        yield "cost", f"{duration(seconds)}" + (f", {memory(peak)} at most" if peak else "")


def _task(task: TaskScore) -> str:
    """The encoder's own score, then the verdict."""
    split = wording.shown_split(task)
    ours = [system for system in task.systems if system.role == "pretrained"]
    scores = wording.scores_on(ours[0], split).get(task.metric) if ours else None
    metric = wording.metric_name(task.metric)
    own = f"{metric} {wording.spread_words(scores)} on {split}. " if scores else ""
    return f"{own}{wording.verdict_sentence(task)}".rstrip()
