"""Child processes: identifying them, tying them to their parent, ending a process tree.

In:  argument vectors and process ids.
Out: children that the kernel ends when their parent dies; process ids that stay unambiguous.

A process id may be reused; together with its start time it is unique. A killed parent cannot clean
up, so its children ask the kernel for a signal when it dies (Linux) or poll for it (elsewhere).
"""

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import psutil

POLL_SECONDS = 0.05
KILL_SECONDS = 5.0
"""How long to wait for processes to disappear after SIGKILL."""

TOLERANCE_TICKS = 200
"""Two seconds: boot time is known only to the second and may be corrected later."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

_adopting = threading.Lock()


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
        found = _start_ticks(self.pid) if self.host == socket.gethostname() else 0
        return found != 0 and abs(found - self.started) <= TOLERANCE_TICKS

    def end(self, *, grace: float) -> None:
        """Send SIGTERM, then SIGKILL after `grace` seconds."""
        if self.alive:
            with suppress(psutil.NoSuchProcess):
                end([psutil.Process(self.pid)], grace=grace)


class Fork:
    """A forked child, or an adopted orphan of another process (Linux).

    Its methods are those of `subprocess.Popen`.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid  # not reused before the child has been waited for
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while the child runs."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the exit code; `TimeoutExpired` after `timeout` seconds."""
        if self.poll() is None:
            handle = os.pidfd_open(self.pid)
            try:
                end = select.poll()
                end.register(handle, select.POLLIN)
                end.poll(None if timeout is None else timeout * 1000)
            finally:
                os.close(handle)
        code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired([str(self.pid)], timeout or 0.0)
        return code


Child = Fork | subprocess.Popen[bytes]
"""A child of this process."""


def fork() -> Fork | None:
    """Fork; returns the child's handle in the parent and None in the child."""
    pid = os.fork()
    return Fork(pid) if pid else None


def start(
    argv: Sequence[str],
    *,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    own_session: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a program that receives SIGTERM when this process dies; its standard input is empty.

    `output` receives standard output and error. Call this from a thread that outlives the program:
    Linux sends the signal when the *thread* that started the child ends.
    """
    parent = os.getpid()
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=output,
        env=environment,
        start_new_session=own_session,
        preexec_fn=lambda: die_with_parent(parent, signal.SIGTERM),  # noqa: PLW1509 - no locks in it
    )


def die_with_parent(parent: int, signum: signal.Signals = signal.SIGKILL) -> None:
    """Right after a fork, in the child: arrange to receive `signum` when `parent` dies."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    else:  # the thread does not survive an exec; the supervisor then ends the program

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(POLL_SECONDS)
            os.kill(os.getpid(), signum)

        threading.Thread(target=watch, name="die with parent", daemon=True).start()
    if os.getppid() != parent:  # the parent died before the request
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """From now on, adopt descendants of this process whose parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """`adopt_orphans` for the duration of the block (Linux)."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    with _adopting:
        prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        adopt_orphans()
        try:
            yield
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


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

    Zombies count as ended; reaping them is left to the parent, which needs the exit code.
    """
    running = list(processes)
    for signum, seconds in ((signal.SIGTERM, grace), (signal.SIGKILL, KILL_SECONDS)):
        for process in running:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(signum)
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
    return max(1, round(seconds * os.sysconf("SC_CLK_TCK")))
