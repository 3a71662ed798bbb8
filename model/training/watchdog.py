"""The end of a rank that hangs.

In:  a sign of life from the loop at every site.
Out: after `timeout` seconds without one: a line that says rank, step and site, all threads' stacks,
     and the end of the process with exit code 70.

A hanging rank holds up every other one in its next collective operation, and their own watchdogs
end them, so that the launcher sees the whole run end and the supervisor can start it again.
"""

import faulthandler
import os
import sys
import threading
import time
from dataclasses import dataclass, field

from artifacts.progress import say

EXIT_CODE = 70
GRACE = 5.0
"""Seconds after which the C-level watch ends even a process that Python cannot end."""


@dataclass
class Watchdog:
    """Watches the loop of one rank."""

    rank: int
    timeout: float
    _site: str = field(default="start", init=False)
    _step: int = field(default=0, init=False)
    _alive_at: float = field(default_factory=time.monotonic, init=False)
    _done: threading.Event = field(default_factory=threading.Event, init=False)

    def __enter__(self) -> "Watchdog":
        self._alive_at = time.monotonic()
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        faulthandler.cancel_dump_traceback_later()

    def alive(self, site: str, step: int) -> None:
        """The loop has come to `site` of `step`."""
        self._site, self._step = site, step
        self._alive_at = time.monotonic()

    def _watch(self) -> None:
        interval = min(1.0, self.timeout / 10)
        while not self._done.wait(interval):
            # Covers what this thread cannot: native code that never lets Python run again.
            faulthandler.dump_traceback_later(
                self.timeout + GRACE, exit=True, file=sys.__stderr__ or 2
            )
            if time.monotonic() - self._alive_at > self.timeout:
                self._end()

    def _end(self) -> None:
        say(
            f"error: rank {self.rank} has made no progress for {self.timeout:g} s, last seen at "
            f"{self._site} of step {self._step}; ending it, the checkpoints are intact: "
            "start the same command again"
        )
        faulthandler.dump_traceback(file=sys.__stderr__ or 2)
        os._exit(EXIT_CODE)
