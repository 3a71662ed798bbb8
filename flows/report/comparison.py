"""Several runs side by side: one page in the report's form that loads nothing.

In:  the runs' summaries, and a table of their settings and figures.
Out: HTML: the held-out loss of every run over its steps, each before all the others; the table.
"""

from collections.abc import Mapping, Sequence

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
    charts = []
    for name, own in courses.items():  # each in front of all the others, on the same axes
        others = [Line(places, "other") for other, places in courses.items() if other != name]
        step, loss = own[-1]
        chart = LineChart(
            lines=[*others, Line(own, "ours", label=f"{loss:.2f}")],
            x_label="steps",
            y_label=name,
            x_text=short,
            y_text=lambda loss: f"{loss:.2f}",
        )
        label = f"{name}: held-out loss {loss:.2f} nats after {step:,.0f} steps"
        charts.append(line_chart(chart, width=HALF, height=HEIGHT, label=label))
    return (
        environment()
        .get_template("comparison.html.j2")
        .render(
            style=style(),
            names=rows[0][1:],
            head=rows[0],
            rows=rows[1:],
            notes=notes,
            charts=charts,
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
