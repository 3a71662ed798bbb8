"""Which documents a quality score keeps: the setting `cleaning.keep`.

In:  `">= 0.6"` or `"best 50%"`.
Out: a least score, or a share.
"""

import math
import re
from dataclasses import dataclass

_KEEP = re.compile(r"(?P<how>>=|best)\s*(?P<number>[-+]?[0-9.]+)\s*(?P<percent>%?)")


@dataclass(frozen=True)
class Keep:
    """A least score, or the share of each source with the highest scores."""

    least: float | None = None
    share: float | None = None

    @classmethod
    def of(cls, text: str) -> "Keep":
        """Read the setting; raises `ValueError`."""
        found = _KEEP.fullmatch(text.strip())
        try:
            number = float(found["number"]) if found else math.nan
        except ValueError:
            number = math.nan
        is_share = found is not None and found["how"] == "best"
        if not found or not math.isfinite(number) or is_share != bool(found["percent"]):
            raise ValueError(f'{text!r}: expected a least score, ">= 0.6", or a share, "best 50%"')
        if not is_share:
            return cls(least=number)
        if not 0 < number <= 100:
            raise ValueError(f'{text!r}: expected a share above 0% and up to 100%, as "best 50%"')
        return cls(share=number / 100)
