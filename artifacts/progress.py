"""Progress lines and messages on standard error.

In:  the amount of work, and how much of it has just been completed.
Out: `tokens 120/480 MB 24.1 MB/s remaining 0:15`, at most once a second.
"""

import os
import re
import sys
import time
from dataclasses import dataclass, field
from typing import TextIO


def clock(seconds: float) -> str:
    """`seconds` as `m:ss` or `h:mm:ss`."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
"""Characters that steer a terminal, end a line elsewhere, or are no text; not tab and newline."""


def printable(text: str) -> str:
    """`text` with escapes for control characters, which file names and vocabularies may contain."""
    return CONTROL.sub(lambda found: ascii(found[0])[1:-1], text)


def on_one_line(text: str) -> str:
    """The same, and line feeds: a name with one would begin a line of its own."""
    return printable(text).replace("\n", "\\n")


def say(line: str) -> None:
    """Print one line on standard error, unbuffered; a closed pipe is ignored."""
    try:
        print(printable(line), file=sys.stderr, flush=True)
    except BrokenPipeError:
        discard(sys.stderr)


def discard(stream: TextIO) -> None:
    """Redirect `stream`, whose reader is gone, to /dev/null."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


@dataclass
class Progress:
    """Progress of one stage; prints a line at most every `interval` seconds."""

    stage: str
    total: float
    unit: str
    interval: float = 1.0
    done: float = 0.0
    spared: float = 0.0
    """Units of `total` that turned out not to be needed."""
    started: float = field(default_factory=time.monotonic)
    printed: float = field(default_factory=time.monotonic)

    def advance(self, amount: float, note: str = "", *, spared: float = 0.0) -> None:
        """Add `amount` completed units, and print a line if one is due.

        `spared`: how many units turn out not to be needed.
        """
        self.done += amount
        self.spared += spared
        now = time.monotonic()
        # The last line is printed however early it comes.
        is_last = (amount or spared) and self.done >= self.total - self.spared
        if now - self.printed >= self.interval or is_last:
            self.printed = now
            say(self.line(note))

    def line(self, note: str = "") -> str:
        """The current progress line."""
        total = self.total - self.spared
        rate = self.done / max(time.monotonic() - self.started, 1e-9)
        # A total that was an estimate may be exceeded.
        remaining = clock(max(total - self.done, 0.0) / rate) if rate else "unknown"
        done = f"{self.stage} {self.done:,.0f}/{total:,.0f} {self.unit}"
        return f"{done} {rate:,.1f} {self.unit}/s remaining {remaining} {note}".rstrip()
