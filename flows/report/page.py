"""The page: a summary becomes one HTML file that loads nothing.

In:  `Summary`.
Out: HTML with the style sheet and all figures inside.

Everything from a run is escaped by jinja2; figures are built of escaped pieces (`charts.py`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import JsonValue

from artifacts.summary import Summary
from flows.report import learning_curve as learning
from flows.report import plots, units, wording

MASK = "[MASK]"
STYLE = "templates/report.css"

MANY_TASKS = 4
"""From more tasks than these on the table of all scores comes first."""


@dataclass(frozen=True)
class Tally:
    """How often one model's top prediction is correct."""

    name: str
    mine: bool
    right: tuple[bool, ...]


def render(summary: Summary) -> str:
    """The whole page."""
    training, steps = summary.pretraining, summary.steps
    peaks = [step.peak_memory for step in steps if step.peak_memory]
    splits = summary.corpus.splits if summary.corpus else ()
    finished = max((step.finished_at for step in steps), default="")
    versions: dict[str, set[str]] = {}  # mostly one of each library, for all stages
    for name, version in chain.from_iterable(step.versions.items() for step in steps):
        versions.setdefault(name, set()).add(version)
    sections = (
        ("learning", "Pre-training", training and training.curve),
        ("sentences", "Masked sentences", summary.sentences),
        ("heldout", "Held-out text", summary.language_model),
        ("transfer", "Fine-tuning", summary.tasks),
        ("corpus", "Corpus", summary.corpus or summary.examples),
        ("cost", "Cost", True),
        ("repeat", "Reproducing it", True),
    )
    timed = [step for step in steps if step.seconds is not None]
    template = environment().get_template("report.html.j2")
    return template.render(
        summary=summary,
        style=style(),
        words=wording,
        plots=plots,
        learning=learning,
        headline=wording.headline(summary),
        steps={step.stage: step for step in steps},
        contents=[(anchor, name) for anchor, name, present in sections if present],
        tallies=_tallies(summary),
        many_tasks=len(summary.tasks) > MANY_TASKS,
        several_lengths=len({one.max_seq_length for one in summary.language_model}) > 1,
        length_only=next(
            (e.length_only_accuracy for e in summary.examples if e.length_only_accuracy), None
        ),
        timed=timed,
        total_seconds=sum(step.seconds or 0.0 for step in timed),
        peak_memory=max(peaks, default=0),
        finished=finished.replace("T", " ").replace("Z", " UTC"),
        train_tokens=next((split.tokens for split in splits), 1),
        toml=to_toml(summary.configuration),
        commands=_commands(summary),
        versions=", ".join(f"{name} {' and '.join(sorted(v))}" for name, v in versions.items()),
    )


def _tallies(summary: Summary) -> list[Tally]:
    """One for each model; none where the right answers are not known."""
    known = [filled for filled in summary.sentences if filled.judged]
    systems = [guesses.system for guesses in known[0].guesses] if known else []
    return [
        Tally(
            name=wording.predictor(system),
            mine=system == "pretrained",
            right=tuple(filled.guesses[place].correct == 0 for filled in known),
        )
        for place, system in enumerate(systems)
    ]


def _commands(summary: Summary) -> list[str]:
    name, task = summary.name, summary.tasks[0].name if summary.tasks else ""
    finetune = summary.configuration.get("finetune")
    saved = isinstance(finetune, dict) and finetune.get("save", "best") == "best"
    return [
        f"cloze plan {name}.toml    # what would run, what is there already, and why",
        f"cloze run {name}.toml",
        *(
            [f"cloze export {name} my_encoder    # for transformers: AutoModelForMaskedLM"]
            if summary.pretraining
            else []
        ),
        *([f"cloze predict {name} --task {task} < new.txt"] if saved and task else []),
    ]


def to_toml(table: Mapping[str, JsonValue]) -> str:
    """`table` as a TOML document; None is left out, for TOML has none."""
    return tomli_w.dumps({k: _without_none(v) for k, v in table.items() if v is not None})


def _without_none(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {k: _without_none(inner) for k, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


@cache
def style() -> Markup:
    """The style sheet: ours, and full of > and quotes that must stay as they are."""
    return Markup(resources.files("flows.report").joinpath(STYLE).read_text())


def environment() -> Environment:
    """Where templates are found, and the filters they use."""
    environment = Environment(
        loader=PackageLoader("flows.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        integer=units.integer,
        percent=units.percent,
        nats=units.nats,
        size=units.size,
        memory=units.memory,
        duration=units.duration,
        three_digits=units.three_digits,
        one_digit=lambda value: units.signed(value, digits=1),
        two_digits=lambda value: units.signed(value, digits=2),
        small_percent=units.small_percent,
        probability=units.probability,
        around_gap=lambda sentence: sentence.partition(MASK)[::2],
        capitalize_first=lambda words_: words_[:1].upper() + words_[1:],
    )
    return environment
