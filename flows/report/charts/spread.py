"""Scores of several seeds: every seed a dot, the mean a stroke, its standard error a bar.

In:  one row per system.
Out: rows on one axis; an arrow spans what separates two of the means.

Five seeds are too few to hide behind a mean.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from flows.report.charts.svg import CHARACTER, Linear, box, dot, line, path, picture, text, ticks
from flows.report.units import THIN

ROW = 36
SCATTER = (0, -5, 5, -2.5, 2.5)
"""Pixels that keep the dots of one row off each other."""

SHORTEST = 9
HEAD = 5
"""Pixels: an arrow shorter than this is not drawn; the size of its head."""


@dataclass(frozen=True)
class Scores:
    """One system's row; values as they are written on the axis (percent)."""

    label: str
    kind: str
    """`ours`, `other` or `quiet` (a baseline)."""
    values: Sequence[float]
    mean: float
    standard_error: float
    shown: str


@dataclass(frozen=True)
class Spread:
    """What is drawn."""

    rows: Sequence[Scores]
    compared: tuple[int, int] | None = None
    """Rows that the arrow comes from and leads to."""
    published: tuple[float, str] | None = None
    """A paper's value and its name."""


def spread(chart: Spread, *, width: int, label: str) -> Markup:
    """Dot rows with means and standard errors."""
    rows = chart.rows
    left = min(max(len(row.label) for row in rows) * CHARACTER + 16, width * 0.36)
    room = max(len(row.shown) for row in rows) * CHARACTER + 22
    x = _scale(chart, left=left, right=width - room)
    top = 20.0 if chart.published else 4.0
    bottom = top + ROW * len(rows)
    parts = [*_axis(x, top=top, bottom=bottom), *_published(chart, x, top=top, bottom=bottom)]
    parts += _arrow(chart, x, top=top)
    for index, row in enumerate(rows):
        parts += _row(row, middle=top + ROW * (index + 0.5), x=x, width=width)
    return picture(parts, width=width, height=bottom + 24, label=label)


def _scale(chart: Spread, *, left: float, right: float) -> Linear:
    values = [value for row in chart.rows for value in (*row.values, row.mean)]
    values += [chart.published[0]] if chart.published else []
    low, high = min(values), max(values)
    margin = max((high - low) * 0.06, 0.5)
    return Linear(low - margin, high + margin, left, right)


def _axis(x: Linear, *, top: float, bottom: float) -> list[str]:
    parts = []
    for place in ticks(x.low, x.high, about=max(2, round((x.end - x.start) / 70))):
        parts.append(line((x(place), top), (x(place), bottom), class_="grid"))
        name = f"{place:g}{THIN}%"
        parts.append(text(name, x(place), bottom + 16, anchor="middle", class_="axis"))
    return parts


def _published(chart: Spread, x: Linear, *, top: float, bottom: float) -> list[str]:
    if chart.published is None:
        return []
    place = x(chart.published[0])
    return [
        line((place, top), (place, bottom), class_="division"),
        text(chart.published[1], place, 12, anchor="middle", class_="label note"),
    ]


def _arrow(chart: Spread, x: Linear, *, top: float) -> list[str]:
    """From the mean of what it is compared with to ours, between the two rows."""
    if chart.compared is None:
        return []
    against, ours = chart.compared
    start, end = x(chart.rows[against].mean), x(chart.rows[ours].mean)
    y = top + ROW * max(against, ours)
    if abs(end - start) < SHORTEST:
        return []
    head = HEAD if end > start else -HEAD
    tip = [(end - head, y - 3.5), (end, y), (end - head, y + 3.5)]
    return [line((start, y), (end, y), class_="gain"), path(tip, class_="gain")]


def _row(row: Scores, *, middle: float, x: Linear, width: int) -> list[str]:
    emphasis = " strong" if row.kind == "ours" else ""
    mean, error = x(row.mean), x(row.mean + row.standard_error) - x(row.mean)
    seeds = row.values if len(row.values) > 1 else ()
    return [
        text(row.label, x.start - 12, middle + 4, anchor="end", class_=f"label{emphasis}"),
        box((mean - error, middle + 9), (2 * error, 2.5), class_=f"{row.kind}-fill"),
        *(
            dot(
                x(value),
                middle + SCATTER[place % len(SCATTER)],
                r=3.2,
                tip=f"{row.label}: {value:.1f} %",
                class_=f"{row.kind}-fill seed",
            )
            for place, value in enumerate(seeds)
        ),
        line((mean, middle - 10), (mean, middle + 13), class_=f"{row.kind}-line"),
        text(row.shown, width, middle + 4, anchor="end", class_=f"value{emphasis}"),
    ]
