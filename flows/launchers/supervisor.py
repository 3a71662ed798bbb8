"""Supervises one program: it does not outlive the supervisor, nor the supervisor its owner.

In:  `python -P -m flows.launchers.supervisor --job DIRECTORY --owner PID -- ARGV`.
Out: DIRECTORY/log (everything the program prints) and DIRECTORY/exit (its exit code, written last).

However the owner, a flow, is killed, the supervisor then has another parent and ends the program:
SIGTERM, a grace period, SIGKILL. Processes that the program leaves behind become the
supervisor's own (artifacts/runtime/processes.py) and are ended, too.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import IO

from artifacts.runtime.processes import Child, adopt_orphans, end, family, start

INTERVAL = 0.1
"""Seconds between checks of the owner; the child's end is noticed at once."""
LEFTOVER_GRACE = 5.0
"""At most so many seconds from SIGTERM to SIGKILL for what a finished program leaves behind."""


class Supervisor:
    """Waits for one child program, or ends it."""

    def __init__(self, child: Child, *, grace: float, owner: int | None) -> None:
        self.child = child
        self.grace = grace
        self.owner = owner
        self.cancelled = False

    def run(self) -> int:
        """The child's exit code, once it and everything below it have ended."""
        while self.child.poll() is None and not self.cancelled:
            if self.owner is not None and os.getppid() != self.owner:
                self.cancelled = True
            with suppress(subprocess.TimeoutExpired):
                self.child.wait(INTERVAL)
        if self.child.poll() is None:
            end(family(self.child.pid), grace=self.grace)
        code = self.child.wait()
        end(family(os.getpid())[1:], grace=min(self.grace, LEFTOVER_GRACE))
        return code

    def cancel(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: begin to end the program."""
        self.cancelled = True


def supervise(
    words: Sequence[str],
    begin: Callable[[Sequence[str], IO[bytes]], Child] = lambda argv, log: start(
        argv, output=log, own_session=True
    ),
) -> int:
    """Run the program that the command line `words` names; the exit code is its own.

    `begin` starts it in a session of its own, given its argv and its log.
    """
    parser = argparse.ArgumentParser(description="Run a program that cannot be left behind.")
    parser.add_argument("--job", type=Path, required=True, help="directory for log and exit code")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--owner", type=int, help="process that starts this one and may be killed")
    parser.add_argument("--exit-name", default="exit", help="name of the file for the exit code")
    parser.add_argument("argv", nargs="+", help="the program and its arguments, after --")
    arguments = parser.parse_args(words)
    adopt_orphans()
    with open(arguments.job / "log", "ab") as log:
        child = begin(arguments.argv, log)
    supervisor = Supervisor(child, grace=arguments.grace, owner=arguments.owner)
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, supervisor.cancel)
    code = supervisor.run()
    written = arguments.job / ".exit"
    with suppress(OSError):  # a full disk: whoever waits for us gets our own exit code
        written.write_text(f"{code}\n")
        written.rename(arguments.job / arguments.exit_name)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
