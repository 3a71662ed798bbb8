"""The pages: the report of a run, or several runs side by side, each a self-contained HTML file.

In:  `Summary`; for a comparison, the runs' summaries, and a table of their settings and figures.
Out: HTML with the style sheet and all figures inlined. A comparison has a chart for each run, which
     shows its held-out loss in front of all others, and the table.

Jinja2 escapes everything that comes from a run; `charts.py` escapes the text of figures.
"""

from collections.abc import Mapping, Sequence
from importlib import resources
from itertools import chain

import tomli_w
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from pydantic import JsonValue

from cloze.artifacts.results import plus_minus
from cloze.flows.report import plots, wording
from cloze.flows.report.charts import ChartLine, LineChart, line_chart
from cloze.flows.report.summary import Summary
from cloze.flows.report.units import (
    duration,
    integer,
    memory,
    nats,
    percent,
    probability,
    short,
    signed,
    small_percent,
    three_digits,
)

MASK = "[MASK]"
STYLE = "templates/report.css"

MANY_TASKS = 4
"""With more tasks than this, the table of all scores comes first."""

RUN_HEIGHT = 210
"""Pixels of one run's chart in a comparison."""


def render(summary: Summary) -> str:
    """The complete page."""
    training, steps = summary.pretraining, summary.steps
    finished = max((step.finished_at for step in steps), default="")
    versions: dict[str, set[str]] = {}  # usually one version of each library in all stages
    for name, version in chain.from_iterable(step.versions.items() for step in steps):
        versions.setdefault(name, set()).add(version)
    sections = (
        ("student", "Teacher and student", summary.distillation),
        ("learning", wording.training_name(summary), training and training.curve),
        ("sentences", "Masked sentences", summary.sentences),
        ("heldout", "Held-out text", summary.language_model),
        ("transfer", "Fine-tuning", summary.tasks),
        ("corpus", "Corpus", summary.corpus or summary.examples or summary.added_words),
        ("cost", "Cost", True),
        ("repeat", "Reproducing this run", True),
    )
    timed = [step for step in steps if step.seconds is not None]
    return fill(
        "report.html.j2",
        summary=summary,
        words=wording,
        plots=plots,
        headline=summary.headline,
        steps={step.stage: step for step in steps},
        sections=[(anchor, name) for anchor, name, present in sections if present],
        tallies=wording.tallies(summary),
        many_tasks=len(summary.tasks) > MANY_TASKS,
        several_lengths=len({one.max_seq_length for one in summary.language_model}) > 1,
        length_only=next(
            (e.length_only_accuracy for e in summary.examples if e.length_only_accuracy), None
        ),
        timed=timed,
        total_seconds=sum(step.seconds or 0.0 for step in timed),
        peak_memory=max((step.peak_memory or 0 for step in steps), default=0),
        finished=finished.replace("T", " ").replace("Z", " UTC"),
        toml=to_toml(summary.configuration),
        versions=", ".join(f"{name} {' and '.join(sorted(v))}" for name, v in versions.items()),
    )


def to_toml(table: Mapping[str, JsonValue]) -> str:
    """`table` as a TOML document, without None, which TOML does not have."""
    return tomli_w.dumps({k: _without_none(v) for k, v in table.items() if v is not None})


def _without_none(value: JsonValue) -> JsonValue:
    if isinstance(value, dict):
        return {k: _without_none(inner) for k, inner in value.items() if inner is not None}
    return [_without_none(inner) for inner in value] if isinstance(value, list) else value


def fill(template: str, *, package: str = "cloze.flows.report", **values: object) -> str:
    """The page made by one of a package's templates, with our style sheet, unescaped."""
    environment = Environment(
        loader=PackageLoader(package, "templates"),
        autoescape=True,
        # A misspelt name in a template is an error and not an empty place on the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    formats = (integer, percent, small_percent, probability, nats, memory, duration, three_digits)
    environment.filters.update(
        {form.__name__: form for form in formats},
        one_digit=lambda value: signed(value, digits=1),
        two_digits=lambda value: signed(value, digits=2),
        plus_minus=plus_minus,
        # the text before and after the mask
        around_gap=lambda sentence: sentence.partition(MASK)[::2],
        # nDCG@10 has its own capitals
        capitalize_first=lambda words_: (
            words_ if words_[1:2].isupper() else words_[:1].upper() + words_[1:]
        ),
    )
    style = Markup(resources.files("cloze.flows.report").joinpath(STYLE).read_text())
    return environment.get_template(template).render(style=style, **values)


def comparison_page(
    summaries: Mapping[str, Summary], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    """The complete page; `rows` starts with a header, and each row with a name, then the runs."""
    courses = {
        name: course for name, one in summaries.items() if (course := plots.heldout_course(one))
    }
    charts = []
    for name, own in courses.items():  # in front of all others, on the same axes
        others = [ChartLine(places, "other") for other, places in courses.items() if other != name]
        step, loss = own[-1]
        chart = LineChart(
            lines=[*others, ChartLine(own, "ours", label=f"{loss:.2f}")],
            x_label="steps",
            y_label=name,
            x_text=short,
            y_text="{:.2f}".format,
        )
        label = f"{name}: held-out loss {loss:.2f} nats after {step:,.0f} steps"
        charts.append(line_chart(chart, width=plots.HALF, height=RUN_HEIGHT, label=label))
    return fill(
        "comparison.html.j2",
        names=rows[0][1:],
        head=rows[0],
        rows=rows[1:],
        notes=notes,
        charts=charts,
    )
