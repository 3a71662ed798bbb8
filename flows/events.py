"""The events of a run, as ordinary log records.

In:  state changes of stages, and the output of their programs line by line.
Out: records of the loggers `cloze.run` and `cloze.progress`, each with `stage`, `state` and `text`.

The console, a Prefect server's log and the tests attach handlers to these two loggers. `cloze.run`
is for logs, with a progress line every ten seconds. `cloze.progress` is for live displays, with
every progress line and the stages still waiting.
"""

import logging
import re
import time
from typing import Literal

State = Literal["waiting", "reused", "warning", "running", "output", "progress", "made", "failed"]

RUN = logging.getLogger("cloze.run")
PROGRESS = logging.getLogger("cloze.progress")

# Our own handlers alone: a root logger must not print the records again.
for _logger in (RUN, PROGRESS):
    _logger.setLevel(logging.INFO)
    _logger.propagate = False

PROGRESS_LINE = re.compile(r"[ =](?P<done>[\d,.]+)/(?P<total>[\d,.]+)\b.* remaining[ =]\S+")
"""A progress line, `tokens 120/480 MB …` or `step=120/480 …`, with the remaining time."""

PROGRESS_SECONDS = 10.0
"""Seconds between progress lines in the run's log."""

DIGEST = re.compile(r"[0-9a-f]{64}")
"""The last line a program prints: its artifact's digest, which is already in the record."""

LIBRARY = re.compile(r"(DEBUG|INFO|WARNING)[: ]|\[[-\d: ,.]+\] \[(DEBUG|INFO|WARNING)\]")
"""Start of log lines written by Beam, DeepSpeed and torch themselves."""


def emit(stage: str, state: State, text: str = "", *, logger: logging.Logger = RUN) -> None:
    """Log that `stage` is now in `state`."""
    logger.info(
        "%s %s %s", stage, state, text, extra={"stage": stage, "state": state, "text": text}
    )


class OutputLog:
    """Logs the output of one stage's program; the job's log file keeps every line."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self._last_progress = 0.0

    def line(self, line: str) -> None:
        """Log one line, unless it is a library's own; limit progress lines in the run's log."""
        if DIGEST.fullmatch(line) or LIBRARY.match(line):
            return
        # Live displays get every line, the run's log one of progress every ten seconds.
        emit(self.stage, "progress", line, logger=PROGRESS)
        if not PROGRESS_LINE.search(line):
            emit(self.stage, "output", line)
        elif time.monotonic() - self._last_progress >= PROGRESS_SECONDS:
            self._last_progress = time.monotonic()
            emit(self.stage, "progress", line)


def share_done(line: str) -> float:
    """The completed share of a stage's work, from a progress line."""
    found = PROGRESS_LINE.search(line)
    if not found:
        return 0.0
    done, total = (float(found[name].replace(",", "")) for name in ("done", "total"))
    return min(done / total, 1.0) if total else 1.0


def add_handler(handler: logging.Handler, *, progress: bool) -> None:
    """Send events to `handler`; with `progress`, those for live displays too."""
    for logger in (RUN, PROGRESS) if progress else (RUN,):
        logger.addHandler(handler)


def remove_handler(handler: logging.Handler) -> None:
    """Stop sending events to `handler`."""
    for logger in (RUN, PROGRESS):
        logger.removeHandler(handler)
