"""Several runs side by side, on one self-contained page in the style of the report.

In:  the runs' summaries, and a table of their settings and figures.
Out: HTML with a chart for each run, which shows its held-out loss in front of all others, and the
     table.
"""

from collections.abc import Mapping, Sequence

from artifacts.summary import Summary
from flows.report.charts import Line, LineChart, line_chart
from flows.report.learning_curve import heldout_course
from flows.report.page import environment, style
from flows.report.plots import HALF
from flows.report.units import short

HEIGHT = 210
"""Pixels of one run's chart."""


def comparison_page(
    summaries: Mapping[str, Summary], rows: Sequence[Sequence[str]], notes: Sequence[str]
) -> str:
    """The complete page; `rows` starts with a header, and each row with a name, then the runs."""
    courses = {name: course for name, one in summaries.items() if (course := heldout_course(one))}
    charts = []
    for name, own in courses.items():  # in front of all others, on the same axes
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
    template = environment().get_template("comparison.html.j2")
    return template.render(
        style=style(),
        names=rows[0][1:],
        head=rows[0],
        rows=rows[1:],
        notes=notes,
        charts=charts,
    )
