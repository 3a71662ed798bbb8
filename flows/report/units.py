"""Numbers formatted for readers, with units and a suitable number of digits.

In:  a float or an int.
Out: text with a narrow no-break space between number and unit.
"""

import math
from collections.abc import Mapping

THIN = "\u202f"
"""Narrow no-break space."""

MINUS = "\u2212"
"""The minus sign, as wide as a plus."""


def percent(share: float, *, digits: int = 1) -> str:
    """0.4731 → `47.3 %`."""
    return f"{signed(100 * share, digits=digits)}{THIN}%"


def small_percent(share: float) -> str:
    """A share with two digits below one percent: 0.0042 → `0.42 %`."""
    return percent(share, digits=2 if share < 0.01 else 1)


def probability(value: float) -> str:
    """In whole percent: 0.584 → `58 %`, 0.004 → `<1 %`."""
    return percent(value, digits=0) if value >= 0.01 else f"<{percent(0.01, digits=0)}"


def points(difference: float) -> str:
    """A difference of two shares, 0.053 → `+5.3`."""
    return signed(100 * difference, digits=1, plus=True)


def signed(value: float, *, digits: int, plus: bool = False) -> str:
    """Fixed digits with thousands separators, a minus sign, and no negative zero.

    With `plus`, positive numbers have a sign too, but not zero.
    """
    text = f"{value:z,.{digits}f}".replace("-", MINUS)
    return f"+{text}" if plus and value > 0 and text.strip("0.") else text


def nats(value: float) -> str:
    """3.0214 → `3.02 nats`."""
    return f"{signed(value, digits=2)}{THIN}nats"


def integer(value: float) -> str:
    """1234567 → `1,234,567`."""
    return f"{value:,.0f}"


def short(value: float) -> str:
    """1234567 → `1.23 M`; below ten thousand in full."""
    if abs(value) < 1e4:
        return integer(value)
    return _scaled(value, {"G": 1e9, "M": 1e6, "k": 1e3})


def three_digits(value: float) -> str:
    """Three significant digits, without an exponent: 1.23, 12.3, 123."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return signed(value, digits=min(digits, 4))


def scientific(value: float) -> str:
    """One significant digit with an exponent: 0.0002 → `2e-4`."""
    return f"{value:.0e}".replace("e-0", "e-") if value else "0"


def size(count: float) -> str:
    """Bytes in powers of ten: 37_100_000 → `37.1 MB`."""
    if count < 1e3:
        return f"{integer(count)}{THIN}B"
    return _scaled(count, {"TB": 1e12, "GB": 1e9, "MB": 1e6, "kB": 1e3})


def memory(count: float) -> str:
    """Bytes in powers of two: 4_200_000_000 → `3.91 GiB`."""
    return _scaled(count, {"GiB": 1 << 30, "MiB": 1 << 20, "KiB": 1 << 10})


def _scaled(value: float, units: Mapping[str, float]) -> str:
    """Three digits and the largest unit that fits, or the last."""
    unit = next((unit for unit, one in units.items() if abs(value) >= one), [*units][-1])
    return f"{three_digits(value / units[unit])}{THIN}{unit}"


def duration(seconds: float) -> str:
    """581 → `9 min 41 s`."""
    # From 9.95 on, one decimal would show 10.0.
    if seconds < 9.95:
        return f"{seconds:.1f}{THIN}s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}{THIN}h {minutes:02}{THIN}min"
    if minutes and rest:
        return f"{minutes}{THIN}min {rest}{THIN}s"
    return f"{minutes}{THIN}min" if minutes else f"{rest}{THIN}s"


def plural(count: int, noun: str, *, many: str = "") -> str:
    """`1 document`, `2 documents`."""
    return f"{integer(count)} {noun if count == 1 else many or noun + 's'}"
