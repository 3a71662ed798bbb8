"""Counts by bin, and a table of counts as shades.

In:  a histogram; a confusion matrix.
Out: columns whose area is the count's share; a square of shaded cells.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from flows.report.charts.svg import CHARACTER, Linear, box, line, picture, text
from flows.report.units import integer, percent

LARGEST_CELL = 56.0


@dataclass(frozen=True)
class Columns:
    """A histogram to draw."""

    counts: Sequence[int]
    edges: Sequence[str]
    """The bins' borders as text, one more than counts."""
    noun: str
    """What is counted."""


def columns(histogram: Columns, *, width: int, height: int, label: str) -> Markup:
    """Vertical columns, the highest one labelled, all with tooltips."""
    bottom, right = height - 22.0, width - 14.0
    step = right / len(histogram.counts)
    y = Linear(0, max(histogram.counts) or 1, bottom, 18)
    parts = [
        *_columns(histogram, step=step, y=y),
        line((0, bottom), (right, bottom), class_="axis-line"),
        *_edges(histogram.edges, step=step, y=height - 6),
        _peak(histogram.counts, step=step, y=y, right=right),
    ]
    return picture(parts, width=width, height=height, label=label)


def shades(
    counts: Sequence[Sequence[int]], labels: Sequence[str], *, width: int, label: str
) -> Markup:
    """A confusion matrix: rows are the truth, columns the answer, shades the row's shares."""
    left = min(max(len(name) for name in labels) * CHARACTER + 12, width * 0.4)
    cell = min((width - left) / len(labels), LARGEST_CELL)
    parts = []
    for index, name in enumerate(labels):
        middle = (index + 0.5) * cell
        parts.append(text(name, left - 8, 22 + middle + 4, anchor="end", class_="label"))
        parts.append(text(_clip(name, cell), left + middle, 14, anchor="middle", class_="axis"))
    for row, values in enumerate(counts):
        for column, count in enumerate(values):
            whole = sum(values) or 1
            kind = "ours-fill" if row == column else "other-fill"
            tip = f"{labels[row]} taken for {labels[column]}: {integer(count)} of {integer(whole)}"
            corner = (left + column * cell, 22 + row * cell)
            shade = f"{0.06 + 0.84 * count / whole:.2f}"
            extent = (cell - 1.5, cell - 1.5)
            parts.append(box(corner, extent, class_=kind, fill_opacity=shade, tip=tip))
            if count and cell > 30:
                place = (corner[0] + cell / 2, corner[1] + cell / 2 + 4)
                parts.append(text(integer(count), *place, anchor="middle", class_="cell"))
    side = cell * len(labels)
    return picture(parts, width=left + side, height=24 + side, label=label)


def _columns(histogram: Columns, *, step: float, y: Linear) -> Iterator[str]:
    whole = sum(histogram.counts) or 1
    for index, count in enumerate(histogram.counts):
        span = f"{histogram.edges[index]} to {histogram.edges[index + 1]}"
        tip = f"{span}: {integer(count)} {histogram.noun}, {percent(count / whole)}"
        extent = (max(step - 1, 0.5), y.start - y(count))
        yield box((index * step, y(count)), extent, class_="other-fill", tip=tip)


def _edges(edges: Sequence[str], *, step: float, y: float) -> Iterator[str]:
    widest = max(len(name) for name in edges) * CHARACTER * 1.4
    every = max(1, -int(-widest // step))
    for index in range(0, len(edges), every):
        anchor = "start" if index == 0 else "end" if index == len(edges) - 1 else "middle"
        yield text(edges[index], index * step, y, anchor=anchor, class_="axis")


def _peak(counts: Sequence[int], *, step: float, y: Linear, right: float) -> str:
    peak = max(range(len(counts)), key=lambda index: counts[index])
    x = min(max((peak + 0.5) * step, 16), right - 16)
    share = counts[peak] / (sum(counts) or 1)
    return text(percent(share, digits=0), x, y(counts[peak]) - 5, anchor="middle", class_="value")


def _clip(name: str, cell: float) -> str:
    room = int(cell / CHARACTER)
    return name if len(name) <= room else name[: max(room - 1, 1)] + "…"
