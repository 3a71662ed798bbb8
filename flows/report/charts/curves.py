"""Lines over time: the learning curve with its baselines, and small ones of the same form.

In:  series of places, reference lines, marks.
Out: a line chart with labels at the lines' ends instead of a legend.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from markupsafe import Markup

from flows.report.charts.moments import below
from flows.report.charts.svg import (
    CHARACTER,
    Linear,
    Logarithmic,
    apart,
    box,
    dot,
    line,
    path,
    picture,
    powers_of_ten,
    text,
    ticks,
)

Places = Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Series:
    """One line."""

    places: Places
    kind: str
    """`ours`, `other` or `faint`."""
    label: str = ""
    """Written at its end."""
    tips: Sequence[str] = ()
    """One per place; where given, places are marked by dots that carry them."""


@dataclass(frozen=True)
class Reference:
    """A horizontal line to compare with."""

    level: float
    label: str


@dataclass(frozen=True)
class Mark:
    """A moment worth a word."""

    x: float
    y: float
    label: str


@dataclass(frozen=True)
class Band:
    """A stretch of the horizontal axis."""

    start: float
    end: float
    label: str


@dataclass(frozen=True)
class Chart:
    """What is drawn."""

    series: Sequence[Series]
    x_label: str
    y_label: str
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]
    y_top: float | None = None
    """Where the picture ends; what lies above is cut off."""
    y_bottom: float | None = None
    """Where it begins, if not at the lowest place."""
    second_x_text: Callable[[float], str] | None = None
    """A second row of labels under the ticks, in another unit."""
    second_x_label: str = ""
    references: Sequence[Reference] = ()
    marks: Sequence[Mark] = ()
    bands: Sequence[Band] = ()
    divisions: Sequence[tuple[float, str]] = field(default_factory=tuple)
    """Vertical lines with a word: a new sequence length."""


@dataclass(frozen=True)
class Frame:
    """Where the axes lie, pixels."""

    left: float
    right: float
    top: float
    bottom: float
    x: Linear
    y: Linear


def curves(chart: Chart, *, width: int, height: int, label: str) -> Markup:
    """The line chart with everything in it."""
    frame = _frame(chart, width=width, height=height)
    parts = [
        *_bands(chart, frame),
        *_y_axis(chart, frame),
        *_x_axis(chart, frame),
        *_divisions(chart, frame),
        *(_reference(reference, frame) for reference in chart.references),
        *(piece for series in chart.series for piece in _series(series, frame)),
        *(piece for mark in chart.marks for piece in _mark(mark, frame)),
        *_end_labels(chart, frame),
    ]
    return picture(parts, width=width, height=height, label=label)


def small(chart: Chart, *, width: int = 168, height: int = 128, label: str) -> Markup:
    """The same, as a member of small multiples: only the extremes are ticked, its name above."""
    x, y = _extents(chart)
    left, right, top, bottom = 34.0, width - 8.0, 24.0, height - 20.0
    frame = Frame(left, right, top, bottom, Linear(*x, left, right), Linear(*y, bottom, top))
    parts = [text(chart.y_label, 0, 12, class_="label"), *_extremes(chart, frame, x=x, y=y)]
    parts += [_reference(reference, frame) for reference in chart.references]
    parts += [piece for series in chart.series for piece in _series(series, frame)]
    return picture(parts, width=width, height=height, label=label)


def log_log(places: Places, *, width: int, height: int, label: str) -> Markup:
    """Both axes logarithmic, as ranks and frequencies want."""
    xs, ys = [x for x, _ in places], [y for _, y in places]
    left, right, top, bottom = 48.0, width - 14.0, 12.0, height - 36.0
    x = Logarithmic(min(xs), max(xs), left, right)
    y = Logarithmic(max(min(ys), 1), max(ys), bottom, top)
    parts = []
    for level in powers_of_ten(y.low, y.high):
        parts.append(line((left, y(level)), (right, y(level)), class_="grid"))
        parts.append(text(_power(level), left - 6, y(level) + 4, anchor="end", class_="axis"))
    parts += [
        text(_power(place), x(place), bottom + 16, anchor="middle", class_="axis")
        for place in powers_of_ten(x.low, x.high)
    ]
    parts.append(text("rank", right, bottom + 31, anchor="end", class_="axis"))
    parts.append(path(((x(a), y(b)) for a, b in places), class_="main-line"))
    return picture(parts, width=width, height=height, label=label)


def _power(value: float) -> str:
    exponent = round(math.log10(value))
    units = ("", "k", "M", "G")
    return f"{10 ** (exponent % 3)}\u202f{units[exponent // 3]}".strip("\u202f")


def _extents(chart: Chart) -> tuple[tuple[float, float], tuple[float, float]]:
    xs = [x for series in chart.series for x, _ in series.places]
    ys = [y for series in chart.series for _, y in series.places]
    ys += [reference.level for reference in chart.references]
    top = max(ys) if chart.y_top is None else min(max(ys), chart.y_top)
    bottom = min(ys) if chart.y_bottom is None else chart.y_bottom
    return (min(xs), max(xs)), (bottom, top)


def _frame(chart: Chart, *, width: int, height: int) -> Frame:
    (x_low, x_high), (y_low, y_high) = _extents(chart)
    margin = (y_high - y_low) * 0.04
    labels = [series.label for series in chart.series] + [r.label for r in chart.references]
    room = max((len(name) for name in labels), default=0) * CHARACTER + 12
    left, right, top = 34.0, width - min(room, width * 0.4), 26.0
    bottom = height - (52.0 if chart.second_x_text else 36.0)
    return Frame(
        left=left,
        right=right,
        top=top,
        bottom=bottom,
        x=Linear(x_low, x_high, left, right),
        y=Linear(y_low - margin, y_high + margin, bottom, top),
    )


def _extremes(
    chart: Chart, frame: Frame, *, x: tuple[float, float], y: tuple[float, float]
) -> Iterator[str]:
    for level in y:
        place = frame.y(level)
        yield line((frame.left, place), (frame.right, place), class_="grid")
        yield text(chart.y_text(level), frame.left - 5, place + 4, anchor="end", class_="axis")
    for value, anchor in zip(x, ("start", "end"), strict=True):
        shown = chart.x_text(value)
        yield text(shown, frame.x(value), frame.bottom + 15, anchor=anchor, class_="axis")


def _y_axis(chart: Chart, frame: Frame) -> list[str]:
    parts = [text(chart.y_label, 0, 12, class_="axis")]
    for level in ticks(frame.y.low, frame.y.high, about=5):
        y = frame.y(level)
        parts.append(line((frame.left, y), (frame.right, y), class_="grid"))
        parts.append(text(chart.y_text(level), frame.left - 7, y + 4, anchor="end", class_="axis"))
    return parts


def _x_axis(chart: Chart, frame: Frame) -> list[str]:
    (low, high), _ = _extents(chart)
    parts = [line((frame.left, frame.bottom), (frame.right, frame.bottom), class_="axis-line")]
    for place in ticks(low, high, about=max(3, round((frame.right - frame.left) / 75))):
        x = frame.x(place)
        parts.append(line((x, frame.bottom), (x, frame.bottom + 4), class_="axis-line"))
        parts.append(
            text(chart.x_text(place), x, frame.bottom + 17, anchor="middle", class_="axis")
        )
        if chart.second_x_text:
            second = chart.second_x_text(place)
            parts.append(text(second, x, frame.bottom + 33, anchor="middle", class_="axis second"))
    beside = frame.right + 28
    parts.append(text(chart.x_label, beside, frame.bottom + 17, class_="axis"))
    parts.append(text(chart.second_x_label, beside, frame.bottom + 33, class_="axis second"))
    return parts


def _series(series: Series, frame: Frame) -> list[str]:
    visible = below(series.places, frame.y.high)
    places = ((frame.x(x), frame.y(y)) for x, y in visible)
    parts = [path(places, class_=f"{series.kind}-line")]
    if series.tips:
        radius = 2.2 if len(series.tips) > 1 else 4
        parts += [
            dot(frame.x(x), frame.y(y), r=radius, tip=tip, class_=f"{series.kind}-fill touch")
            for (x, y), tip in zip(series.places, series.tips, strict=True)
            if y <= frame.y.high
        ]
    return parts


def _reference(reference: Reference, frame: Frame) -> str:
    y = frame.y(reference.level)
    return line((frame.left, y), (frame.right, y), class_="reference")


def _mark(mark: Mark, frame: Frame) -> list[str]:
    x, y = frame.x(mark.x), frame.y(mark.y)
    return [
        dot(x, y, r=4.5, class_="mark", tip=mark.label),
        text(mark.label, x + 9, y - 8, class_="label note"),
    ]


def _bands(chart: Chart, frame: Frame) -> list[str]:
    parts = []
    for band in chart.bands:
        x, end = frame.x(band.start), frame.x(band.end)
        extent = (end - x, frame.bottom - frame.top)
        parts.append(box((x, frame.top), extent, class_="band", tip=band.label))
        parts.append(text(band.label, x + 4, frame.bottom - 8, class_="label note"))
    return parts


def _divisions(chart: Chart, frame: Frame) -> list[str]:
    parts = []
    for place, name in chart.divisions:
        x = frame.x(place)
        parts.append(line((x, frame.top), (x, frame.bottom), class_="division"))
        parts.append(text(name, x - 5, frame.top + 12, anchor="end", class_="label note"))
    return parts


def _end_labels(chart: Chart, frame: Frame) -> list[str]:
    named = [(series.places[-1][1], series.label, series.kind) for series in chart.series]
    named += [(reference.level, reference.label, "quiet") for reference in chart.references]
    named = [entry for entry in named if entry[1]]
    wanted = [frame.y(level) for level, _, _ in named]
    places = apart(wanted, gap=15, low=frame.top, high=frame.bottom)
    return [
        text(name, frame.right + 7, place + 4, class_=f"label {kind}-text")
        for (_, name, kind), place in zip(named, places, strict=True)
    ]
