"""The page of an ablation: one HTML file in the report's form that loads nothing.

In:  `AblationResult`.
Out: HTML: for each table what it says, its figures, the differences and what they mean, and each
     row's own curve.
"""

from collections.abc import Sequence

from markupsafe import Markup

from artifacts import filesystem
from flows.ablation.result import (
    PLATEAU_NATS,
    AblationResult,
    RowResult,
    TableResult,
    ablation_result,
    cell,
    difference_words,
    lede,
    read_results,
)
from flows.ablation.rows import Row
from flows.config import RunConfig
from flows.report.charts import Line, LineChart, small_chart
from flows.report.page import environment, style
from flows.report.units import nats, short
from flows.workspace import Workspace

QUESTIONS = {
    "objective": "What are next sentences worth, and what is seeing both sides? (Paper, Table 5.)",
    "size": "What are depth and width worth? (Paper, Table 6, relative to this encoder.)",
    "modern": "What is each change from BERT to ModernBERT worth, at the same FLOPs?",
    "masking": "What should stand in the place of a predicted token? (Paper, Table 8.)",
}


def publish(run: RunConfig, rows: Sequence[Row], space: Workspace) -> AblationResult:
    """Write ablations.html and ablations.json of finished rows beside their runs."""
    folder = space.run_folder(f"{run.name}-ablations")
    page = filesystem.join(folder, "ablations.html")
    result = ablation_result(run, rows, read_results(rows, space), page=page)
    content = result.model_dump_json(indent=1) + "\n"
    filesystem.write_bytes(filesystem.join(folder, "ablations.json"), content.encode())
    filesystem.write_bytes(page, as_page(result).encode())
    return result


def as_page(result: AblationResult) -> str:
    """The whole page."""
    return (
        environment()
        .get_template("ablations.html.j2")
        .render(
            result=result,
            style=style(),
            questions=QUESTIONS,
            plateau=nats(PLATEAU_NATS),
            cell=cell,
            difference_words=difference_words,
            lede=lede,
            curve=curve,
        )
    )


def curve(table: TableResult, row: RowResult) -> Markup:
    """The row's loss by step beside the word frequencies; empty where there is nothing to see."""
    if len(row.curve) < 2:
        return Markup("")
    places = [(float(step), loss) for step, loss in row.curve]
    chart = LineChart(
        lines=[Line(places, "ours" if row.name == table.reference else "other")],
        x_label="steps",
        y_label=row.name,
        x_text=short,
        y_text=lambda value: f"{value:.1f}",
        references=[] if table.unigram_loss is None else [(table.unigram_loss, "")],
    )
    return small_chart(chart, label=f"held-out loss over steps, {row.title}")
