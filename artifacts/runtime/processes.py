"""Any processes: identifying them, ending a process tree.

In:  process ids.
Out: process ids that stay unambiguous; processes that have ended.

A process id may be reused; together with its start time it is unique. For children of this process
see artifacts/runtime/children.py.
"""

import os
import signal
import socket
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

import psutil

POLL_SECONDS = 0.05
KILL_SECONDS = 5.0
"""How long to wait for processes to disappear after SIGKILL."""

LEFTOVER_GRACE = 5.0
"""Maximum seconds from SIGTERM to SIGKILL for what an ended process leaves behind."""

TOLERANCE_TICKS = 200
"""Two seconds: boot time is known only to the second and may be corrected later."""


@dataclass(frozen=True)
class ProcessId:
    """A process on a machine; unambiguous even after a round trip through a file."""

    pid: int
    """Process id."""

    started: int
    """Start time in clock ticks since boot; 0 if the process had already ended."""

    host: str
    """Host name."""

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """The process that currently has `pid` on this machine."""
        return cls(pid, _start_ticks(pid), socket.gethostname())

    @property
    def alive(self) -> bool:
        """Whether it is still running on this machine; a zombie is not."""
        # A process of another host cannot be seen from here.
        found = _start_ticks(self.pid) if self.host == socket.gethostname() else 0
        return found != 0 and abs(found - self.started) <= TOLERANCE_TICKS

    def end(self, *, grace: float) -> None:
        """Send SIGTERM, then SIGKILL after `grace` seconds; then to what it has left behind.

        A supervisor leaves nothing behind, unless it was killed itself.
        """
        if self.alive:
            members = family(self.pid)
            # The head first: a supervisor then ends its own. What is left after it was left by a
            # killed one.
            end(members[:1], grace=grace)
            end(members[1:], grace=min(grace, LEFTOVER_GRACE))


def family(pid: int) -> list[psutil.Process]:
    """The process `pid` and all its descendants; empty if there is no such process."""
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def descendants(pid: int) -> list[int]:
    """The process ids of all descendants of `pid`."""
    return [process.pid for process in family(pid)[1:]]


def end(processes: Iterable[psutil.Process], *, grace: float) -> None:
    """Send SIGTERM to all, after `grace` seconds SIGKILL to the rest; return once all have ended.

    Stopped processes are continued, so that they notice SIGTERM and can save. Zombies count as
    ended; reaping them is left to the parent, which needs the exit code.
    """
    running = list(processes)
    for signum, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_SECONDS)):
        for process in running:
            with suppress(psutil.NoSuchProcess):
                # In this order: a stopped process has the signal waiting when it is continued.
                process.send_signal(signum)
                process.send_signal(signal.SIGCONT)
        deadline = time.monotonic() + seconds
        while running := [process for process in running if is_running(process)]:
            if time.monotonic() >= deadline:
                break
            time.sleep(POLL_SECONDS)


def is_running(process: psutil.Process) -> bool:
    """Whether the process has not ended; a zombie has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _start_ticks(pid: int) -> int:
    """Start time of `pid`, 0 if there is no such process.

    Relative to boot, so that clock corrections do not change it.
    """
    try:
        process = psutil.Process(pid)
        if not is_running(process):
            return 0
        seconds = float(process.create_time() - psutil.boot_time())
    except psutil.NoSuchProcess:
        return 0
    # 0 means that there is no such process.
    return max(1, round(seconds * os.sysconf("SC_CLK_TCK")))
