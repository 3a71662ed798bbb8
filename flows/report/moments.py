"""Moments of the learning curve: when it passes a baseline, and the plateau before.

In:  places (x, loss) of one held-out split, and the baselines' losses.
Out: where the curve crosses a level for good, and the stretch near the unigram entropy.

Early in pre-training the loss falls to the entropy of word frequencies and stays there while
attention has not yet formed; a run that is cut off on this plateau has learnt nothing of context.
"""

from collections.abc import Sequence
from itertools import pairwise

ABOVE = 0.15
BELOW = 0.5
"""Nats around the unigram entropy that count as the plateau: it tends to lie a little below."""

SHORTEST = 0.04
"""A plateau shorter than this share of the run is not worth a word."""

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


def below(places: Sequence[Place], top: float) -> list[Place]:
    """The curve from where it first comes down to `top`; what is above is left out."""
    first = next((place for place, (_, y) in enumerate(places) if y <= top), None)
    if first is None:
        return []
    visible = [place for place in places[first:] if place[1] <= top]
    if first == 0:
        return visible
    (x0, y0), (x1, y1) = places[first - 1], places[first]
    return [(x0 + (y0 - top) / (y0 - y1) * (x1 - x0), top), *visible]


def interpolate(places: Sequence[Place], x: float) -> float:
    """The curve's value at `x`, straight between places and constant outside."""
    if x <= places[0][0]:
        return places[0][1]
    for (x0, y0), (x1, y1) in pairwise(places):
        if x <= x1:
            return y0 + (y1 - y0) * ((x - x0) / (x1 - x0) if x1 > x0 else 1.0)
    return places[-1][1]
