"""The last lines of a run: its headline figures, for a terminal.

In:  `Summary`, or the path of the `summary.json` in which one lies.
Out: at most six lines of plain text.
"""

from collections.abc import Iterator

from pydantic import ValidationError

from artifacts import filesystem
from artifacts.summary import Summary
from flows.report import wording as words
from flows.report.units import duration, memory, nats, percent

MOST = 6
NAME_WIDTH = 15


def lines(summary: Summary) -> list[str]:
    """The title and what most deserves to be known, most important first."""
    return [summary.title, *_facts(summary)][:MOST]


def read_lines(path: str) -> list[str]:
    """The lines of the `summary.json` at `path`; none if there is no such file or form."""
    try:
        return lines(Summary.model_validate_json(filesystem.read_bytes(path)))
    except (FileNotFoundError, ValidationError):
        return []  # a run of some stages only, or a summary that another version wrote


def _facts(summary: Summary) -> Iterator[str]:
    model = words.headline(summary)
    if model:
        where = words.split_name(summary, model.split)
        yield _line(
            "hidden words",
            f"{percent(model.mlm_accuracy)} right on {where} "
            f"(neighbour counts {percent(model.count_model_accuracy)})",
        )
        yield _line(
            "loss",
            f"{nats(model.mlm_loss)} (neighbour counts {nats(model.count_model_loss)}, "
            f"word frequencies {nats(model.unigram_entropy)})",
        )
    for task in summary.tasks[:2]:
        judgement = words.judgement(task)
        if judgement:
            yield _line(words.task_name(task.name).lower(), judgement)
    if model and model.next_sentence_accuracy is not None:
        majority = percent(model.next_sentence_majority or 0.0)
        accuracy = percent(model.next_sentence_accuracy)
        yield _line("next sentence", f"{accuracy} right (always the same answer {majority})")
    seconds = sum(step.seconds or 0.0 for step in summary.steps)
    if seconds:
        peak = max((step.peak_memory or 0 for step in summary.steps), default=0)
        yield _line("cost", f"{duration(seconds)}" + (f", {memory(peak)} at most" if peak else ""))


def _line(name: str, fact: str) -> str:
    return f"  {name:<{NAME_WIDTH}} {fact}"
