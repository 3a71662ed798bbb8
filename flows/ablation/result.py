"""The result of an ablation: a table and the learning curves of its rows.

In:  the summaries of the rows' runs.
Out: ablations.json for programs, ablations.html for people: one file that loads nothing.
"""

import json
from collections.abc import Iterator, Sequence
from importlib import resources
from typing import Any

from markupsafe import Markup, escape

from flows.ablation.rows import Row
from flows.ablation.table import Results, seeds, table
from flows.figures import figures
from flows.report.charts.curves import Chart, Series, curves
from flows.report.form.summary import Summary
from flows.report.text.numbers import short

PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style></head>
<body><main><header><p class="kicker">Cloze</p><h1>{title}</h1></header>{sections}</main></body>
</html>
"""
QUESTIONS = {
    "objective": "What next sentences and seeing both sides are worth (paper, Table 5).",
    "size": "What depth and width are worth (paper, Table 6, relative to this encoder).",
    "masking": "What should stand in the place of a predicted token (paper, Table 8).",
}
NOTE = "Task scores are means ± their standard errors over the seeds {}; pre-training has one."
WIDTH, HEIGHT = 700, 320


def as_data(rows: Sequence[Row], results: Results) -> dict[str, Any]:
    """Every figure of every row, and the tables as they are shown."""
    return {
        "seeds": list(seeds(results)),
        "tables": {
            name: table([row for row in rows if row.table == name], results)
            for name in dict.fromkeys(row.table for row in rows)
        },
        "rows": [
            {
                "table": row.table,
                "row": row.name,
                "run": row.run.name,
                "figures": figures(results[row.run.name]),
            }
            for row in rows
        ],
    }


def as_page(rows: Sequence[Row], results: Results, *, title: str) -> str:
    """The tables and their curves."""
    tables = dict.fromkeys(row.table for row in rows)
    sections = [
        section
        for name in tables
        for section in _section(name, [row for row in rows if row.table == name], results)
    ]
    style = resources.files("flows.report.page").joinpath("report.css").read_text()
    return PAGE.format(title=escape(title), style=style, sections=Markup("").join(sections))


def _section(paper_table: str, rows: Sequence[Row], results: Results) -> Iterator[Markup]:
    note = NOTE.format(", ".join(str(seed) for seed in seeds(results))) if seeds(results) else ""
    yield Markup("<section><div><h2>{}</h2><p>{} {}</p>{}{}</div></section>").format(
        paper_table.capitalize(),
        QUESTIONS[paper_table],
        note,
        _as_html(table(rows, results)),
        _curves(rows, results),
    )


def _as_html(lines: Sequence[tuple[str, ...]]) -> Markup:
    """The first line is the header."""
    header, *body = lines
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in header)
    rows = Markup("").join(
        Markup("<tr><th>{}</th>{}</tr>").format(
            row, Markup("").join(Markup("<td>{}</td>").format(cell) for cell in cells)
        )
        for row, *cells in body
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, rows)


def _curves(rows: Sequence[Row], results: Results) -> Markup:
    """Held-out loss over steps, a line a row (the paper's Figure 5 for the objectives)."""
    series = [
        Series(places, "ours" if number == 0 else "other", row.name)
        for number, row in enumerate(rows)
        if len(places := _places(results[row.run.name])) > 1
    ]
    if not series:
        return Markup("")
    chart = Chart(
        series=series,
        x_label="steps",
        y_label="held-out loss of masked words, nats",
        x_text=short,
        y_text=lambda value: f"{value:g}",
    )
    return curves(chart, width=WIDTH, height=HEIGHT, label="held-out loss over steps")


def _places(summary: Summary) -> list[tuple[float, float]]:
    """(step, loss) on the first held-out split that was looked at."""
    points = summary.pretraining.curve if summary.pretraining else ()
    split = next((name for point in points for name in sorted(point.heldout)), "")
    return [
        (float(point.step), point.heldout[split].mlm_loss)
        for point in points
        if split in point.heldout
    ]


def written(data: dict[str, Any]) -> bytes:
    """ablations.json."""
    return (json.dumps(data, indent=1) + "\n").encode()
