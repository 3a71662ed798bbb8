"""The last lines of a run: its headline figures, for a terminal.

In:  `Summary`, or the path of the `summary.json` in which one lies.
Out: at most seven lines of plain text.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from artifacts import filesystem
from artifacts.results import TaskScore
from artifacts.summary import Summary
from flows.report import wording
from flows.report.units import duration, memory, nats, percent

MOST = 7
NAME_WIDTH = 15


def lines(summary: Summary) -> list[str]:
    """The title and what most deserves to be known, most important first."""
    facts = [f"  {name:<{NAME_WIDTH}} {fact}" for name, fact in _facts(summary)]
    return [summary.title, *facts][:MOST]


def read_lines(path: str) -> list[str]:
    """The lines of the `summary.json` at `path`; none if there is no such file or schema."""
    try:
        return lines(Summary.model_validate_json(filesystem.read_bytes(path)))
    except (FileNotFoundError, ValidationError):
        return []  # a run of some stages only, or a summary that another version wrote


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
