"""What of a program's output is worth a person's attention.

In:  the lines a stage's program prints, one by one.
Out: events (flows/events.py). The log file keeps every line.
"""

import re
import time

from flows.events import tell, tell_progress
from flows.launchers.watch import PROGRESS

DIGEST = re.compile(r"[0-9a-f]{64}")
"""What a program prints last; the record has it."""

LIBRARY = re.compile(r"(DEBUG|INFO|WARNING)[: ]|\[[-\d: ,.]+\] \[(DEBUG|INFO|WARNING)\]")
"""Beginning of the lines in which Beam, DeepSpeed and torch talk to their own developers."""

PROGRESS_SECONDS = 10.0
"""Seconds between lines of progress in the log of the run."""


class Listener:
    """Passes on the lines of one stage's program.

    Those who watch get progress every second, the log of the run gets it now and then.
    """

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._told = 0.0

    def __call__(self, line: str) -> None:
        """Take one line."""
        if DIGEST.fullmatch(line) or LIBRARY.match(line):
            return
        tell_progress(self.stage, line)
        if not PROGRESS.search(line):
            tell(self.stage, "said", line)
        elif time.monotonic() - self._told >= PROGRESS_SECONDS:
            self._told = time.monotonic()
            tell(self.stage, "progress", line)
