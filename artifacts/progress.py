"""One line of progress a second, for people and for the log.

In:  how much there is to do, and how much has just been done.
Out: `tokens 120/480 MB 24.1 MB/s remaining 0:15` on standard error.
"""

import os
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO


def clock(seconds: float) -> str:
    """`seconds` as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def say(line: str) -> None:
    """Print one line on standard error, unbuffered; a closed pipe does not stop the work."""
    try:
        print(line, file=sys.stderr, flush=True)
    except BrokenPipeError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Discard what is written to `stream` from now on: its reader is gone."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@dataclass
class Progress:
    """Progress of one stage; `advance` prints when `interval` seconds have passed."""

    stage: str
    total: float
    unit: str
    interval: float = 1.0
    done: float = 0.0
    started: float = field(default_factory=time.monotonic)
    printed: float = field(default_factory=time.monotonic)

    def advance(self, amount: float, note: str = "") -> None:
        """Count `amount` more units as done."""
        self.done += amount
        now = time.monotonic()
        if now - self.printed >= self.interval or (amount and self.done >= self.total):
            self.printed = now
            say(self.line(note))

    def line(self, note: str = "") -> str:
        """The line as of now."""
        rate = self.done / max(time.monotonic() - self.started, 1e-9)
        remaining = clock((self.total - self.done) / rate) if rate else "unknown"
        done = f"{self.stage} {self.done:,.0f}/{self.total:,.0f} {self.unit}"
        return f"{done} {rate:,.1f} {self.unit}/s remaining {remaining} {note}".rstrip()
