"""The learning curve: held-out loss during training, its notable points, and a description.

In:  the points of pre-training, and the baselines on the same held-out split.
Out: `Course`; the last crossing of a level; the plateau near the unigram entropy; sentences.

Early in pre-training the loss falls to the unigram entropy and stays there until attention patterns
have formed. A run that ends on this plateau has not learnt to use context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from artifacts.results import LanguageModelScore
from artifacts.summary import Pretraining, Summary, TrainingPoint
from flows.report.units import short

UNITS = ((3 * 3600.0, "hours", 3600.0), (120.0, "minutes", 60.0), (0.0, "seconds", 1.0))
"""The shortest run, in seconds, that is shown in a unit; the unit; its length in seconds."""

ABOVE = 0.15
BELOW = 0.5
"""The plateau reaches from `BELOW` to `ABOVE` nats around the unigram entropy."""

SHORTEST = 0.04
"""A plateau shorter than this share of the run is ignored."""

Place = tuple[float, float]


def crossing(places: Sequence[Place], level: float) -> Place | None:
    """The point where the curve falls below `level` for good; None if it never does."""
    last_above = max((i for i, (_, loss) in enumerate(places) if loss >= level), default=-1)
    if last_above in (-1, len(places) - 1):
        return None
    (x0, y0), (x1, y1) = places[last_above], places[last_above + 1]
    return (x0 + (y0 - level) / (y0 - y1) * (x1 - x0), level)


def plateau(places: Sequence[Place], entropy: float) -> tuple[float, float] | None:
    """Start and end of the plateau near the unigram entropy; None if it is absent or brief."""
    start = crossing(places, entropy + ABOVE)
    end = crossing(places, entropy - BELOW)
    if start is None:
        return None
    last = end[0] if end else places[-1][0]
    length = places[-1][0] - places[0][0]
    return (start[0], last) if last - start[0] > SHORTEST * length else None


@dataclass(frozen=True)
class Axis:
    """The horizontal axis: seconds, minutes or hours if time was recorded, else steps."""

    label: str
    of: Callable[[TrainingPoint], float]
    text: Callable[[float], str]

    def when(self, place: float) -> str:
        """A point in time in words."""
        return f"{short(place)} steps" if self.label == "steps" else f"{place:.1f} {self.label}"


@dataclass(frozen=True)
class Course:
    """The held-out loss measured during training, and the scores to compare it with."""

    axis: Axis
    split: str
    places: list[Place]
    model: LanguageModelScore | None
    """Scores of the finished encoder on the same split, else on the headline split."""


def heldout_course(summary: Summary) -> list[tuple[int, float]]:
    """(step, MLM loss on held-out examples) at each evaluation during training."""
    points = summary.pretraining.curve if summary.pretraining else ()
    return [
        (point.step, evaluated.mlm_loss) for point in points for evaluated in point.heldout.values()
    ]


def course(summary: Summary, training: Pretraining) -> Course:
    """The course on the headline split if it was evaluated during training, else on another."""
    axis = Axis("steps", lambda point: float(point.step), short)
    if all(point.seconds is not None for point in training.curve):
        whole = max((point.seconds or 0.0) for point in training.curve)
        unit, length = next((name, length) for least, name, length in UNITS if whole >= least)
        axis = Axis(unit, lambda point: (point.seconds or 0.0) / length, lambda x: f"{x:g}")
    leads = summary.headline
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
    """A description of the curve in words; empty if there is nothing to compare it with."""
    run = course(summary, training)
    if run.model is None or len(run.places) < 2:
        return ""
    if run.places[-1][1] >= run.model.unigram_entropy:
        return (
            "The loss has not fallen below the unigram entropy: the encoder has learnt word "
            "frequencies, but does not use the context of a masked token yet."
        )
    stay = plateau(run.places, run.model.unigram_entropy)
    text = "It soon learns more than word frequencies."
    if stay:
        text = (
            "First it learns word frequencies: the loss stays near the unigram entropy until "
            f"{run.axis.when(stay[1])}. Then it begins to use context."
        )
    passed = crossing(run.places, run.model.count_model_loss)
    if passed:
        text += f" After {run.axis.when(passed[0])} it passes the n-gram baseline."
    return text
