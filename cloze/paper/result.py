"""The results of an ablation: the figures of each row, and its differences from the reference.

In:  the rows, and the summaries of their runs.
Out: `AblationResult`, which the terminal shows; ablations.json with the same content, and
     ablations.html, a self-contained page in the style of the report, both in
     `<workspace>/<run>-ablations/`.

Figures are means over pre-training seeds; for a task, the value of each seed is itself a mean over
fine-tuning seeds. Standard errors are therefore those between pre-training seeds.
"""

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from cloze.artifacts import filesystem
from cloze.artifacts.errors import ClozeError
from cloze.artifacts.results import Outcome, Result, SeedScores
from cloze.artifacts.significance import gap, holm, is_real
from cloze.flows.config import RunConfig
from cloze.flows.report.charts import ChartLine, LineChart, small_chart
from cloze.flows.report.figures import over_seeds, read_summary
from cloze.flows.report.page import fill
from cloze.flows.report.plots import heldout_course
from cloze.flows.report.summary import Summary
from cloze.flows.report.units import nats, short, signed
from cloze.flows.report.wording import metric_name, split_name, task_name
from cloze.flows.workspace import Workspace
from cloze.paper.rows import LADDERS, REFERENCE, Row, Table

QUESTIONS = {
    "objective": "How much do next-sentence prediction and bidirectional context contribute? "
    "(Paper, Table 5.)",
    "size": "How much do depth and width contribute? (Paper, Table 6, relative to this encoder.)",
    "modern": "How much does each change from BERT to ModernBERT contribute, at equal FLOPs?",
    "masking": "How should predicted tokens be replaced? (Paper, Table 8.)",
}

CLEAR = {"gain": "better", "loss": "worse"}
"""Outcomes that are called a difference, in words."""

PLATEAU_NATS = 0.1
"""A row whose loss is at most this far below the unigram loss has only learnt word frequencies."""

Results = Mapping[str, Summary]
"""Summaries by run name."""


class Column(Result):
    """A metric that is shown for every row."""

    key: str
    """Its name in `figures`."""

    title: str
    unit: str
    """`nats`, lower is better; `%`, higher is better."""

    def amount(self, value: float, *, sign: bool = False) -> str:
        """The value as text, in nats or percent."""
        scale, digits = (1.0, 2) if self.unit == "nats" else (100.0, 1)
        return signed(scale * value, digits=digits, plus=sign)

    def error(self, value: float) -> str:
        """A standard error with the same digits as its value."""
        return f"± {self.amount(value)}"


class RowDifference(Result):
    """The difference of a figure between a row and the row it is compared with."""

    difference: float
    standard_error: float
    seeds: int
    """Pre-training seeds, the fewer of the two rows."""

    better: bool
    """Whether the row's figure is better, by any amount."""

    interval: tuple[float, float] | None = None
    """The 95 % interval of the difference; None if the seeds do not determine it."""

    p_value: float | None = None
    """Of a two-sided t-test over pre-training seeds; None if they do not determine it."""

    corrected: float | None = None
    """The p-value after Holm's correction for all differences of the table."""

    @classmethod
    def between(cls, column: Column, ours: SeedScores, reference: SeedScores) -> "RowDifference":
        """The difference of two rows, which are paired by seed if they have as many."""
        seeds = min(len(ours.values), len(reference.values))
        # All rows are trained with the same seeds in the same order, so places in it stand for
        # them.
        found = gap(dict(enumerate(ours.values)), dict(enumerate(reference.values)))
        return cls(
            difference=found.mean,
            standard_error=found.standard_error,
            seeds=seeds,
            better=found.mean < 0 if column.unit == "nats" else found.mean > 0,
            interval=found.interval,
            # `gap` takes a side with one value for deterministic, which training with one seed is
            # not.
            p_value=found.p_value if seeds > 1 else None,
        )

    @property
    def outcome(self) -> Outcome:
        """By the rule of artifacts/significance.py."""
        real = is_real(self.corrected, seeds=self.seeds)
        if real is None:
            return "undecided"
        return ("gain" if self.better else "loss") if real else "none"


class RowResult(Result):
    """One row."""

    name: str
    title: str
    runs: tuple[str, ...]
    """Names of its runs, one for each pre-training seed."""

    figures: dict[str, SeedScores]
    """Figures over the pre-training seeds by the column's key; unmeasured ones are missing."""

    differences: dict[str, RowDifference]
    """Differences from the reference row, in a ladder from the row before, by the column's key."""

    curve: tuple[tuple[int, float], ...] = ()
    """Held-out loss by step of the first run, on examples made like its training examples."""

    on_plateau: bool
    """Whether it has only learnt word frequencies."""


class TableResult(Result):
    """One table."""

    name: Table
    reference: str
    """The row that the others are compared with; in a ladder, the first row."""

    heldout: str
    """Name of the held-out examples on which all rows are evaluated."""

    masked_tokens: int
    """Number of predicted tokens in them."""

    unigram_loss: float | None
    """Loss of a unigram model on the same tokens; None without held-out text."""

    unigram_accuracy: float | None
    columns: tuple[Column, ...]
    rows: tuple[RowResult, ...]

    @property
    def reference_title(self) -> str:
        """The row that rows are compared with, as in headings."""
        if self.name in LADDERS:
            return "the previous rung"
        return next(row.title for row in self.rows if row.name == self.reference)


class AblationResult(Result):
    """The content of `ablations.json`."""

    title: str
    page: str
    """Path or URL of ablations.html."""

    seeds: tuple[int, ...]
    """Fine-tuning seeds."""

    tables: tuple[TableResult, ...]


def ablation_result(
    run: RunConfig, rows: Sequence[Row], results: Results, *, page: str
) -> AblationResult:
    """The figures of finished rows."""
    names = dict.fromkeys(row.table for row in rows)
    trained = {seed for one in results.values() for task in one.tasks for seed in task.seeds}
    return AblationResult(
        title=run.report.title or f"{run.name}: ablations",
        page=page,
        seeds=tuple(sorted(trained)),
        tables=tuple(
            _table(name, [row for row in rows if row.table == name], results) for name in names
        ),
    )


def _table(name: Table, rows: Sequence[Row], results: Results) -> TableResult:
    measured = {
        row.name: [pair for run in row.runs for pair in _figures(results[run.name])] for row in rows
    }
    columns = dict.fromkeys(column for pairs in measured.values() for column, _ in pairs)
    figures = {
        row_name: over_seeds((column.key, value) for column, value in pairs)
        for row_name, pairs in measured.items()
    }
    reference = rows[REFERENCE[name]]
    names = [row.name for row in rows]
    # In a ladder, the row before; the first row is compared with itself, which is left out below.
    compared = [names[0], *names[:-1]] if name in LADDERS else [reference.name] * len(rows)
    first = results[reference.runs[0].name]
    model = first.language_model[0] if first.language_model else None
    found_rows = []
    for row, before in zip(rows, compared, strict=True):
        own, other = figures[row.name], figures[before]
        # decided by the worst pre-training seed
        on_plateau = model and own["loss"].maximum > model.unigram_loss - PLATEAU_NATS
        differences = {
            column.key: RowDifference.between(column, own[column.key], other[column.key])
            for column in columns
            if row.name != before and column.key in own.keys() & other.keys()
        }
        found_rows.append(
            RowResult(
                name=row.name,
                title=row.title,
                runs=tuple(run.name for run in row.runs),
                figures=own,
                differences=differences,
                curve=tuple(heldout_course(results[row.runs[0].name])),
                on_plateau=bool(on_plateau),
            )
        )
    return TableResult(
        name=name,
        reference=reference.name,
        heldout=split_name(first, model.split) if model else "",
        masked_tokens=model.masked_tokens if model else 0,
        unigram_loss=model.unigram_loss if model else None,
        unigram_accuracy=model.unigram_accuracy if model else None,
        columns=tuple(columns),
        rows=corrected(found_rows),
    )


def corrected(rows: Sequence[RowResult]) -> tuple[RowResult, ...]:
    """The rows of one table, with p-values corrected for the number of its differences."""
    differences = [one for row in rows for one in row.differences.values()]
    # Taken below in the order in which `differences` lists them.
    p_values = iter(holm([one.p_value for one in differences]))
    return tuple(
        row.model_copy(
            update={
                "differences": {
                    key: one.model_copy(update={"corrected": next(p_values)})
                    for key, one in row.differences.items()
                }
            }
        )
        for row in rows
    )


def _figures(summary: Summary) -> list[tuple[Column, float]]:
    """The figures of one run, in the order of the columns."""
    found = []
    # The headline's split alone.
    for model in summary.language_model[:1]:
        loss = Column(key="loss", title="held-out loss", unit="nats")
        accuracy = Column(key="accuracy", title="top-1 accuracy", unit="%")
        found += [(loss, model.mlm_loss), (accuracy, model.mlm_accuracy)]
    for task in summary.tasks:
        for system in task.systems:
            # on test if it has labels, else on dev
            scores = (system.test or system.dev).get(task.metric)
            if system.role != "pretrained" or scores is None:
                continue
            ways = {"pretrained": "fine-tuned", "pretrained-ensemble": "ensemble"}
            way = ways.get(system.name, "features")
            column = Column(
                key=f"{task.name} {system.name}",
                title=f"{task_name(task.name)}, {way}: {metric_name(task.metric)}",
                unit="%",
            )
            found.append((column, scores.mean))
    return found


def cell(column: Column, scores: SeedScores | None) -> tuple[str, str]:
    """The texts of a figure and its error in a table; empty if there is none."""
    if scores is None:
        return "", ""
    error = column.error(scores.standard_error) if scores.standard_error else ""
    return column.amount(scores.mean), error


def difference_words(column: Column, found: RowDifference | None) -> str:
    """`+1.2 ± 0.3 better`; `no verdict` with too few seeds."""
    if found is None:
        return ""
    amount = column.amount(found.difference, sign=True)
    if found.outcome == "undecided":
        return f"{amount}, no verdict"
    word = CLEAR.get(found.outcome, "no clear difference")
    significance = "" if found.corrected is None else f", p = {found.corrected:.2g}"
    return f"{amount} {column.error(found.standard_error)} {word}{significance}"


def clear_differences(table: TableResult) -> list[str]:
    """Sentences on the clear differences in a table, one for each row."""
    sentences = []
    for row in table.rows:
        clear = [
            f"{column.title} {column.amount(abs(found.difference))} "
            f"{'nats' if column.unit == 'nats' else 'points'} {CLEAR[found.outcome]}"
            for column in table.columns
            if (found := row.differences.get(column.key)) and found.outcome in CLEAR
        ]
        if clear:
            sentences.append(f"{row.title}: {'; '.join(clear)}.")
        elif row.differences and all(d.outcome == "none" for d in row.differences.values()):
            sentences.append(f"{row.title}: no clear difference in any figure.")
    return sentences


def publish(run: RunConfig, rows: Sequence[Row], space: Workspace) -> AblationResult:
    """Write ablations.html and ablations.json for the finished rows."""
    folder = space.run_folder(f"{run.name}-ablations")
    page = filesystem.join(folder, "ablations.html")
    results = {}
    for name in (one.name for row in rows for one in row.runs):
        summary = read_summary(space, name)
        if summary is None:
            raise ClozeError(f"run {name} has no summary; see the log of its report stage")
        results[name] = summary
    result = ablation_result(run, rows, results, page=page)
    content = result.model_dump_json(indent=1) + "\n"
    filesystem.write_bytes(filesystem.join(folder, "ablations.json"), content.encode())
    filesystem.write_bytes(page, as_page(result).encode())
    return result


def as_page(result: AblationResult) -> str:
    """The complete page."""
    return fill(
        "ablations.html.j2",
        package="cloze.paper",
        result=result,
        questions=QUESTIONS,
        plateau=nats(PLATEAU_NATS),
        cell=cell,
        difference_words=difference_words,
        lede=clear_differences,
        curve=curve,
    )


def curve(table: TableResult, row: RowResult) -> Markup:
    """The row's loss by step with the unigram loss as a reference; empty without a curve."""
    if len(row.curve) < 2:
        return Markup("")
    places = [(float(step), loss) for step, loss in row.curve]
    chart = LineChart(
        lines=[ChartLine(places, "ours" if row.name == table.reference else "other")],
        x_label="steps",
        y_label=row.name,
        x_text=short,
        y_text=lambda value: f"{value:.1f}",
        references=[] if table.unigram_loss is None else [(table.unigram_loss, "")],
    )
    return small_chart(chart, label=f"held-out loss over steps, {row.title}")
