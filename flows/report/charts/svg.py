"""Scalable vector graphics by hand: elements, scales, ticks. Colours live in report.css alone.

In:  numbers.
Out: SVG elements as strings, escaped; a class says what a mark means, the style sheet how it looks.

Made by hand because a figure must follow light and dark mode, carry tooltips (`<title>`), and be
drawn once for a desk and once for a phone, so that text is never scaled down.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

from markupsafe import Markup

CHARACTER = 6.4
"""Mean width of a 12-pixel character of a sans-serif type, pixels; for reserving space."""


@dataclass(frozen=True)
class Linear:
    """Equal steps are equal lengths."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of `value`."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


@dataclass(frozen=True)
class Logarithmic:
    """Equal factors are equal lengths."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The place of `value`, which must be positive."""
        span = math.log(self.high / self.low) or 1.0
        return self.start + math.log(value / self.low) / span * (self.end - self.start)


def ticks(low: float, high: float, *, about: int = 5) -> list[float]:
    """Round numbers between `low` and `high`, in steps of 1, 2 or 5 times a power of ten."""
    raw = (high - low) / max(about, 1)
    if raw <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(raw))
    # rather too few than too many: labels must not touch
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= 0.6 * raw)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 10) for index in range(first, last + 1)]


def powers_of_ten(low: float, high: float) -> list[float]:
    """1, 10, 100, … within the range."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    return [10.0**exponent for exponent in range(first, last + 1)]


def apart(wanted: Sequence[float], *, gap: float, low: float, high: float) -> list[float]:
    """Places near the wanted ones, in their order, at least `gap` apart, within [low, high].

    Labels at the end of lines would otherwise lie on each other.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    places = [0.0] * len(wanted)
    floor = low
    for index in order:
        places[index] = max(wanted[index], floor)
        floor = places[index] + gap
    ceiling = high
    for index in reversed(order):
        places[index] = min(places[index], ceiling)
        ceiling = places[index] - gap
    return places


def element(name: str, *children: str, **attributes: object) -> str:
    """`<name …>children</name>`; `class_` is class, `_` is a hyphen, None is left out."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_value(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{''.join(children)}</{name}>" if children else f"<{name}{written}/>"


def text(content: str, x: float, y: float, *, tip: str = "", **attributes: object) -> str:
    """Words at a place; `anchor` is start, middle or end."""
    anchor = attributes.pop("anchor", None)
    return element("text", title(tip), escape(content), x=x, y=y, text_anchor=anchor, **attributes)


def title(tip: str) -> str:
    """A tooltip; nothing for an empty one."""
    return element("title", escape(tip)) if tip else ""


def line(start: tuple[float, float], end: tuple[float, float], **attributes: object) -> str:
    """A straight line."""
    return element("line", x1=start[0], y1=start[1], x2=end[0], y2=end[1], **attributes)


def path(places: Iterable[tuple[float, float]], *, tip: str = "", **attributes: object) -> str:
    """A line through `places`."""
    steps = " L".join(f"{x:.1f},{y:.1f}" for x, y in places)
    return element("path", title(tip), d=f"M{steps}", **attributes) if steps else ""


def dot(x: float, y: float, *, tip: str = "", r: float = 4, **attributes: object) -> str:
    """A disc."""
    return element("circle", title(tip), cx=x, cy=y, r=r, **attributes)


def box(corner: tuple[float, float], extent: tuple[float, float], **attributes: object) -> str:
    """A rectangle; `tip` is its tooltip."""
    tip = str(attributes.pop("tip", ""))
    width, height = max(extent[0], 0.0), max(extent[1], 0.0)
    x, y = corner
    return element("rect", title(tip), x=x, y=y, width=width, height=height, **attributes)


def picture(parts: Iterable[str], *, width: float, height: float, label: str) -> Markup:
    """The whole graphic; `label` is what a screen reader says."""
    # built of escaped pieces only, so it may enter the page as it is
    return Markup(
        element(
            "svg",
            "".join(parts),
            viewBox=f"0 0 {width:.0f} {height:.0f}",
            width=f"{width:.0f}",
            height=f"{height:.0f}",
            role="img",
            aria_label=label,
        )
    )


def _value(value: object) -> str:
    return f"{value:.1f}" if isinstance(value, float) else escape(str(value))
