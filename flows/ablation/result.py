"""The result of an ablation: tables, the learning curves of their rows, and where they are kept.

In:  the rows, and the summaries of their runs.
Out: `<workspace>/<run>-ablations/` with ablations.json for programs and ablations.html for people:
     one file that loads nothing. A figure and its standard error share a cell.
"""

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import TypedDict

from markupsafe import Markup, escape

from artifacts import filesystem
from artifacts.errors import ClozeError
from artifacts.summary import Summary
from flows.ablation.rows import Row
from flows.config import RunConfig
from flows.figures import ERROR, Figures, figures, read_summary
from flows.report.charts import Line, LineChart, line_chart
from flows.report.units import short
from flows.workspace import Workspace

PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title><style>{style}</style></head>
<body><main><header><p class="kicker">Cloze</p><h1>{title}</h1></header>{sections}</main></body>
</html>
"""
QUESTIONS = {
    "objective": "What next-sentence prediction and bidirectionality contribute (paper, Table 5).",
    "size": "What depth and width contribute (paper, Table 6, relative to this encoder).",
    "masking": "What should replace a predicted token (paper, Table 8).",
}
NOTE = "Task scores are means ± their standard errors over the seeds {}; pre-training has one."
WIDTH, HEIGHT = 700, 320

Results = Mapping[str, Summary]
"""Summary by the run's name."""

TextTable = list[tuple[str, ...]]
"""Lines of cells; the first is the header."""


class RowData(TypedDict):
    """One row of `ablations.json`."""

    table: str
    row: str
    run: str
    figures: Figures


class AblationData(TypedDict):
    """What `ablations.json` holds."""

    page: str
    """Where ablations.html lies."""
    seeds: list[int]
    """Of fine-tuning: means and errors are taken over them."""
    tables: dict[str, TextTable]
    """As they are shown."""
    rows: list[RowData]
    """Every figure of every row."""


def publish(run: RunConfig, rows: Sequence[Row], space: Workspace) -> AblationData:
    """Write the page and the data of the finished rows."""
    results = {}
    for row in rows:
        summary = read_summary(space, row.run.name)
        if summary is None:
            raise ClozeError(f"run {row.run.name} ended without a summary; see its report stage")
        results[row.run.name] = summary
    folder = space.run_folder(f"{run.name}-ablations")
    page = filesystem.join(folder, "ablations.html")
    data = as_data(rows, results, page=page)
    content = (json.dumps(data, indent=1) + "\n").encode()
    filesystem.write_bytes(filesystem.join(folder, "ablations.json"), content)
    title = run.report.title or f"{run.name}: ablations"
    filesystem.write_bytes(page, as_page(rows, results, title=title).encode())
    return data


def as_data(rows: Sequence[Row], results: Results, *, page: str) -> AblationData:
    """Every figure of every row, and the tables as they are shown."""
    names = dict.fromkeys(row.table for row in rows)
    return {
        "page": page,
        "seeds": list(seeds(results)),
        "tables": {
            name: table([row for row in rows if row.table == name], results) for name in names
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


def table(rows: Sequence[Row], results: Results) -> TextTable:
    """The figures of `rows`, a line each; a row that lacks a figure has an empty cell."""
    known = {row.name: figures(results[row.run.name], roles=("pretrained",)) for row in rows}
    found = dict.fromkeys(name for one in known.values() for name in one)
    names = [name for name in found if not name.endswith(ERROR)]
    lines: TextTable = [("", *names)]
    for row, one in known.items():
        errors = {name: one.get(f"{name}{ERROR}") for name in names}
        cells = [
            f"{one[name]:.4g}" + (f" ± {errors[name]:.2g}" if errors[name] else "")
            if name in one
            else ""
            for name in names
        ]
        lines.append((row, *cells))
    return lines


def seeds(results: Results) -> tuple[int, ...]:
    """The fine-tuning seeds over which means and errors are taken."""
    found = {seed for one in results.values() for task in one.tasks for seed in task.seeds}
    return tuple(sorted(found))


def as_page(rows: Sequence[Row], results: Results, *, title: str) -> str:
    """The tables and their curves."""
    trained = seeds(results)
    note = NOTE.format(", ".join(str(seed) for seed in trained)) if trained else ""
    sections = []
    for name in dict.fromkeys(row.table for row in rows):
        members = [row for row in rows if row.table == name]
        sections.append(
            Markup("<section><div><h2>{}</h2><p>{} {}</p>{}{}</div></section>").format(
                name.capitalize(),
                QUESTIONS[name],
                note,
                _html_table(table(members, results)),
                _learning_curves(members, results),
            )
        )
    style = resources.files("flows.report").joinpath("templates/report.css").read_text()
    return PAGE.format(title=escape(title), style=style, sections=Markup("").join(sections))


def _html_table(lines: TextTable) -> Markup:
    header, *body = lines
    head = Markup("").join(Markup("<th>{}</th>").format(name) for name in header)
    rows = Markup("").join(
        Markup("<tr><th>{}</th>{}</tr>").format(
            row, Markup("").join(Markup("<td>{}</td>").format(cell) for cell in cells)
        )
        for row, *cells in body
    )
    return Markup("<table><thead><tr>{}</tr></thead><tbody>{}</tbody></table>").format(head, rows)


def _learning_curves(rows: Sequence[Row], results: Results) -> Markup:
    """Held-out loss over steps, a line a row (the paper's Figure 5 for the objectives)."""
    lines = []
    for number, row in enumerate(rows):
        training = results[row.run.name].pretraining
        points = training.curve if training else ()
        split = next((name for point in points for name in sorted(point.heldout)), "")
        places = [
            (float(point.step), point.heldout[split].mlm_loss)
            for point in points
            if split in point.heldout
        ]
        if len(places) > 1:
            lines.append(Line(places, "other" if number else "ours", row.name))
    if not lines:
        return Markup("")
    chart = LineChart(
        lines=lines,
        x_label="steps",
        y_label="held-out MLM loss, nats",
        x_text=short,
        y_text=lambda value: f"{value:g}",
    )
    return line_chart(chart, width=WIDTH, height=HEIGHT, label="held-out loss over steps")
