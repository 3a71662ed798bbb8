"""Runs one program to its end, watching it.

In:  an argv, a launcher, and who wants to hear the program's lines.
Out: `JobResult`; or `StageFailed`, which says whether another try could help.

Whatever ends the watching (Ctrl-C, cancellation, an error) ends the program as well.
"""

import os
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from artifacts.errors import ClozeError
from artifacts.progress import clock
from flows.launchers.launcher import Launcher
from flows.launchers.memory import tree_pss
from flows.launchers.tail import Tail

POLL_SECONDS = 0.2
MEMORY_SECONDS = 1.0
SIGNALLED = (128 + 9, 128 + 15)
"""Exit codes with which a shell, a scheduler or a keeper reports SIGKILL and SIGTERM."""
PROGRESS = re.compile(r"[ =](?P<done>[\d,.]+)/(?P<total>[\d,.]+)\b.* remaining[ =]\S+")
"""A line of progress: `tokens 120/480 MB …` or `step=120/480 …`, with the time remaining."""


class StageFailed(ClozeError):
    """A stage's program did not finish."""

    def __init__(self, message: str, *, exit_code: int, retryable: bool) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.retryable = retryable
        """Whether it was killed from outside (pre-emption, lost node, hang) and not by an error."""


@dataclass(frozen=True)
class JobResult:
    """How a program ran."""

    seconds: float
    """Wall-clock time."""
    peak_memory: int
    """Largest PSS in bytes of this process and all below it, seen once a second."""


@dataclass
class Watch:
    """What is known about a running job."""

    tail: Tail
    on_line: Callable[[str], None]
    started: float
    heard: float
    peak_memory: int = 0
    measured: float = 0.0
    error: str = ""
    last: str = ""

    def look(self) -> None:
        """Pass on new lines, remember the last error, measure memory once a second."""
        now = time.monotonic()
        for line in self.tail.lines():
            self.heard = now
            self.last = line
            self.error = line.removeprefix("error: ") if line.startswith("error: ") else self.error
            self.on_line(line)
        if now - self.measured >= MEMORY_SECONDS:
            self.measured = now
            self.peak_memory = max(self.peak_memory, tree_pss(os.getpid()))


def run_job(
    argv: Sequence[str],
    *,
    job: Path,
    launcher: Launcher,
    on_line: Callable[[str], None],
    stall_timeout: float,
) -> JobResult:
    """Run `argv` and wait; returns only if it ended with exit code 0."""
    now = time.monotonic()
    log = job / "log"
    watch = Watch(Tail(log, offset=_size(log)), on_line, started=now, heard=now)
    try:
        launcher.start(argv, job=job)
        code = _wait(job, launcher=launcher, watch=watch, stall_timeout=stall_timeout)
    except BaseException:
        launcher.cancel(job)
        raise
    watch.look()
    if code != 0:
        raise _failure(job, code=code, watch=watch)
    return JobResult(time.monotonic() - watch.started, watch.peak_memory)


def _wait(job: Path, *, launcher: Launcher, watch: Watch, stall_timeout: float) -> int:
    while (code := launcher.poll(job)) is None:
        watch.look()
        if launcher.queued(job):
            watch.heard = time.monotonic()
        if time.monotonic() - watch.heard > stall_timeout:
            raise StageFailed(
                f"{job.name}: no output for {clock(stall_timeout)} (jobs.stall_timeout), so it was "
                f"ended as hung; last line: {watch.last or 'none'}; log: {job / 'log'}",
                exit_code=1,
                retryable=True,
            )
        time.sleep(POLL_SECONDS)
    return code


def _failure(job: Path, *, code: int, watch: Watch) -> StageFailed:
    killed = code < 0 or code in SIGNALLED
    ended = f"killed by signal {-code if code < 0 else code - 128}" if killed else f"exit {code}"
    reason = watch.error or f"{ended}; last line: {watch.last or 'none'}"
    return StageFailed(
        f"{job.name}: {reason} (log: {job / 'log'})",
        exit_code=2 if code == 2 else 1,
        retryable=killed,
    )


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
