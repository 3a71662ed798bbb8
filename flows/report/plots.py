"""The figures of the report: which chart each part of the summary becomes.

In:  parts of a `Summary`.
Out: markup. Wide figures are drawn for a desk and for a phone; the style sheet shows one of them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise

from markupsafe import Markup

from artifacts.results import (
    Confusion,
    LanguageModelScore,
    LearningCurve,
    TaskScore,
)
from artifacts.summary import (
    Corpus,
    ExampleSet,
    Histogram,
    Pretraining,
    Step,
    Summary,
    TrainingPoint,
)
from flows.report import charts
from flows.report.charts import Bar, Line, LineChart, SystemRow
from flows.report.learning_curve import Axis, Place, course, crossing, interpolate, plateau
from flows.report.units import duration, integer, memory, nats, percent, short
from flows.report.wording import (
    headline,
    reference_shown,
    scores_on,
    split_name,
    spread_words,
    system_name,
    task_name,
    verdict,
)

WIDE, NARROW, HALF = 700, 350, 336
"""Pixels: a column of the desk, of a phone, half a column."""

LABELS = 132
"""Pixels of the names in front of bars."""

ROLES = {"baseline": "quiet", "random": "other", "pretrained": "ours"}

ABOVE_ENTROPY = 1.0
"""Nats above the unigram entropy at which the picture ends: the first seconds teach nothing."""

LONGEST_NAME = 24
"""Characters of a split's name beside a line."""

Panel = tuple[list[Bar], str, str, int]
"""Bars, their heading, what a screen reader says, and their width beside another panel."""


def twice(draw: Callable[[int], Markup], *, wide: int = WIDE) -> Markup:
    """`draw` for a desk and for a phone; so text is never scaled down."""
    pair = Markup('<div class="wide">{}</div><div class="narrow">{}</div>')
    return pair.format(draw(wide), draw(NARROW))


def side_by_side(first: Panel, second: Panel, *, names: int) -> Markup:
    """Two charts of the same bars beside each other, the second without names; or stacked.

    `names` is the width of the names.
    """
    panel = Markup('<div><h4 style="padding-left:{}px">{}</h4>{}</div>')
    pair, stack = [], []
    for (rows, heading, label, width), labels in ((first, names), (second, 0)):
        beside = charts.bars(rows, width=width, labels=labels, label=label)
        pair.append(panel.format(labels, heading, beside))
        alone = charts.bars(rows, width=NARROW, labels=names, label=label)
        stack.append(Markup("<h4>{}</h4>{}").format(heading, alone))
    return Markup(
        '<div class="wide"><div class="pair">{}{}</div></div>'
        '<div class="narrow"><div class="stack">{}{}</div></div>'
    ).format(*pair, *stack)


def half(chart: Markup, *, thin: bool = False) -> Markup:
    """A chart that takes half a column."""
    return Markup('<div class="half{}">{}</div>').format(" thin" if thin else "", chart)


def quality(model: LanguageModelScore) -> Markup:
    """Loss and accuracy on the masked tokens, baselines above ours.

    The untrained encoder's accuracy is not measured: one in the vocabulary.
    """
    loss, accuracy = model.initial_mlm_loss, model.initial_mlm_accuracy
    losses = [
        Bar("untrained encoder", model.random_mlm_loss, nats(model.random_mlm_loss)),
        Bar("word frequencies", model.unigram_entropy, nats(model.unigram_entropy)),
        Bar("n-gram baseline", model.count_model_loss, nats(model.count_model_loss)),
        *([Bar("as it came", loss, nats(loss))] if loss is not None else []),
        Bar("this encoder", model.mlm_loss, nats(model.mlm_loss), kind="ours"),
    ]
    accuracies = [
        Bar("untrained encoder", 0.0, "chance"),
        Bar("word frequencies", model.unigram_accuracy, percent(model.unigram_accuracy)),
        Bar("n-gram baseline", model.count_model_accuracy, percent(model.count_model_accuracy)),
        *([Bar("as it came", accuracy, percent(accuracy))] if accuracy is not None else []),
        Bar("this encoder", model.mlm_accuracy, percent(model.mlm_accuracy), kind="ours"),
    ]
    return side_by_side(
        (losses, "MLM loss, nats per masked token", "MLM loss", 418),
        (accuracies, "top-1 accuracy", "MLM accuracy", 262),
        names=LABELS,
    )


def stages(steps: Sequence[Step]) -> Markup:
    """Wall-clock time and peak memory of every stage; the longest bars darker."""

    def rows(values: Sequence[float], shown: Sequence[str]) -> list[Bar]:
        longest = max(values, default=0.0)
        kinds = ["main" if value == longest > 0 else "other" for value in values]
        names = [step.stage for step in steps]
        return [Bar(*row) for row in zip(names, values, shown, kinds, strict=True)]

    seconds = [step.seconds or 0.0 for step in steps]
    times = rows(seconds, [duration(value) for value in seconds])
    bytes_ = [float(step.peak_memory or 0) for step in steps]
    peaks = rows(bytes_, [memory(value) if value else "–" for value in bytes_])
    return side_by_side(
        (times, "time", "time by stage", 400),
        (peaks, "peak memory", "memory by stage", 280),
        names=86,
    )


def next_sentence(model: LanguageModelScore, *, length_only: float | None) -> Markup:
    """Accuracy beside what a constant and what length alone reach."""
    values = {
        "majority answer": model.next_sentence_majority or 0.0,
        **({"length alone": length_only} if length_only else {}),
        "this encoder": model.next_sentence_accuracy or 0.0,
    }
    rows = [
        Bar(name, value, percent(value), kind="ours" if name == "this encoder" else "other")
        for name, value in values.items()
    ]
    label = "next-sentence accuracy"
    return twice(
        lambda width: charts.bars(rows, width=width, longest=1.0, labels=LABELS, label=label),
        wide=460,
    )


def task_spread(task: TaskScore, *, split: str) -> Markup:
    """Every seed of every system on one axis, and an arrow from what ours is compared with."""
    rows = {
        system.name: SystemRow(
            label=system_name(system.name),
            kind=ROLES[system.role],
            values=[100 * value for value in scores.values],
            mean=100 * scores.mean,
            standard_error=100 * scores.standard_error,
            shown=spread_words(scores),
        )
        for system in task.systems
        if (scores := scores_on(system, split).get(task.metric))
    }
    found, names = verdict(task), list(rows)
    compared = None
    if found and {found.system, found.against} <= rows.keys():
        compared = names.index(found.against), names.index(found.system)
    reference = reference_shown(task, split=split)
    label = f"{task_name(task.name)}: {task.metric} of every seed"
    return twice(
        lambda width: charts.spread(
            list(rows.values()), width=width, label=label, compared=compared, reference=reference
        )
    )


def confusion(matrix: Confusion) -> Markup:
    """Which label was predicted for which."""
    return half(charts.shades(matrix.counts, matrix.labels, width=HALF, label="confusion matrix"))


def histogram(drawn: Histogram, *, noun: str) -> Markup:
    """Columns; borders written short."""
    edges = [short(edge) for edge in drawn.edges]
    label = f"lengths of {noun}"
    return half(charts.columns(drawn.counts, edges, width=HALF, height=170, label=label))


def frequent_pieces(corpus: Corpus, *, whole: int) -> Markup:
    """The most frequent word-pieces and their share of all."""
    rows = [Bar(piece.text, piece.count, percent(piece.count / whole)) for piece in corpus.frequent]
    label = "most frequent word-pieces"
    return half(charts.bars(rows, width=HALF, labels=64, label=label, pitch=19))


def rank_frequency(corpus: Corpus) -> Markup:
    """How fast frequency falls with rank."""
    places = [(float(rank), float(count)) for rank, count in corpus.rank_frequency if count]
    label = "frequency of word-pieces by rank"
    return half(charts.log_log(places, width=HALF, height=230, label=label))


def fate(corpus: Corpus) -> Markup:
    """How many documents were kept, and why the others were dropped."""
    kept = sum(split.documents for split in corpus.splits)
    read = corpus.documents_read or kept + sum(corpus.dropped.values())
    dropped = sorted(corpus.dropped.items(), key=lambda item: -item[1])
    rows = [Bar("kept", kept, _share(kept, read), kind="main")]
    rows += [Bar(why.replace("_", " "), n, _share(n, read)) for why, n in dropped if n]
    return _shares(rows, label="documents kept and dropped")


def masks(examples: ExampleSet) -> Markup:
    """What replaces the masked tokens."""
    parts = {
        "[MASK]": examples.as_mask or 0,
        "random token": examples.as_random or 0,
        "unchanged": examples.kept or 0,
    }
    rows = [Bar(name, n, _share(n, examples.masked, digits=2)) for name, n in parts.items()]
    return _shares(rows, label="what replaces masked tokens")


def _share(count: int, whole: int, *, digits: int = 1) -> str:
    return f"{integer(count)}, {percent(count / whole, digits=digits)}"


def _shares(rows: list[Bar], *, label: str) -> Markup:
    return twice(lambda width: charts.bars(rows, width=width, labels=112, label=label, pitch=24))


def learning_curve(summary: Summary, training: Pretraining) -> Markup:
    """Held-out loss over time with the baselines as lines."""
    label = "held-out MLM loss over time"
    return twice(
        lambda width: charts.line_chart(
            _learning_chart(summary, training, brief=width < WIDE),
            width=width,
            height=400 if width == WIDE else 340,
            label=label,
        )
    )


def _learning_chart(summary: Summary, training: Pretraining, *, brief: bool) -> LineChart:
    """`brief` names for a phone."""
    run = course(summary, training)
    model, axis, curve = run.model, run.axis, training.curve
    seen = [(axis.of(p), float(p.tokens)) for p in curve if p.tokens is not None]
    has_tokens = len(seen) > 1
    lines = [Line(_measured(curve, axis, "train_mlm_loss"), "faint", "" if brief else "training")]
    if run.places:
        name = _short_name(summary, run.split, brief=brief)
        lines.append(Line(run.places, "ours", f"{name} {run.places[-1][1]:.2f}"))
    leads = headline(summary)
    if leads and leads.split != run.split:  # known of the finished encoder alone
        name = _short_name(summary, leads.split, brief=brief)
        end = (axis.of(curve[-1]), leads.mlm_loss)
        lines.append(Line([end], "ours", f"{name} {leads.mlm_loss:.2f}"))
    unigram, ngram = ("unigram", "n-gram") if brief else ("word frequencies", "n-gram baseline")
    passed = crossing(run.places, model.count_model_loss) if model else None
    stay = plateau(run.places, model.unigram_entropy) if model else None
    lengths = [(axis.of(p), p.max_seq_length) for p in curve if p.max_seq_length]
    told = "" if brief or not passed else f"passes the n-gram baseline: {axis.when(passed[0])}"
    return LineChart(
        lines=[line for line in lines if line.places],
        x_label=f"{axis.label}\nword-pieces" if has_tokens else axis.label,
        y_label="next-token loss, nats per token"
        if training.objective == "next_token"
        else "MLM loss, nats per masked token",
        x_text=axis.text,
        y_text=lambda level: f"{level:g}",
        y_top=model.unigram_entropy + ABOVE_ENTROPY if model else None,
        second_x_text=(lambda x: short(interpolate(seen, x))) if has_tokens else None,
        references=[
            (model.unigram_entropy, f"{unigram} {model.unigram_entropy:.2f}"),
            (model.count_model_loss, f"{ngram} {model.count_model_loss:.2f}"),
        ]
        if model
        else (),
        mark=(*passed, told) if passed else None,
        band=(*stay, "plateau") if stay else None,
        divisions=[
            (place, f"{before} → {after} tokens")
            for (_, before), (place, after) in pairwise(lengths)
            if before != after
        ],
    )


def _short_name(summary: Summary, split: str, *, brief: bool) -> str:
    name = split_name(summary, split)
    brief_name = "held-out" if split == "heldout" else split
    return brief_name if brief or len(name) > LONGEST_NAME else name


def companions(summary: Summary, training: Pretraining) -> list[Markup]:
    """Small multiples: accuracy, next sentence, learning rate, throughput."""
    run = course(summary, training)
    ngram = run.model.count_model_accuracy if run.model else None
    majority = run.model.next_sentence_majority if run.model else None
    evaluated = [
        (run.axis.of(point), point.heldout[run.split])
        for point in training.curve
        if run.split in point.heldout
    ]
    accuracy = [(x, at.mlm_accuracy) for x, at in evaluated if at.mlm_accuracy is not None]
    pairs = [(x, at.nsp_accuracy) for x, at in evaluated if at.nsp_accuracy is not None]
    rates = _measured(training.curve, run.axis, "learning_rate")
    speeds = _measured(training.curve, run.axis, "tokens_per_second")
    drawn = [
        _companion("MLM accuracy", accuracy, _whole_percent, level=ngram),
        _companion("NSP accuracy", pairs, _whole_percent, level=majority),
        # rates are told from zero, or their noise would look large
        _companion(
            "learning rate",
            rates,
            lambda rate: f"{rate:.0e}".replace("e-0", "e-") if rate else "0",
            bottom=0.0,
        ),
        _companion("word-pieces / s", speeds, short, bottom=0.0),
    ]
    x_text = short if run.axis.label == "steps" else (lambda x: f"{x:.0f}")
    return [
        charts.small_chart(
            replace(chart, x_text=x_text), label=f"{chart.y_label} over {run.axis.label}"
        )
        for chart in drawn
        if len(chart.lines[0].places) > 1
    ]


def _companion(
    name: str,
    places: list[Place],
    y_text: Callable[[float], str],
    *,
    level: float | None = None,
    bottom: float | None = None,
) -> LineChart:
    return LineChart(
        lines=[Line(places, "ours")],
        x_label="",
        y_label=name,
        x_text=str,
        y_text=y_text,
        y_bottom=bottom,
        references=[] if level is None else [(level, "")],
    )


def _measured(curve: Sequence[TrainingPoint], axis: Axis, field: str) -> list[Place]:
    """One figure of the curve's points, where it was measured."""
    values = [(axis.of(point), getattr(point, field)) for point in curve]
    return [(x, float(value)) for x, value in values if value is not None]


def task_curves(trials: Sequence[LearningCurve], metric: str) -> Markup:
    """Each trial's headline metric on dev, epoch by epoch; ours on top."""
    lines = [
        Line(
            places=[(float(point.epoch), point.dev) for point in trial.points],
            kind="ours" if trial.system == "pretrained" else "other",
        )
        for trial in sorted(trials, key=lambda trial: trial.system == "pretrained")
        if trial.points
    ]
    name = f"{metric} on dev by epoch"
    chart = LineChart(lines, "epoch", name, lambda x: f"{x:g}", _whole_percent)
    return half(charts.small_chart(chart, width=HALF, height=170, label=name), thin=True)


def several_epochs(trials: Sequence[LearningCurve]) -> bool:
    """Whether there is a curve to draw: one epoch is none."""
    return any(len(trial.points) > 1 for trial in trials)


def systems_drawn(trials: Sequence[LearningCurve]) -> str:
    """Whose curves are in grey."""
    others = {system_name(trial.system) for trial in trials if trial.system != "pretrained"}
    return ", ".join(sorted(others))


def _whole_percent(share: float) -> str:
    return percent(share, digits=0)
