"""The figures of training: the learning curve and its small companions.

In:  `Pretraining`, with the baselines that the evaluation measured.
Out: markup, as in `quality`, and the curve's story in words.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from markupsafe import Markup

from artifacts.results import LanguageModelScore, LearningCurve
from artifacts.summary import Pretraining, Summary, TrainingPoint
from flows.report.charts.curves import Band, Chart, Mark, Reference, Series, curves, small
from flows.report.charts.moments import Place, crossing, interpolate, plateau
from flows.report.figures.quality import twice
from flows.report.units import duration, nats, percent, short
from flows.report.wording import headline, split_name, system_name

Places = list[Place]

UNITS = ((3 * 3600.0, "hours", 3600.0), (120.0, "minutes", 60.0), (0.0, "seconds", 1.0))
"""From how many seconds on a run is told in which unit, and the unit's seconds."""

ABOVE_ENTROPY = 1.0
"""Nats above the unigram entropy at which the picture ends: the first seconds teach nothing."""

LONGEST_NAME = 24
"""Characters of a split's name beside a line."""


@dataclass(frozen=True)
class Axis:
    """The horizontal axis: seconds, minutes or hours where they were recorded, else steps."""

    label: str
    of: Callable[[TrainingPoint], float]
    text: Callable[[float], str]

    def when(self, place: float) -> str:
        """A moment in words."""
        return f"{short(place)} steps" if self.label == "steps" else f"{place:.1f} {self.label}"


@dataclass(frozen=True)
class Course:
    """The held-out loss that was measured during training, and what to compare it with."""

    axis: Axis
    split: str
    places: Places
    model: LanguageModelScore | None
    """The finished encoder on the same split, else on the headline split."""


def time_axis(curve: Sequence[TrainingPoint]) -> Axis:
    """The axis that suits the run."""
    if any(point.seconds is None for point in curve):
        return Axis("steps", lambda point: float(point.step), short)
    whole = max((point.seconds or 0.0) for point in curve)
    unit, seconds = next((name, length) for least, name, length in UNITS if whole >= least)
    return Axis(unit, lambda point: (point.seconds or 0.0) / seconds, lambda value: f"{value:g}")


def course(summary: Summary, training: Pretraining) -> Course:
    """The course of the headline split, if it was looked at during training, else of another."""
    axis, leads = time_axis(training.curve), headline(summary)
    measured = sorted({split for point in training.curve for split in point.heldout})
    wanted = leads.split if leads else ""
    split = wanted if wanted in measured else next(iter(measured), "")
    places = [
        (axis.of(point), point.heldout[split].mlm_loss)
        for point in training.curve
        if split in point.heldout
    ]
    same = (model for model in summary.language_model if model.split == split)
    return Course(axis, split, places, next(same, leads))


def story(summary: Summary, training: Pretraining) -> str:
    """What the curve tells, in words; only what it does tell."""
    run = course(summary, training)
    if run.model is None or len(run.places) < 2:
        return ""
    if run.places[-1][1] >= run.model.unigram_entropy:
        return (
            "The loss has not fallen below the entropy of word frequencies: the encoder knows "
            "which words are frequent, and nothing yet of what stands around a gap."
        )
    stay = plateau(run.places, run.model.unigram_entropy)
    told = "It soon knows more than which words are frequent."
    if stay:
        told = (
            "First it learns which words are frequent: the loss rests near the entropy of word "
            f"frequencies until {run.axis.when(stay[1])}. Then it begins to use what stands "
            "around a gap."
        )
    passed = crossing(run.places, run.model.count_model_loss)
    if passed:
        told += f" After {run.axis.when(passed[0])} it passes a model that counts neighbours."
    return told


def learning_curve(summary: Summary, training: Pretraining) -> Markup:
    """Held-out loss over time with the baselines as lines."""
    return twice(
        lambda width: curves(
            _learning_chart(summary, training, brief=width < 500),
            width=width,
            height=400 if width > 500 else 340,
            label="held-out masked-word loss over time",
        )
    )


def companions(summary: Summary, training: Pretraining) -> list[Markup]:
    """Small multiples: accuracy, next sentence, learning rate, throughput."""
    run = course(summary, training)
    counted = run.model.count_model_accuracy if run.model else None
    majority = run.model.next_sentence_majority if run.model else None
    drawn = [
        _companion("hidden words right", _looks(training, run, "mlm_accuracy"), _whole_percent),
        _companion("next sentence right", _looks(training, run, "nsp_accuracy"), _whole_percent),
        _companion("learning rate", _own(training, run.axis, "learning_rate"), _scientific),
        _companion("word-pieces / s", _own(training, run.axis, "tokens_per_second"), short),
    ]
    references = (counted, majority, None, None)
    return [
        _small(replace(chart, references=_unnamed(level)), run.axis)
        for chart, level in zip(drawn, references, strict=True)
        if len(chart.series[0].places) > 1
    ]


def task_curves(fits: Sequence[LearningCurve], metric: str) -> Markup:
    """Each fit's headline metric on dev, epoch by epoch."""
    series = [
        Series(
            places=[(float(point.epoch), point.dev) for point in fit.points],
            kind="ours" if fit.system == "pretrained" else "other",
        )
        for fit in sorted(fits, key=lambda fit: fit.system == "pretrained")
        if fit.points
    ]
    chart = Chart(series, "epoch", f"{metric} on dev by epoch", lambda x: f"{x:g}", _whole_percent)
    drawn = small(chart, width=336, height=170, label=f"{metric} on dev, every fit")
    return Markup('<div class="half thin">{}</div>').format(drawn)


def several_epochs(fits: Sequence[LearningCurve]) -> bool:
    """Whether there is a curve to draw: one epoch is none."""
    return any(len(fit.points) > 1 for fit in fits)


def systems_drawn(fits: Sequence[LearningCurve]) -> str:
    """Whose curves are in grey."""
    others = {system_name(fit.system) for fit in fits if fit.system != "pretrained"}
    return ", ".join(sorted(others))


def _learning_chart(summary: Summary, training: Pretraining, *, brief: bool) -> Chart:
    run = course(summary, training)
    seen = [(run.axis.of(p), float(p.tokens)) for p in training.curve if p.tokens is not None]
    losses = Series(
        _own(training, run.axis, "train_mlm_loss"), "faint", "" if brief else "training"
    )
    lines = [losses, *_heldout_lines(summary, training, run, brief=brief)]
    return Chart(
        series=[line for line in lines if line.places],
        x_label=run.axis.label,
        y_label="loss, nats per hidden word",
        x_text=run.axis.text,
        y_text=lambda level: f"{level:g}",
        y_top=run.model.unigram_entropy + ABOVE_ENTROPY if run.model else None,
        second_x_text=(lambda x: short(interpolate(seen, x))) if len(seen) > 1 else None,
        second_x_label="word-pieces" if len(seen) > 1 else "",
        references=_references(run.model, brief=brief),
        marks=list(_marks(run, brief=brief)),
        bands=list(_bands(run)),
        divisions=list(_divisions(training, run.axis)),
    )


def _heldout_lines(
    summary: Summary, training: Pretraining, run: Course, *, brief: bool
) -> Iterator[Series]:
    """The line measured during training, and the finished encoder on the headline split."""
    looks = [point for point in training.curve if run.split in point.heldout]
    name = _short_name(summary, run.split, brief=brief)
    if looks:
        tips = [
            f"{name}, step {point.step:,}: {nats(loss)}{_after(point)}"
            for point, (_, loss) in zip(looks, run.places, strict=True)
        ]
        yield Series(run.places, "ours", f"{name} {run.places[-1][1]:.2f}", tips)
    leads = headline(summary)
    if leads and leads.split != run.split:
        end, name = run.axis.of(training.curve[-1]), _short_name(summary, leads.split, brief=brief)
        tip = f"{name}, finished encoder: {nats(leads.mlm_loss)}"
        yield Series([(end, leads.mlm_loss)], "ours", f"{name} {leads.mlm_loss:.2f}", [tip])


def _short_name(summary: Summary, split: str, *, brief: bool) -> str:
    name = split_name(summary, split)
    brief_name = "held-out" if split == "heldout" else split
    return brief_name if brief or len(name) > LONGEST_NAME else name


def _after(point: TrainingPoint) -> str:
    return f" after {duration(point.seconds)}" if point.seconds is not None else ""


def _references(model: LanguageModelScore | None, *, brief: bool) -> list[Reference]:
    if model is None:
        return []
    words, neighbours = (
        ("words", "neighbours") if brief else ("word frequencies", "neighbour counts")
    )
    return [
        Reference(model.unigram_entropy, f"{words} {model.unigram_entropy:.2f}"),
        Reference(model.count_model_loss, f"{neighbours} {model.count_model_loss:.2f}"),
    ]


def _marks(run: Course, *, brief: bool) -> Iterator[Mark]:
    """Where the curve passes the count model."""
    passed = crossing(run.places, run.model.count_model_loss) if run.model else None
    if passed:
        yield Mark(*passed, "" if brief else f"passes neighbour counts: {run.axis.when(passed[0])}")


def _bands(run: Course) -> Iterator[Band]:
    found = plateau(run.places, run.model.unigram_entropy) if run.model else None
    if found:
        yield Band(*found, "plateau")


def _divisions(training: Pretraining, axis: Axis) -> Iterator[tuple[float, str]]:
    """Where the sequence length changes."""
    lengths = [(axis.of(p), p.max_seq_length) for p in training.curve if p.max_seq_length]
    for (_, before), (place, after) in pairwise(lengths):
        if before != after:
            yield place, f"{before} → {after} tokens"


def _companion(name: str, places: Places, y_text: Callable[[float], str]) -> Chart:
    """A small chart; rates are told from zero, or their noise would look large."""
    return Chart(
        series=[Series(places, "ours")],
        x_label="",
        y_label=name,
        x_text=lambda x: f"{x:.0f}",
        y_text=y_text,
        y_bottom=0.0 if name.endswith(("/ s", "rate")) else None,
    )


def _unnamed(level: float | None) -> list[Reference]:
    return [] if level is None else [Reference(level, "")]


def _small(chart: Chart, axis: Axis) -> Markup:
    """Times rounded, steps short."""
    x_text = short if axis.label == "steps" else chart.x_text
    return small(replace(chart, x_text=x_text), label=f"{chart.y_label} over {axis.label}")


def _looks(training: Pretraining, run: Course, field: str) -> Places:
    """One figure of the held-out looks over time."""
    values = [
        (run.axis.of(point), getattr(point.heldout[run.split], field))
        for point in training.curve
        if run.split in point.heldout
    ]
    return [(x, float(value)) for x, value in values if value is not None]


def _own(training: Pretraining, axis: Axis, field: str) -> Places:
    values = [(axis.of(point), getattr(point, field)) for point in training.curve]
    return [(x, float(value)) for x, value in values if value is not None]


def _whole_percent(share: float) -> str:
    return percent(share, digits=0)


def _scientific(value: float) -> str:
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"
