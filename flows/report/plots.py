"""The figures of the report, one function for each part of the summary.

In:  parts of a `Summary`.
Out: markup. Wide figures are drawn twice, for desktops and phones, and the style sheet shows one.
     The learning curve is also described in words.

Early in pre-training the loss falls to the unigram entropy and stays there until attention patterns
have formed. A run that ends on this plateau has not learnt to use context.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from markupsafe import Markup

from cloze.artifacts.results import (
    Calibration,
    Confusion,
    LanguageModelScore,
    LearningCurve,
    Reliance,
    Result,
    TaskScore,
)
from cloze.flows.report import charts
from cloze.flows.report.charts import Bar, BarChart, ChartLine, LineChart, SystemRow
from cloze.flows.report.summary import (
    Corpus,
    ExampleSet,
    HeldoutPoint,
    Histogram,
    Pretraining,
    StageFacts,
    Summary,
    TrainingPoint,
)
from cloze.flows.report.units import duration, integer, memory, nats, percent, scientific, short
from cloze.flows.report.wording import (
    deciding_comparison,
    encoder_name,
    initial_encoder,
    reference_shown,
    scores_on,
    split_name,
    spread_words,
    system_name,
    task_name,
)

WIDE, NARROW, HALF = 700, 350, 336
"""Widths in pixels: a column on a desktop, a column on a phone, half a column."""

LABELS = 132
"""Width in pixels of the labels beside bars."""

COLOURS = {"baseline": "faint", "random": "other", "pretrained": "ours"}
"""Of the systems, by role."""

ABOVE_ENTROPY = 1.0
"""The chart is cut this many nats above the unigram entropy, which hides the first seconds."""

LONGEST_NAME = 24
"""Longer names of splits are shortened beside a line."""

UNITS = ((3 * 3600.0, "hours", 3600.0), (120.0, "minutes", 60.0), (0.0, "seconds", 1.0))
"""The shortest run, in seconds, that is shown in a unit; the unit; its length in seconds."""

PLATEAU_ABOVE, PLATEAU_BELOW = 0.15, 0.5
"""The plateau reaches from this many nats above the unigram entropy to this many below it."""

SHORTEST_PLATEAU = 0.04
"""A plateau shorter than this share of the run is ignored."""

Place = tuple[float, float]

Panel = tuple[list[Bar], str, str, int]
"""Bars, their heading, the text for screen readers, and the width beside another panel."""


def responsive(draw: Callable[[int], Markup], *, wide: int = WIDE) -> Markup:
    """`draw` at both widths, so that text is never scaled down."""
    pair = Markup('<div class="wide">{}</div><div class="narrow">{}</div>')
    return pair.format(draw(wide), draw(NARROW))


def beside_or_below(first: Panel, second: Panel, *, names: int) -> Markup:
    """Two charts of the same bars, side by side without repeating the labels, or stacked.

    `names` is the width of the labels.
    """
    panel = Markup('<div><h4 style="padding-left:{}px">{}</h4>{}</div>')
    pair, stack = [], []
    for (rows, heading, label, width), labels in ((first, names), (second, 0)):
        beside = charts.bars(BarChart(rows, labels), width=width, label=label)
        pair.append(panel.format(labels, heading, beside))
        alone = charts.bars(BarChart(rows, names), width=NARROW, label=label)
        stack.append(Markup("<h4>{}</h4>{}").format(heading, alone))
    return Markup(
        '<div class="wide"><div class="pair">{}{}</div></div>'
        '<div class="narrow"><div class="stack">{}{}</div></div>'
    ).format(*pair, *stack)


def half(chart: Markup, *, thin: bool = False) -> Markup:
    """A chart that fills half a column."""
    return Markup('<div class="half{}">{}</div>').format(" thin" if thin else "", chart)


def quality_plot(model: LanguageModelScore) -> Markup:
    """Loss and accuracy on the masked tokens, below those of the baselines.

    The accuracy of the untrained encoder is not measured: it is at chance level.
    """
    ours = encoder_name(model)
    systems = (  # name, loss, accuracy
        ("untrained encoder", model.random_mlm_loss, None),
        ("word frequencies", model.unigram_entropy, model.unigram_accuracy),
        ("n-gram baseline", model.count_model_loss, model.count_model_accuracy),
        ("initial encoder", model.initial_mlm_loss, model.initial_mlm_accuracy),
        (ours, model.mlm_loss, model.mlm_accuracy),
    )
    losses, accuracies = [], []
    for name, loss, accuracy in systems:
        colour = "ours" if name == ours else "other"
        # A system without a loss (no initial encoder, no n-grams) has no bar, rather than one of
        # length 0.
        if loss is not None:
            losses.append(Bar(name, loss, nats(loss), colour))
            shown = "chance" if accuracy is None else percent(accuracy)
            accuracies.append(Bar(name, accuracy or 0.0, shown, colour))
    return beside_or_below(
        (losses, "MLM loss, nats per masked token", "MLM loss", 418),
        (accuracies, "top-1 accuracy", "MLM accuracy", 262),
        names=LABELS,
    )


def stages(steps: Sequence[StageFacts]) -> Markup:
    """Wall-clock time and peak memory of every stage, with the longest bar in a darker shade."""

    def rows(values: Mapping[str, float], text: Callable[[float], str]) -> list[Bar]:
        longest = max(values.values(), default=0.0)
        return [
            Bar(name, value, text(value), colour="faint" if value == longest > 0 else "other")
            for name, value in values.items()
        ]

    times = rows({step.stage: step.seconds or 0.0 for step in steps}, duration)
    bytes_ = {step.stage: float(step.peak_memory or 0) for step in steps}
    peaks = rows(bytes_, lambda value: memory(value) if value else "–")
    return beside_or_below(
        (times, "time", "time by stage", 400),
        (peaks, "peak memory", "memory by stage", 280),
        names=86,
    )


def next_sentence(model: LanguageModelScore, *, length_only: float | None) -> Markup:
    """Accuracy beside those of a constant answer and of a rule that only sees the length."""
    ours = encoder_name(model)
    values = {
        "majority answer": model.next_sentence_majority or 0.0,
        **({"length alone": length_only} if length_only else {}),
        ours: model.next_sentence_accuracy or 0.0,
    }
    rows = [
        Bar(name, value, percent(value), "ours" if name == ours else "other")
        for name, value in values.items()
    ]
    label, chart = "next-sentence accuracy", BarChart(rows, LABELS, longest=1.0)
    return responsive(
        lambda width: charts.bars(chart, width=width, label=label),
        wide=460,
    )


def task_spread(task: TaskScore, *, split: str) -> Markup:
    """All seeds of all systems on one axis, with an arrow from the compared system to ours."""
    rows = {
        system.name: SystemRow(
            label=system_name(system.name, task),
            colour=COLOURS[system.role],
            scores=scores,
            shown=spread_words(scores),
        )
        for system in task.systems
        if (scores := scores_on(system, split).get(task.metric))
    }
    found, names = deciding_comparison(task), list(rows)
    compared = None
    # A comparison may be with a system that has no scores on this split.
    if found and {found.system, found.against} <= rows.keys():
        compared = names.index(found.against), names.index(found.system)
    reference = reference_shown(task, split=split)
    label = f"{task_name(task.name)}: {task.metric} of every seed"
    return responsive(
        lambda width: charts.seed_dots(
            list(rows.values()), width=width, label=label, compared=compared, reference=reference
        )
    )


def confusion_matrix(matrix: Confusion) -> Markup:
    """The confusion matrix."""
    return half(charts.shades(matrix.counts, matrix.labels, width=HALF, label="confusion matrix"))


def histogram(drawn: Histogram, *, noun: str) -> Markup:
    """A histogram with abbreviated bin edges."""
    edges = [short(edge) for edge in drawn.edges]
    label = f"lengths of {noun}"
    return half(charts.column_chart(drawn.counts, edges, width=HALF, height=170, label=label))


def frequent_pieces(corpus: Corpus) -> Markup:
    """The most frequent word-pieces with their relative frequencies in the training split."""
    whole = corpus.splits[0].tokens if corpus.splits else 1
    rows = [Bar(piece.text, piece.count, percent(piece.count / whole)) for piece in corpus.frequent]
    label = "most frequent word-pieces"
    return half(charts.bars(BarChart(rows, labels=64, pitch=19), width=HALF, label=label))


def rank_frequency_chart(corpus: Corpus) -> Markup:
    """Frequency by rank."""
    places = [(float(rank), float(count)) for rank, count in corpus.rank_frequency if count]
    label = "frequency of word-pieces by rank"
    return half(charts.log_log(places, width=HALF, height=230, label=label))


def fate(corpus: Corpus) -> Markup:
    """The number of documents kept, and of those dropped for each reason."""
    kept = sum(split.documents for split in corpus.splits)
    read = corpus.documents_read or kept + sum(corpus.dropped.values())
    dropped = sorted(corpus.dropped.items(), key=lambda item: -item[1])
    rows = [Bar("kept", kept, _share(kept, read), "faint")]
    rows += [Bar(why.replace("_", " "), n, _share(n, read)) for why, n in dropped if n]
    return _shares(rows, label="documents kept and dropped")


def masks(examples: ExampleSet) -> Markup:
    """The replacements of the masked tokens."""
    parts = {
        "[MASK]": examples.as_mask or 0,
        "random token": examples.as_random or 0,
        "unchanged": examples.kept or 0,
    }
    rows = [Bar(name, n, _share(n, examples.masked, digits=2)) for name, n in parts.items()]
    return _shares(rows, label="replacements of masked tokens")


def _share(count: int, whole: int, *, digits: int = 1) -> str:
    return f"{integer(count)}, {percent(count / whole, digits=digits)}"


def _shares(rows: list[Bar], *, label: str) -> Markup:
    chart = BarChart(rows, labels=112, pitch=24)
    return responsive(lambda width: charts.bars(chart, width=width, label=label))


def crossing(places: Sequence[Place], level: float) -> Place | None:
    """The point where the curve falls below `level` for good; None if it never does."""
    # A curve that has dipped below and come back has not passed the level yet: the last point above
    # counts, and the straight line from it to the next.
    last_above = max((i for i, (_, loss) in enumerate(places) if loss >= level), default=-1)
    # Always below, or still above at the end.
    if last_above in (-1, len(places) - 1):
        return None
    (x0, y0), (x1, y1) = places[last_above], places[last_above + 1]
    return (x0 + (y0 - level) / (y0 - y1) * (x1 - x0), level)


def plateau(places: Sequence[Place], entropy: float) -> tuple[float, float] | None:
    """Start and end of the plateau near the unigram entropy; None if it is absent or brief."""
    # A model that only knows how frequent words are has the unigram entropy as its loss. It gets
    # there quickly, stays, and leaves when it begins to use context.
    start = crossing(places, entropy + PLATEAU_ABOVE)
    end = crossing(places, entropy - PLATEAU_BELOW)
    if start is None:
        return None
    # A run may end on the plateau.
    last = end[0] if end else places[-1][0]
    length = places[-1][0] - places[0][0]
    return (start[0], last) if last - start[0] > SHORTEST_PLATEAU * length else None


@dataclass(frozen=True)
class Course:
    """The points of the learning curve, and the scores to compare them with."""

    unit: str
    """Of the horizontal axis: seconds, minutes or hours if time was recorded, else steps."""

    curve: list[tuple[float, TrainingPoint]]
    """Every point and its place on the axis."""

    split: str
    """The held-out split shown: the headline split if it was evaluated during training."""

    heldout: list[tuple[float, HeldoutPoint]]
    """The evaluations on it."""

    model: LanguageModelScore | None
    """Scores of the finished encoder on the same split, else on the headline split."""

    @property
    def losses(self) -> list[Place]:
        """The held-out MLM loss."""
        return _measured(self.heldout, "mlm_loss")

    def when(self, place: float) -> str:
        """A point in time in words."""
        return f"{short(place)} steps" if self.unit == "steps" else f"{place:.1f} {self.unit}"


def heldout_course(summary: Summary) -> list[tuple[int, float]]:
    """(step, MLM loss on held-out examples) at each evaluation during training."""
    points = summary.pretraining.curve if summary.pretraining else ()
    return [
        (point.step, evaluated.mlm_loss) for point in points for evaluated in point.heldout.values()
    ]


def course(summary: Summary, training: Pretraining) -> Course:
    """The course on the headline split if it was evaluated during training, else on another."""
    unit, places = "steps", [float(point.step) for point in training.curve]
    seconds = [point.seconds for point in training.curve if point.seconds is not None]
    # Places are times only if all points have one.
    if len(seconds) == len(places):
        unit, length = next((name, n) for least, name, n in UNITS if max(seconds) >= least)
        places = [spent / length for spent in seconds]
    curve = list(zip(places, training.curve, strict=True))
    leads = summary.headline
    measured = sorted({split for point in training.curve for split in point.heldout})
    split = leads.split if leads and leads.split in measured else next(iter(measured), "")
    heldout = [(x, point.heldout[split]) for x, point in curve if split in point.heldout]
    # Lines to compare with must be of the same text as the curve, or they would cross it by chance.
    same = (model for model in summary.language_model if model.split == split)
    return Course(unit, curve, split, heldout, next(same, leads))


def story(summary: Summary, training: Pretraining) -> str:
    """A description of the curve in words; empty if there is nothing to compare it with."""
    run = course(summary, training)
    losses = run.losses
    if run.model is None or len(losses) < 2:
        return ""
    if initial_encoder(summary):
        return _adaptation_story(run, run.model)
    if losses[-1][1] >= run.model.unigram_entropy:
        return (
            "The loss has not fallen below the unigram entropy: the encoder has learnt word "
            "frequencies, but does not use the context of a masked token yet."
        )
    stay = plateau(losses, run.model.unigram_entropy)
    text = "It soon learns more than word frequencies."
    if stay:
        text = (
            "First it learns word frequencies: the loss stays near the unigram entropy until "
            f"{run.when(stay[1])}. Then it begins to use context."
        )
    return text + _passing(run, run.model)


def _adaptation_story(run: Course, model: LanguageModelScore) -> str:
    """The curve of an encoder that came trained, which has no plateau to describe."""
    before, after = model.initial_mlm_loss, model.mlm_loss
    if before is None:
        return ""
    if before <= after:
        return (
            f"Adapting has not lowered the loss: {nats(before)} before, {nats(after)} after. "
            "Keep the initial encoder, or lower learning_rate."
        )
    return f"Adapting lowers the loss from {nats(before)} to {nats(after)}.{_passing(run, model)}"


def _passing(run: Course, model: LanguageModelScore) -> str:
    """When the n-gram baseline is passed, in words; empty if it never is, or always was."""
    passed = crossing(run.losses, model.count_model_loss)
    return f" After {run.when(passed[0])} it passes the n-gram baseline." if passed else ""


def learning_curve(summary: Summary, training: Pretraining) -> Markup:
    """Held-out loss over time, with the baselines as horizontal lines."""
    label = "held-out MLM loss over time"
    return responsive(
        lambda width: charts.line_chart(
            _learning_chart(summary, training, brief=width < WIDE),
            width=width,
            height=400 if width == WIDE else 340,
            label=label,
        )
    )


def _learning_chart(summary: Summary, training: Pretraining, *, brief: bool) -> LineChart:
    """The learning curve's lines and annotations, with short names if `brief`, for phones."""
    run = course(summary, training)
    model, losses = run.model, run.losses
    tokens = _measured(run.curve, "tokens")
    training_loss = _measured(run.curve, "train_mlm_loss")
    lines = [ChartLine(training_loss, "quiet", "" if brief else "training")]
    if losses:
        name = _short_name(summary, run.split, brief=brief)
        lines.append(ChartLine(losses, "ours", f"{name} {losses[-1][1]:.2f}"))
    leads = summary.headline
    if leads and leads.split != run.split:  # only evaluated after training
        name = _short_name(summary, leads.split, brief=brief)
        end = (run.curve[-1][0], leads.mlm_loss)
        lines.append(ChartLine([end], "ours", f"{name} {leads.mlm_loss:.2f}"))
    unigram, ngram, initial = (
        ("unigram", "n-gram", "initial")
        if brief
        else ("word frequencies", "n-gram baseline", "initial encoder")
    )
    passed = crossing(losses, model.count_model_loss) if model else None
    adapted = initial_encoder(summary)
    stay = plateau(losses, model.unigram_entropy) if model and not adapted else None
    lengths = _measured(run.curve, "max_seq_length")
    note = "" if brief or not passed else f"passes the n-gram baseline: {run.when(passed[0])}"
    has_tokens = len(tokens) > 1
    return LineChart(
        lines=[line for line in lines if line.places],
        x_label=f"{run.unit}\nword-pieces" if has_tokens else run.unit,
        y_label="next-token loss, nats per token"
        if training.objective == "next_token"
        else "MLM loss, nats per masked token",
        x_text=short if run.unit == "steps" else "{:g}".format,
        y_text="{:g}".format,
        y_top=model.unigram_entropy + ABOVE_ENTROPY if model else None,
        second_x_text=(lambda x: short(float(np.interp(x, *np.transpose(tokens)))))
        if has_tokens
        else None,
        references=[
            (model.unigram_entropy, f"{unigram} {model.unigram_entropy:.2f}"),
            (model.count_model_loss, f"{ngram} {model.count_model_loss:.2f}"),
            *(
                [(model.initial_mlm_loss, f"{initial} {model.initial_mlm_loss:.2f}")]
                if model.initial_mlm_loss is not None
                else []
            ),
        ]
        if model
        else (),
        mark=(*passed, note) if passed else None,
        band=(*stay, "plateau") if stay else None,
        divisions=[
            (place, f"{before:.0f} → {after:.0f} tokens")
            for (_, before), (place, after) in pairwise(lengths)
            if before != after
        ],
    )


def _short_name(summary: Summary, split: str, *, brief: bool) -> str:
    name = split_name(summary, split)
    brief_name = "held-out" if split == "heldout" else split
    return brief_name if brief or len(name) > LONGEST_NAME else name


def companions(summary: Summary, training: Pretraining) -> list[Markup]:
    """Small multiples: MLM and NSP accuracy, learning rate, throughput."""
    run = course(summary, training)
    ngram = run.model.count_model_accuracy if run.model else None
    majority = run.model.next_sentence_majority if run.model else None
    accuracies = _measured(run.heldout, "mlm_accuracy")
    pairs = _measured(run.heldout, "nsp_accuracy")
    rates = _measured(run.curve, "learning_rate")
    speeds = _measured(run.curve, "tokens_per_second")
    drawn = (  # name, values, text of a value, reference, lower limit
        ("MLM accuracy", accuracies, _whole_percent, ngram, None),
        ("NSP accuracy", pairs, _whole_percent, majority, None),
        ("learning rate", rates, scientific, None, 0.0),  # from zero, or noise would look large
        ("word-pieces / s", speeds, short, None, 0.0),
    )
    return [
        charts.small_chart(
            LineChart(
                lines=[ChartLine(places, "ours")],
                x_label="",
                y_label=name,
                x_text=short if run.unit == "steps" else "{:.0f}".format,
                y_text=y_text,
                y_bottom=bottom,
                references=[] if level is None else [(level, "")],
            ),
            label=f"{name} over {run.unit}",
        )
        for name, places, y_text, level, bottom in drawn
        if len(places) > 1
    ]


MOST_COURSES = 24
"""Sources of a mixture beyond which their table alone says how well they were learnt."""


def source_losses(training: Pretraining) -> list[Markup]:
    """Small multiples: held-out loss of each source, in front of all others."""
    courses = {
        source.name: [(float(step), loss) for step, loss in source.heldout]
        for source in training.mixture
        if len(source.heldout) > 1
    }
    if len(courses) > MOST_COURSES:
        return []
    return [
        charts.small_chart(
            LineChart(
                lines=[
                    *(
                        ChartLine(places, "faint")
                        for other, places in courses.items()
                        if other != name
                    ),
                    ChartLine(own, "ours"),
                ],
                x_label="",
                y_label=name,
                x_text=short,
                y_text="{:.2f}".format,
            ),
            label=f"held-out loss of {name} over steps",
        )
        for name, own in courses.items()
    ]


def _measured(points: Sequence[tuple[float, Result]], field: str) -> list[Place]:
    """(place, value) of one figure at the points where it was measured."""
    values = [(x, getattr(point, field)) for x, point in points]
    return [(x, float(value)) for x, value in values if value is not None]


def task_curves(trials: Sequence[LearningCurve], metric: str) -> Markup:
    """The main metric of each trial on dev by epoch, with the pre-trained trials on top."""
    lines = [
        ChartLine(
            places=[(float(point.epoch), point.dev) for point in trial.points],
            colour="ours" if trial.system == "pretrained" else "other",
        )
        for trial in sorted(trials, key=lambda trial: trial.system == "pretrained")
        if trial.points
    ]
    name = f"{metric} on dev by epoch"
    chart = LineChart(lines, "epoch", name, "{:g}".format, _whole_percent)
    return half(charts.small_chart(chart, width=HALF, height=170, label=name), thin=True)


def reliability(calibration: Calibration) -> Markup:
    """Frequencies by probability, before and after calibration; the diagonal is perfect."""
    drawn = (("other", calibration.before), ("ours", calibration.after))
    lines = [ChartLine([(0.0, 0.0), (1.0, 1.0)], "faint")]
    lines += [
        ChartLine([(one.probability, one.frequency) for one in quality.reliability], colour)
        for colour, quality in drawn
    ]
    name = "frequency by probability"
    chart = LineChart(lines, "probability", name, _whole_percent, _whole_percent, y_bottom=0.0)
    return half(charts.small_chart(chart, width=HALF, height=220, label=name), thin=True)


def risk_curve(reliance: Reliance) -> Markup:
    """Errors by the share of rows that are answered."""
    places = [(point.answered, point.errors) for point in reliance.risk]
    name = "errors by share answered"
    lines = [ChartLine(places, "ours")]
    chart = LineChart(lines, "answered", name, _whole_percent, _whole_percent, y_bottom=0.0)
    return half(charts.small_chart(chart, width=HALF, height=170, label=name), thin=True)


def several_epochs(trials: Sequence[LearningCurve]) -> bool:
    """Whether any trial has more than one point, so that there is a curve to draw."""
    return any(len(trial.points) > 1 for trial in trials)


def systems_drawn(trials: Sequence[LearningCurve]) -> str:
    """The systems whose curves are grey."""
    others = {system_name(trial.system) for trial in trials if trial.system != "pretrained"}
    return ", ".join(sorted(others))


def _whole_percent(share: float) -> str:
    return percent(share, digits=0)
