"""A supervisor process: it ends its program when its owner dies.

In:  `python -P -m cloze.flows.launchers.supervisor --job DIRECTORY --owner PID -- ARGV`.
Out: DIRECTORY/log (everything the program prints) and DIRECTORY/exit (its exit code, written last).

If the owner, a flow, dies in any way, the supervisor is given another parent process; it notices
this and ends the program with SIGTERM, a grace period, and SIGKILL. It adopts the processes that
the program leaves behind (artifacts/runtime/processes.py) and ends them too.
"""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

from cloze.artifacts.runtime.processes import Child, adopt_orphans, end, family, start

INTERVAL = 0.1
"""Seconds between checks of the owner; the child's exit is noticed immediately."""
LEFTOVER_GRACE = 5.0
"""Maximum seconds from SIGTERM to SIGKILL for processes that a finished program leaves behind."""


def supervise(
    words: Sequence[str],
    begin: Callable[[Sequence[str], IO[bytes]], Child] = lambda argv, log: start(
        argv, output=log, own_session=True
    ),
) -> int:
    """Run the program of the command line `words`, and return its exit code.

    `begin` starts it in a session of its own, with its argv and its log.
    """
    parser = argparse.ArgumentParser(description="Run a program, and end it when its owner dies.")
    parser.add_argument("--job", type=Path, required=True, help="directory for log and exit code")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--owner", type=int, help="parent process whose death ends the program")
    parser.add_argument("--exit-name", default="exit", help="name of the file for the exit code")
    parser.add_argument("argv", nargs="+", help="the program and its arguments, after --")
    arguments = parser.parse_args(words)
    adopt_orphans()
    with open(arguments.job / "log", "ab") as log:
        child = begin(arguments.argv, log)
    cancelled: list[int] = []
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, lambda received, _: cancelled.append(received))
    while child.poll() is None and not cancelled:
        if arguments.owner is not None and os.getppid() != arguments.owner:
            break
        with suppress(subprocess.TimeoutExpired):
            child.wait(INTERVAL)
    if child.poll() is None:
        end(family(child.pid), grace=arguments.grace)
    code = child.wait()
    end(family(os.getpid())[1:], grace=min(arguments.grace, LEFTOVER_GRACE))
    written = arguments.job / ".exit"
    with suppress(OSError):  # if the disk is full, the launcher uses our own exit code
        written.write_text(f"{code}\n")
        written.rename(arguments.job / arguments.exit_name)
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
