"""Charts as inline SVG, drawn by matplotlib.

In:  numbers and their labels.
Out: markup for the page.

Colours and fonts are those of report.css: matplotlib draws with placeholder colours that are
replaced with CSS variables, so that charts follow light and dark mode. Sizes are in pixels.
"""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle, product
from typing import Literal, TypedDict, Unpack

from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator
from matplotlib.typing import RcKeyType

from cloze.artifacts.results import SeedScores
from cloze.flows.report.units import THIN, integer, percent, short

VARIABLES = ("ink", "soft", "faint", "hair", "ours", "other", "quiet", "band")
COLOURS = {name: f"#00{number:02x}fe" for number, name in enumerate(VARIABLES)}
"""Placeholders for the variables of report.css; `ours` is the accent, `faint` a strong grey."""

STYLE: dict[RcKeyType, object] = {
    # text and not outlines, for the page's fonts
    "svg.fonttype": "none",
    "font.size": 12,
    # a dollar sign in a name begins no formula
    "text.parse_math": False,
    "text.color": COLOURS["ink"],
    "axes.edgecolor": COLOURS["other"],
    "axes.linewidth": 1,
    "axes.axisbelow": True,
    "xtick.color": COLOURS["soft"],
    "ytick.color": COLOURS["soft"],
    "xtick.labelsize": 11,
    "ytick.labelsize": 11,
    "ytick.major.size": 0,
    "grid.color": COLOURS["hair"],
    "grid.linewidth": 1,
    "lines.solid_capstyle": "round",
}

STEPS = (1, 2, 5, 10)
"""Ticks are multiples of these numbers times a power of ten."""

CHARACTER = 6.4
"""Mean width of a character at 12 pixels, for reserving space."""

SCATTER = (0, -5, 5, -2.5, 2.5)
"""Vertical offsets in pixels that separate the dots of one row."""

Places = Sequence[tuple[float, float]]


class TextStyle(TypedDict, total=False):
    """Arguments of matplotlib's text functions."""

    color: str
    weight: Literal["normal", "bold"]
    fontsize: float
    ha: Literal["left", "center", "right"]
    va: Literal["top", "center"]


STRONG: TextStyle = {"color": COLOURS["ours"], "weight": "bold"}
SOFT: TextStyle = {"color": COLOURS["soft"]}
SMALL: TextStyle = {"color": COLOURS["soft"], "fontsize": 11}


@dataclass(frozen=True)
class Bar:
    """One bar with its value as text."""

    label: str
    value: float
    shown: str
    colour: str = "other"


@dataclass(frozen=True)
class ChartLine:
    """One line of a chart, labelled at its end."""

    places: Places
    colour: str
    """`ours`, `other` or `quiet`."""
    label: str = ""


@dataclass(frozen=True)
class LineChart:
    """Lines over time, with references and annotations."""

    lines: Sequence[ChartLine]
    x_label: str
    y_label: str
    x_text: Callable[[float], str]
    y_text: Callable[[float], str]
    y_top: float | None = None
    """Upper limit; lines above it are cut off."""
    y_bottom: float | None = None
    second_x_text: Callable[[float], str] | None = None
    """A second row of tick labels, in another unit."""
    references: Sequence[tuple[float, str]] = ()
    """Horizontal lines to compare with."""
    mark: tuple[float, float, str] | None = None
    """An annotated point."""
    band: tuple[float, float, str] | None = None
    """A shaded range of the horizontal axis."""
    divisions: Sequence[tuple[float, str]] = ()
    """Labelled vertical lines, where the sequence length changes."""


@dataclass(frozen=True)
class SystemRow:
    """The scores of one system over its seeds."""

    label: str
    colour: str
    scores: SeedScores
    shown: str


@contextmanager
def drawing(
    width: float, height: float, label: str, *, margins: tuple[float, float, float, float]
) -> Iterator[tuple[Axes, list[Markup]]]:
    """Axes to draw on, inside margins (left, right, top, bottom) in pixels.

    On exit, the graphic is appended to the list; `label` is its text for screen readers.
    """
    left, right, top, bottom = margins
    drawn: list[Markup] = []
    # Ids are hashes of what they name, which charts of one size would share.
    with rc_context({**STYLE, "svg.hashsalt": f"cloze {label}"}):
        # At 72 dpi, a point is a pixel.
        figure = Figure(figsize=(width / 72, height / 72), dpi=72, frameon=False)
        inner = (width - left - right) / width, (height - top - bottom) / height
        axes = figure.add_axes((left / width, bottom / height, *inner))
        for side in ("top", "left", "right"):
            axes.spines[side].set_visible(False)
        axes.patch.set_visible(False)
        yield axes, drawn
        written = io.StringIO()
        with warnings.catch_warnings():
            # The reader's fonts draw the text, so that matplotlib's may lack its characters.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font|.* natively")
            figure.savefig(written, format="svg", metadata={"Date": None})
    # inside the page, colours and fonts come from the style sheet
    svg = written.getvalue()
    body = svg[svg.index(">", svg.index("<svg")) + 1 :]
    body = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", body, flags=re.DOTALL)
    body = re.sub(r" font-family: [^;\"]*;| transform=\"rotate\(-0 [^\"]*\"", "", body)
    # Ids that nothing refers to, and that all charts of a page would share.
    body = re.sub(r' id="(?:figure|axes|patch|line2d|text|xtick|ytick|matplotlib)[^"]*"', "", body)
    body = body.replace("xlink:href", "href").replace("\n", "")
    for name, placeholder in COLOURS.items():
        body = body.replace(placeholder, f"var(--{name})")
    # matplotlib has escaped all text
    opening = Markup('<svg viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">')
    size = (round(width), round(height))
    drawn.append(opening.format(*size, *size, label) + Markup(body))


def _note(
    axes: Axes,
    text: str,
    place: tuple[float, float],
    offset: tuple[float, float],
    **style: Unpack[TextStyle],
) -> None:
    """Text at an offset, in pixels, from a point of the data."""
    words: TextStyle = {"va": "center", **style}
    axes.annotate(
        text, place, xytext=offset, textcoords="offset points", annotation_clip=False, **words
    )


@dataclass(frozen=True)
class BarChart:
    """Horizontal bars from zero."""

    rows: Sequence[Bar]
    labels: int
    """Pixels for the labels on the left; without any, they are not drawn."""
    longest: float = 0.0
    """Limit of the axis; by default the largest value."""
    pitch: int = 30
    """Pixels from one bar to the next."""


def bars(chart: BarChart, *, width: int, label: str) -> Markup:
    """Draw the bars."""
    rows, pitch = chart.rows, chart.pitch
    room = max(len(row.shown) for row in rows) * CHARACTER + 10
    margins = (chart.labels + 1, room, 0, 0)
    with drawing(width, pitch * len(rows), label, margins=margins) as (axes, drawn):
        axes.axis("off")
        axes.set_xlim(0, chart.longest or max(row.value for row in rows) or 1)
        # The first row is at the top.
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.axvline(0, color=COLOURS["other"], linewidth=1)
        for place, row in enumerate(rows):
            strong: TextStyle = STRONG if row.colour == "ours" else {}
            # At most 16 pixels, and 5 between bars.
            thick = min(1 - 5 / pitch, 16 / pitch)
            axes.barh(place, row.value, thick, color=COLOURS[row.colour])
            _note(axes, row.shown, (row.value, place), (6, 0), **strong)
            if chart.labels:
                name: TextStyle = {**SOFT, **strong, "ha": "right"}
                _note(axes, row.label, (0, place), (-8, 0), **name)
    return drawn[0]


def line_chart(chart: LineChart, *, width: int, height: int, label: str) -> Markup:
    """Lines labelled at their ends instead of in a legend, with references and annotations."""
    named = [line.label for line in chart.lines] + [name for _, name in chart.references]
    # Space on the right for the longest label, at most 40 % of the width.
    room = min(max((len(name) for name in named), default=0) * CHARACTER + 14, width * 0.4)
    margins = (36.0, room, 26.0, 52.0 if chart.second_x_text else 38.0)
    with drawing(width, height, label, margins=margins) as (axes, drawn):
        _lines(axes, chart)
        low, high = axes.get_ylim()
        axes.set_ylim(low - 0.04 * (high - low), high + 0.04 * (high - low))
        axes.grid(axis="y")
        axes.xaxis.set_major_locator(MaxNLocator(max(3, round((width - room) / 90)), steps=STEPS))
        axes.yaxis.set_major_locator(MaxNLocator(6, steps=STEPS))
        second = chart.second_x_text or (lambda _: "")
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda x, _: f"{chart.x_text(x)}\n{second(x)}".rstrip())
        )
        axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: chart.y_text(y)))
        axes.text(0, height - 12, chart.y_label, transform=None, **SMALL)
        beside = (width - room + 20, margins[3] - 6)
        axes.text(*beside, chart.x_label, transform=None, va="top", **SMALL)
        if chart.band:
            start, end, name = chart.band
            axes.axvspan(start, end, color=COLOURS["band"], zorder=0, linewidth=0)
            _note(axes, name, (start, axes.get_ylim()[0]), (4, 10), **SMALL)
        for place, name in chart.divisions:
            axes.axvline(place, color=COLOURS["faint"], linewidth=1, linestyle=(0, (1, 3)))
            before: TextStyle = {**SMALL, "ha": "right"}
            _note(axes, name, (place, axes.get_ylim()[1]), (-5, -8), **before)
        if chart.mark:
            x, y, name = chart.mark
            axes.plot(x, y, "o", markersize=7, mfc="none", mec=COLOURS["ours"], mew=2)
            # Right of the point and above it, where a falling curve leaves room; but below and to
            # the left where the words would run into the labels at the ends of the lines.
            end = float(axes.transData.transform((x, y))[0]) + 8 + len(name) * CHARACTER
            fits = end < width - room
            _note(axes, name, (x, y), (8, 10) if fits else (-8, -12), **_anchored(fits))
        # Labels stand at the ends of their lines, in pixels, moved apart where they would overlap.
        ends = [(line.places[-1][1], line.label, line.colour) for line in chart.lines if line.label]
        ends += [(level, name, "faint") for level, name in chart.references if name]
        wanted = [float(axes.transData.transform((0, level))[1]) for level, _, _ in ends]
        low, high = axes.transAxes.transform([(0, 0), (0, 1)])[:, 1]
        heights = apart(wanted, gap=15, low=low, high=high)
        for (_, name, colour), y in zip(ends, heights, strict=True):
            style: TextStyle = {**(STRONG if colour == "ours" else SOFT), "va": "center"}
            axes.text(width - room + 7, y, name, transform=None, **style)
    return drawn[0]


def _anchored(fits: bool) -> TextStyle:
    """Small text that begins at its place, or that ends there."""
    return {**SMALL, "ha": "left" if fits else "right"}


def _lines(axes: Axes, chart: LineChart) -> None:
    """Draw the lines and references, and set the limits of the axes."""
    levels = [level for level, _ in chart.references]
    every = [y for line in chart.lines for _, y in line.places] + levels
    top = max(every) if chart.y_top is None else min(max(every), chart.y_top)
    bottom = min(every) if chart.y_bottom is None else chart.y_bottom
    xs = [x for line in chart.lines for x, _ in line.places]
    # Equal limits would make matplotlib choose others.
    axes.set_xlim(min(xs), max(*xs, min(xs) + 1e-9))
    axes.set_ylim(bottom, max(top, bottom + 1e-9))
    for level in levels:
        axes.axhline(level, color=COLOURS["faint"], linewidth=1, linestyle=(0, (3, 3)))
    for line in chart.lines:
        # A line that never falls to `top` has nothing to draw.
        x, y = zip(*falling_part(line.places, top) or [(math.nan, math.nan)], strict=True)
        thick = {"ours": 2.2, "other": 2.0}.get(line.colour, 1.4)
        form = "o" if len(x) == 1 else "-"
        axes.plot(x, y, form, color=COLOURS[line.colour], linewidth=thick, clip_on=False)


def falling_part(places: Places, top: float) -> list[tuple[float, float]]:
    """The curve from where it first falls to `top`, without points above."""
    first = next((place for place, (_, y) in enumerate(places) if y <= top), None)
    if first is None:
        return []
    visible = [place for place in places[first:] if place[1] <= top]
    if first == 0:
        return visible
    # Where the line from the last point above crosses `top`.
    (x0, y0), (x1, y1) = places[first - 1], places[first]
    return [(x0 + (y0 - top) / (y0 - y1) * (x1 - x0), top), *visible]


def apart(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Positions near the wanted ones in the same order, `gap` apart and within [low, high]."""
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    # Upwards, each at least `gap` above the one before; then downwards, as far as they have passed
    # `high`.
    for index in order:
        places[index] = max(wanted[index], low)
        low = places[index] + gap
    for index in reversed(order):
        places[index] = min(places[index], high)
        high = places[index] - gap
    return places


def small_chart(chart: LineChart, *, label: str, width: int = 168, height: int = 128) -> Markup:
    """A small multiple: ticks only at the limits, and the name above."""
    with drawing(width, height, label, margins=(36.0, 10.0, 24.0, 20.0)) as (axes, drawn):
        _lines(axes, chart)
        axes.text(0, height - 12, chart.y_label, transform=None, color=COLOURS["soft"])
        axes.set_xticks(axes.get_xlim(), [chart.x_text(x) for x in axes.get_xlim()])
        axes.set_yticks(axes.get_ylim(), [chart.y_text(y) for y in axes.get_ylim()])
        axes.grid(axis="y")
        axes.spines["bottom"].set_visible(False)
        axes.tick_params(length=0)
        first, last = axes.get_xticklabels()
        first.set_horizontalalignment("left")
        last.set_horizontalalignment("right")
    return drawn[0]


def log_log(places: Places, *, width: int, height: int, label: str) -> Markup:
    """A line on logarithmic axes, for frequencies by rank."""
    with drawing(width, height, label, margins=(48.0, 14.0, 12.0, 36.0)) as (axes, drawn):
        axes.loglog(*zip(*places, strict=True), color=COLOURS["faint"], linewidth=1.8)
        axes.grid(axis="y")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_minor_locator(NullLocator())
            axis.set_major_formatter(FuncFormatter(lambda value, _: short(value)))
        axes.set_xlabel("rank", loc="right", color=COLOURS["soft"], fontsize=11)
    return drawn[0]


def column_chart(
    counts: Sequence[int], edges: Sequence[str], *, width: int, height: int, label: str
) -> Markup:
    """A histogram with its highest column labelled; `edges` are the bin edges as text."""
    with drawing(width, height, label, margins=(0.0, 14.0, 18.0, 22.0)) as (axes, drawn):
        axes.bar(range(len(counts)), counts, 0.96, align="edge", color=COLOURS["other"])
        axes.set_xlim(0, len(counts))
        axes.set_ylim(0, max(counts) or 1)
        # As many labels as fit beside each other.
        widest = max(len(name) for name in edges) * CHARACTER * 1.4
        every = max(1, math.ceil(widest * len(counts) / width))
        axes.set_xticks(range(0, len(edges), every), edges[::every])
        axes.tick_params(length=0)
        axes.set_yticks([])
        axes.get_xticklabels()[0].set_horizontalalignment("left")
        peak = max(range(len(counts)), key=lambda index: counts[index])
        share = percent(counts[peak] / (sum(counts) or 1), digits=0)
        # leaves room for the label of the first and the last column
        middle = min(max((peak + 0.5) * width, 16 * len(counts)), (width - 30) * len(counts))
        _note(axes, share, (middle / width, counts[peak]), (0, 7), ha="center")
    return drawn[0]


def shades(
    counts: Sequence[Sequence[int]], labels: Sequence[str], *, width: int, label: str
) -> Markup:
    """A confusion matrix, gold by predicted label, shaded by the share of the row."""
    left = min(max(len(name) for name in labels) * CHARACTER + 12, width * 0.4)
    cell = min((width - left) / len(labels), 56.0)
    side, room = cell * len(labels), int(cell / CHARACTER)
    with drawing(left + side, 24 + side, label, margins=(left, 0, 22, 2)) as (axes, drawn):
        axes.set_xlim(0, len(labels))
        axes.set_ylim(len(labels), 0)
        middles = [place + 0.5 for place in range(len(labels))]
        clipped = [n if len(n) <= room else f"{n[: max(room - 1, 1)]}…" for n in labels]
        axes.xaxis.tick_top()
        axes.set_xticks(middles, clipped)
        axes.set_yticks(middles, labels, fontsize=12)
        axes.tick_params(length=0)
        axes.spines["bottom"].set_visible(False)
        for row, column in product(range(len(labels)), repeat=2):
            count = counts[row][column]
            colour = COLOURS["ours" if row == column else "other"]
            # Even an empty cell is faintly visible.
            shade = 0.06 + 0.84 * count / (sum(counts[row]) or 1)
            axes.bar(column + 0.5, 0.96, 0.96, row + 0.02, color=colour, alpha=shade)
            if count and cell > 30:
                middle = (column + 0.5, row + 0.5)
                _note(axes, integer(count), middle, (0, 0), ha="center", fontsize=11)
    return drawn[0]


def seed_dots(
    rows: Sequence[SystemRow],
    *,
    width: int,
    label: str,
    compared: tuple[int, int] | None = None,
    reference: tuple[float, str] | None = None,
) -> Markup:
    """A dot for every seed, a stroke for the mean, and a bar for its standard error.

    An arrow connects the means of the rows `compared`; `reference` is a published value.
    """
    # On a phone nearly half, so that no name of a system is cut off.
    left = min(max(len(row.label) for row in rows) * CHARACTER + 16, width * 0.48)
    room = max(len(row.shown) for row in rows) * CHARACTER + 22
    top, pitch = 20.0 if reference else 4.0, 36
    height = top + pitch * len(rows) + 24
    with drawing(width, height, label, margins=(left, room, top, 24)) as (axes, drawn):
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_yticks([])
        axes.spines["bottom"].set_visible(False)
        axes.grid(axis="x")
        axes.tick_params(length=0)
        ticks = max(2, round((width - left - room) / 80))
        axes.xaxis.set_major_locator(MaxNLocator(ticks, steps=STEPS))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}{THIN}%"))
        for place, row in enumerate(rows):
            colour = COLOURS[row.colour]
            mean, error = 100 * row.scores.mean, 100 * row.scores.standard_error
            axes.plot([mean] * 2, [place - 0.28, place + 0.36], color=colour, linewidth=2)
            axes.plot([mean - error, mean + error], [place + 0.28] * 2, color=colour, linewidth=2.5)
            # A single value is its own mean, which the stroke shows already.
            values = row.scores.values if len(row.scores.values) > 1 else ()
            for value, offset in zip(values, cycle(SCATTER), strict=False):
                y = place + offset / pitch
                axes.plot(100 * value, y, "o", color=colour, alpha=0.55, markersize=6.4, mew=0)
            strong: TextStyle = STRONG if row.colour == "ours" else {}
            # In pixels from the bottom, for texts beside the axes.
            middle = height - top - pitch * (place + 0.5)
            name: TextStyle = {**SOFT, **strong, "ha": "right", "va": "center"}
            shown: TextStyle = {**strong, "ha": "right", "va": "center"}
            axes.text(left - 12, middle, row.label, transform=None, **name)
            axes.text(width, middle, row.shown, transform=None, **shown)
        if reference:
            axes.axvline(reference[0], color=COLOURS["faint"], linewidth=1, linestyle=(0, (1, 3)))
            _note(axes, reference[1], (reference[0], -0.5), (0, 9), ha="center", fontsize=11)
        if compared:
            start, end = (100 * rows[place].scores.mean for place in compared)
            style = {"arrowstyle": "->", "lw": 1.2, "color": COLOURS["ours"]}
            y = max(compared) - 0.5
            arrow = {**style, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", (end, y), (start, y), arrowprops=arrow)
        axes.margins(x=0.06)
    return drawn[0]
