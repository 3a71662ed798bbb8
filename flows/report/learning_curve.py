"""What the learning curve shows: its course, its notable points, and its story in words.

In:  the points of pre-training, and the baselines on the same held-out split.
Out: `Course`; where it crosses a level for good; the plateau near the unigram entropy; sentences.

Early in pre-training the loss falls to the entropy of word frequencies and stays there while
attention has not yet formed; a run that is cut off on this plateau has learnt nothing of context.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from artifacts.results import LanguageModelScore
from artifacts.summary import Pretraining, Summary, TrainingPoint
from flows.report.units import short
from flows.report.wording import headline

UNITS = ((3 * 3600.0, "hours", 3600.0), (120.0, "minutes", 60.0), (0.0, "seconds", 1.0))
"""Shortest run, in seconds, that is told in a unit; the unit, and its seconds."""

ABOVE = 0.15
BELOW = 0.5
"""Nats around the unigram entropy that count as the plateau: it tends to lie a little below."""

SHORTEST = 0.04
"""A plateau shorter than this share of the run is not mentioned."""

Place = tuple[float, float]


def crossing(places: Sequence[Place], level: float) -> Place | None:
    """Where the curve goes below `level` and stays below; None if it never does."""
    last_above = max((i for i, (_, loss) in enumerate(places) if loss >= level), default=-1)
    if last_above in (-1, len(places) - 1):
        return None
    (x0, y0), (x1, y1) = places[last_above], places[last_above + 1]
    return (x0 + (y0 - level) / (y0 - y1) * (x1 - x0), level)


def plateau(places: Sequence[Place], entropy: float) -> tuple[float, float] | None:
    """From first coming near the unigram entropy to leaving it; None if that is brief."""
    start = crossing(places, entropy + ABOVE)
    end = crossing(places, entropy - BELOW)
    if start is None:
        return None
    last = end[0] if end else places[-1][0]
    length = places[-1][0] - places[0][0]
    return (start[0], last) if last - start[0] > SHORTEST * length else None


def interpolate(places: Sequence[Place], x: float) -> float:
    """The curve's value at `x`, straight between places and constant outside."""
    if x <= places[0][0]:
        return places[0][1]
    for (x0, y0), (x1, y1) in pairwise(places):
        if x <= x1:
            return y0 + (y1 - y0) * ((x - x0) / (x1 - x0) if x1 > x0 else 1.0)
    return places[-1][1]


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
    places: list[Place]
    model: LanguageModelScore | None
    """The finished encoder on the same split, else on the headline split."""


def course(summary: Summary, training: Pretraining) -> Course:
    """The course of the headline split, if it was evaluated during training, else of another."""
    axis = Axis("steps", lambda point: float(point.step), short)
    if all(point.seconds is not None for point in training.curve):
        whole = max((point.seconds or 0.0) for point in training.curve)
        unit, length = next((name, length) for least, name, length in UNITS if whole >= least)
        axis = Axis(unit, lambda point: (point.seconds or 0.0) / length, lambda x: f"{x:g}")
    leads = headline(summary)
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
    """What the curve shows, in words; only what it does show."""
    run = course(summary, training)
    if run.model is None or len(run.places) < 2:
        return ""
    if run.places[-1][1] >= run.model.unigram_entropy:
        return (
            "The loss has not fallen below the unigram entropy: the encoder knows which words are "
            "frequent, and nothing yet of the context of a masked token."
        )
    stay = plateau(run.places, run.model.unigram_entropy)
    told = "It soon learns more than which words are frequent."
    if stay:
        told = (
            "First it learns which words are frequent: the loss rests near the unigram entropy "
            f"until {run.axis.when(stay[1])}. Then it begins to use the context."
        )
    passed = crossing(run.places, run.model.count_model_loss)
    if passed:
        told += f" After {run.axis.when(passed[0])} it passes the n-gram baseline."
    return told
