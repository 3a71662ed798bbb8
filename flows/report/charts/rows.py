"""Bars in rows, every value written at the end of its bar.

In:  labelled values.
Out: horizontal bars, for comparison.

Bars begin at zero, always: their length is the number.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from flows.report.charts.svg import CHARACTER, Linear, box, line, picture, text

ROW = 30
BAR = 16


@dataclass(frozen=True)
class Row:
    """One bar."""

    label: str
    value: float
    shown: str
    """The value as text."""
    kind: str = "other"
    """`ours` is drawn in the accent colour, `main` darker than `other`."""
    tip: str = ""


def bars(
    rows: Sequence[Row],
    *,
    width: int,
    label: str,
    longest: float = 0.0,
    labels: int = -1,
    pitch: int = ROW,
) -> Markup:
    """Horizontal bars. `longest` is the value of full length, `labels` the width of their names."""
    left = labels if labels >= 0 else _label_width(rows, width)
    room = max(len(row.shown) for row in rows) * CHARACTER + 10
    scale = Linear(0, longest or max(row.value for row in rows) or 1, left, width - room)
    parts = [line((left, 0), (left, pitch * len(rows)), class_="axis-line")]
    for index, row in enumerate(rows):
        parts += _bar(row, middle=pitch * (index + 0.5), scale=scale, thick=min(pitch - 5, BAR))
    return picture(parts, width=width, height=pitch * len(rows), label=label)


def _bar(row: Row, *, middle: float, scale: Linear, thick: int) -> list[str]:
    end = max(scale(row.value), scale.start + 1)
    emphasis = " strong" if row.kind == "ours" else ""
    tip = row.tip or f"{row.label}: {row.shown}"
    parts = [
        box(
            (scale.start, middle - thick / 2),
            (end - scale.start, thick),
            class_=f"{row.kind}-fill",
            tip=tip,
        ),
        text(row.shown, end + 6, middle + 4, class_=f"value{emphasis}"),
    ]
    if scale.start > 0:
        parts.append(
            text(row.label, scale.start - 8, middle + 4, anchor="end", class_=f"label{emphasis}")
        )
    return parts


def _label_width(rows: Sequence[Row], width: int) -> int:
    longest = max(len(row.label) for row in rows) * CHARACTER + 12
    return round(min(longest, width * 0.45))
