"""The figures of quality and cost: which marks each part of the summary becomes.

In:  parts of a `Summary`.
Out: markup: the same graphic drawn for a desk and for a phone; the style sheet shows one of them.
"""

from collections.abc import Callable

from markupsafe import Markup

from artifacts.results import (
    Comparison,
    Confusion,
    LanguageModelScore,
    ReferenceScore,
    SeedScores,
    SystemScore,
    TaskScore,
)
from artifacts.summary import Step
from flows.report.charts.columns import shades
from flows.report.charts.rows import Row, bars
from flows.report.charts.spread import Scores, Spread, spread
from flows.report.units import duration, memory, nats, percent
from flows.report.wording import spread_words, system_name, task_name, verdict

WIDE = 700
NARROW = 350
LABELS = 132
"""Pixels: a column of the desk, a phone, the names in front of bars."""

ROLES = {"baseline": "quiet", "random": "other", "pretrained": "ours"}


def twice(draw: Callable[[int], Markup], *, wide: int = WIDE) -> Markup:
    """`draw` for a desk and for a phone; so text is never scaled down."""
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(
        draw(wide), draw(NARROW)
    )


def quality(model: LanguageModelScore) -> Markup:
    """Loss and accuracy of the masked words, baselines above ours."""
    pair = Markup('<div class="pair">{}{}</div>')
    stack = Markup('<div class="stack"><h4>{}</h4>{}<h4>{}</h4>{}</div>')
    headings = ("loss, nats per hidden word", "hidden words guessed right")
    wide = pair.format(
        _panel(headings[0], loss_bars(model, width=418, labels=LABELS), indent=LABELS),
        _panel(headings[1], accuracy_bars(model, width=262, labels=0), indent=0),
    )
    narrow = stack.format(
        headings[0],
        loss_bars(model, width=NARROW, labels=LABELS),
        headings[1],
        accuracy_bars(model, width=NARROW, labels=LABELS),
    )
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def loss_bars(model: LanguageModelScore, *, width: int, labels: int) -> Markup:
    """Shorter is better."""
    rows = [
        Row("untrained encoder", model.random_mlm_loss, nats(model.random_mlm_loss)),
        Row("word frequencies", model.unigram_entropy, nats(model.unigram_entropy)),
        Row("neighbour counts", model.count_model_loss, nats(model.count_model_loss)),
        Row("this encoder", model.mlm_loss, nats(model.mlm_loss), kind="ours"),
    ]
    return bars(rows, width=width, labels=labels, label="masked-word loss beside baselines")


def accuracy_bars(model: LanguageModelScore, *, width: int, labels: int) -> Markup:
    """Longer is better. The untrained encoder's accuracy is not measured: one in the vocabulary."""
    shares = {
        "word frequencies": model.unigram_accuracy,
        "neighbour counts": model.count_model_accuracy,
        "this encoder": model.mlm_accuracy,
    }
    rows = [Row("untrained encoder", 0.0, "chance")]
    rows += [Row(name, share, percent(share)) for name, share in shares.items()]
    rows[-1] = Row("this encoder", model.mlm_accuracy, percent(model.mlm_accuracy), kind="ours")
    return bars(rows, width=width, labels=labels, label="masked-word accuracy beside baselines")


def next_sentence(model: LanguageModelScore, *, length_only: float | None) -> Markup:
    """Accuracy beside what a constant and what length alone reach."""
    rows = [Row("always the same answer", model.next_sentence_majority or 0.0, "")]
    rows += [Row("length alone", length_only, "")] if length_only else []
    rows.append(Row("this encoder", model.next_sentence_accuracy or 0.0, "", kind="ours"))
    shown = [
        Row(row.label, row.value, percent(row.value), kind=row.kind, tip=row.tip) for row in rows
    ]
    return twice(
        lambda width: bars(
            shown, width=width, longest=1.0, labels=160, label="next-sentence accuracy"
        ),
        wide=460,
    )


def task_spread(task: TaskScore, *, split: str) -> Markup:
    """Every seed of every system on one axis, and an arrow from what ours is compared with."""
    rows = {
        system.name: _scores(system, measured)
        for system in task.systems
        if (measured := (system.test if split == "test" else system.dev).get(task.metric))
    }
    published = [score for score in task.published if score.metric == task.metric]
    chart = Spread(
        rows=list(rows.values()),
        compared=_compared(verdict(task), list(rows)),
        published=_published(published, split=split),
    )
    label = f"{task_name(task.name)}: {task.metric} of every seed"
    return twice(lambda width: spread(chart, width=width, label=label))


def confusion(matrix: Confusion) -> Markup:
    """Which label was taken for which."""
    return Markup('<div class="half">{}</div>').format(
        shades(matrix.counts, matrix.labels, width=336, label="confusion matrix")
    )


def stage_time(steps: list[Step], *, width: int, labels: int) -> Markup:
    """Wall-clock of every stage."""
    rows = [
        Row(step.stage, step.seconds or 0.0, _or_dash(step.seconds, duration)) for step in steps
    ]
    return bars(_darkened(rows), width=width, labels=labels, label="time of each stage")


def stage_memory(steps: list[Step], *, width: int, labels: int) -> Markup:
    """Peak memory of every stage, all its processes together."""
    rows = [
        Row(step.stage, float(step.peak_memory or 0), _or_dash(step.peak_memory, memory))
        for step in steps
    ]
    return bars(_darkened(rows), width=width, labels=labels, label="peak memory of each stage")


def stages(steps: list[Step]) -> Markup:
    """Time and memory side by side."""
    wide = Markup('<div class="pair">{}{}</div>').format(
        _panel("time", stage_time(steps, width=400, labels=86), indent=86),
        _panel("peak memory", stage_memory(steps, width=280, labels=0), indent=0),
    )
    narrow = Markup('<div class="stack"><h4>time</h4>{}<h4>peak memory</h4>{}</div>').format(
        stage_time(steps, width=NARROW, labels=86), stage_memory(steps, width=NARROW, labels=86)
    )
    return Markup('<div class="wide">{}</div><div class="narrow">{}</div>').format(wide, narrow)


def _panel(heading: str, chart: Markup, *, indent: int) -> Markup:
    return Markup('<div><h4 style="padding-left:{}px">{}</h4>{}</div>').format(
        indent, heading, chart
    )


def _darkened(rows: list[Row]) -> list[Row]:
    """The longest bar darker: it is the one worth shortening."""
    longest = max((row.value for row in rows), default=0.0)
    return [
        Row(row.label, row.value, row.shown, kind="main" if row.value == longest > 0 else "other")
        for row in rows
    ]


def _scores(system: SystemScore, measured: SeedScores) -> Scores:
    return Scores(
        label=system_name(system.name),
        kind=ROLES[system.role],
        values=[100 * value for value in measured.values],
        mean=100 * measured.mean,
        standard_error=100 * measured.standard_error,
        shown=spread_words(measured),
    )


def _compared(comparison: Comparison | None, names: list[str]) -> tuple[int, int] | None:
    if comparison is None or not {comparison.system, comparison.against} <= set(names):
        return None
    return names.index(comparison.against), names.index(comparison.system)


def _published(scores: list[ReferenceScore], *, split: str) -> tuple[float, str] | None:
    """The figure on this split; on the other one, where papers have no more."""
    score = min(scores, key=lambda score: score.split != split, default=None)
    return (100 * score.value, f"{score.system} {100 * score.value:.1f}") if score else None


def _or_dash(value: float | None, write: Callable[[float], str]) -> str:
    return write(value) if value is not None else "–"
