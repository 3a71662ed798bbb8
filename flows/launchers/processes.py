"""Who a process is: a pid alone is reused, a pid with its start time is not.

In:  a pid.
Out: `Process`, which can be written to a file and recognised by another program later.
"""

import contextlib
import os
import signal
import socket
import time
from pathlib import Path

from artifacts.config import Config


class Process(Config):
    """One process on one machine."""

    pid: int
    """Process id."""

    started: str
    """Start time in clock ticks since boot; empty where the kernel does not tell."""

    host: str
    """Machine."""

    @property
    def here(self) -> bool:
        """Whether it belongs to this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether it still runs here; a zombie does not."""
        return self.here and _start_time(self.pid) == self.started and _exists(self.pid)

    def end(self, *, grace: float) -> None:
        """SIGTERM, then SIGKILL after `grace` seconds."""
        self._signal(signal.SIGTERM)
        deadline = time.monotonic() + grace
        while self.alive and time.monotonic() < deadline:
            time.sleep(0.05)
        self._signal(signal.SIGKILL)

    def _signal(self, signum: signal.Signals) -> None:
        if self.alive:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signum)


def process(pid: int) -> Process:
    """The process that now has `pid` on this machine."""
    return Process(pid=pid, started=_start_time(pid), host=socket.gethostname())


def _start_time(pid: int) -> str:
    with contextlib.suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] == "Z" else fields[19]
    return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _start_time(pid) != "" or not os.path.isdir("/proc/self")
