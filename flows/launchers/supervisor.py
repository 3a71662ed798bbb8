"""Supervises one program: nothing of it outlives the supervisor, nor the supervisor its owner.

In:  `python -P -m flows.launchers.supervisor --job DIRECTORY -- ARGV`; standard input: its
     owner's pipe.
Out: DIRECTORY/log (everything the program prints) and DIRECTORY/exit (its exit code, written last).

The owner, a flow, may be killed in any way: its end of the pipe closes, and the supervisor ends the
program: SIGTERM, a grace period, SIGKILL. Processes that the program leaves behind are handed to
the supervisor by the kernel (PR_SET_CHILD_SUBREAPER) and ended, too. Standard library only, so that
a supervisor costs 10 MB and 30 ms.
"""

import argparse
import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
INTERVAL = 0.1
"""Seconds between looks at the child and at the owner."""


class Supervisor:
    """One child program and what became of it."""

    def __init__(self, argv: list[str], *, job: Path, grace: float, owned: bool) -> None:
        self.grace = grace
        self.owned = owned
        self.cancelled = False
        with open(job / "log", "ab") as log:
            self.child = subprocess.Popen(
                argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - a supervisor has no threads
            )

    def run(self) -> int:
        """Wait for the end, whoever brings it about, and leave nothing running."""
        while self.child.poll() is None and not self.cancelled:
            self.cancelled = self._owner_is_gone() or self.cancelled
        if self.child.poll() is None:
            self._end_program()
        _end(list(descendants(os.getpid())), grace=min(self.grace, 5.0))
        return int(self.child.returncode)

    def cancel(self, signum: int, frame: FrameType | None) -> None:
        """Signal handler: begin to end the program."""
        self.cancelled = True

    def _owner_is_gone(self) -> bool:
        """Whether the owner has closed its end of the pipe; waits a moment to see it."""
        if not self.owned:
            time.sleep(INTERVAL)
            return False
        readable, _, _ = select.select([sys.stdin.fileno()], [], [], INTERVAL)
        return bool(readable) and not os.read(sys.stdin.fileno(), 1)

    def _end_program(self) -> None:
        os.killpg(self.child.pid, signal.SIGTERM)
        try:
            self.child.wait(self.grace)
        except subprocess.TimeoutExpired:
            os.killpg(self.child.pid, signal.SIGKILL)
            self.child.wait()


def main() -> int:
    """Supervise the program named on the command line; the exit code is its."""
    arguments = _arguments()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    supervisor = Supervisor(
        arguments.argv,
        job=arguments.job,
        grace=arguments.grace,
        owned=not arguments.unowned,
    )
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(signum, supervisor.cancel)
    code = supervisor.run()
    written = arguments.job / ".exit"
    written.write_text(f"{code}\n")
    written.rename(arguments.job / arguments.exit_name)
    return code if code >= 0 else 128 - code


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run a program that cannot be left behind.")
    parser.add_argument("--job", type=Path, required=True, help="directory for log and exit code")
    parser.add_argument("--grace", type=float, default=30.0, help="seconds from SIGTERM to SIGKILL")
    parser.add_argument("--unowned", action="store_true", help="standard input is no owner's pipe")
    parser.add_argument("--exit-name", default="exit", help="name of the file for the exit code")
    parser.add_argument("argv", nargs="+", help="the program and its arguments, after --")
    return parser.parse_args()


def _die_with_parent() -> None:
    """In the child, on Linux: SIGTERM when the supervisor itself is killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


def descendants(root: int) -> Iterator[int]:
    """Processes below `root`, read from /proc."""
    children: dict[int, list[int]] = {}
    for entry in os.scandir("/proc") if os.path.isdir("/proc") else ():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = Path(entry.path, "stat").read_text().rpartition(")")[2].split()
                children.setdefault(int(fields[1]), []).append(int(entry.name))
    waiting = [root]
    while waiting:
        found = children.get(waiting.pop(), [])
        waiting += found
        yield from found


def _end(processes: list[int], *, grace: float) -> None:
    _signal(processes, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while time.monotonic() < deadline and any(_alive(process) for process in processes):
        time.sleep(INTERVAL / 2)
    _signal([process for process in processes if _alive(process)], signal.SIGKILL)


def _signal(processes: list[int], signum: signal.Signals) -> None:
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signum)


def _alive(process: int) -> bool:
    """Whether `process` still runs; our own dead children are reaped on the way."""
    with contextlib.suppress(ChildProcessError):
        return os.waitpid(process, os.WNOHANG) == (0, 0)
    return os.path.exists(f"/proc/{process}")


if __name__ == "__main__":
    sys.exit(main())
