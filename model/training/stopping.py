"""SIGTERM and SIGINT as a wish, not an end: the loop saves first, all ranks at the same step.

In:  signals to any rank.
Out: `Stop.wanted`, which the loop adds to what ranks tell each other at every step.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


@dataclass
class Stop:
    """Whether this rank has been asked to stop."""

    wanted: bool = False

    def _ask(self, signum: int, frame: FrameType | None) -> None:
        self.wanted = True

    @contextmanager
    def listening(self) -> Iterator["Stop"]:
        """Take the signals while the loop runs; afterwards they are as before."""
        before = {number: signal.signal(number, self._ask) for number in SIGNALS}
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
