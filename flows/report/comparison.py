"""Several runs side by side: one page in the report's form that loads nothing.

In:  the runs' summaries, and a table of their settings and figures.
Out: HTML: the held-out loss of every run over its steps, each before all the others; the table.
"""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from artifacts.summary import Summary
from flows.report.charts import Line, LineChart, Places, line_chart
from flows.report.page import environment, style
from flows.report.plots import HALF
from flows.report.units import short

HEIGHT = 210
"""Pixels of one run's chart."""


def comparison_page(
    summaries: Mapping[str, Summary], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    """The whole page; `rows` has a head, and a column for each run after the names."""
    courses = {name: course for name, one in summaries.items() if (course := heldout_course(one))}
    return (
        environment()
        .get_template("comparison.html.j2")
        .render(
            style=style(),
            names=rows[0][1:],
            head=rows[0],
            rows=rows[1:],
            notes=notes,
            charts=[_chart(name, courses) for name in courses],
        )
    )


def heldout_course(summary: Summary) -> Places:
    """(step, masked-LM loss on held-out examples) at each evaluation during training."""
    points = summary.pretraining.curve if summary.pretraining else ()
    return [
        (float(point.step), evaluated.mlm_loss)
        for point in points
        for evaluated in point.heldout.values()
    ]


def _chart(name: str, courses: Mapping[str, Places]) -> Markup:
    """One run's course with its last loss, on the axes of all."""
    others = [Line(places, "other") for other, places in courses.items() if other != name]
    last = courses[name][-1]
    chart = LineChart(
        lines=[*others, Line(courses[name], "ours", label=f"{last[1]:.2f}")],
        x_label="steps",
        y_label=name,
        x_text=short,
        y_text=lambda loss: f"{loss:.2f}",
    )
    label = f"{name}: held-out loss {last[1]:.2f} nats after {last[0]:,.0f} steps"
    return line_chart(chart, width=HALF, height=HEIGHT, label=label)
