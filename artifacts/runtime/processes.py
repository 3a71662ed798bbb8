"""Child processes: identifying them, tying them to their parent's life, ending a process tree.

In:  argument vectors and process ids.
Out: children that the kernel ends when their parent is killed; ids that are still right later.

A pid alone may be reused; a pid with its start time is not. A killed parent cannot clean up, so its
children ask the kernel for a signal when that happens (Linux) or poll for it (elsewhere).
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
from typing import IO, Protocol

import psutil

POLL_SECONDS = 0.05
KILL_SECONDS = 5.0
"""How long to wait for the kernel to remove processes that were sent SIGKILL."""

TOLERANCE_TICKS = 200
"""Two seconds: the kernel gives its own start to a second, and may correct it later."""

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_GET_CHILD_SUBREAPER = 37

_adopting = threading.Lock()


@dataclass(frozen=True)
class ProcessId:
    """One process on one machine, recognisable after it was written to a file and read again."""

    pid: int
    """Process id."""

    started: int
    """Start time in clock ticks since the machine started; 0 if it had already ended."""

    host: str
    """Name of the machine."""

    @classmethod
    def of(cls, pid: int) -> "ProcessId":
        """The process that has `pid` on this machine now."""
        return cls(pid, _start_ticks(pid), socket.gethostname())

    @property
    def here(self) -> bool:
        """Whether it belongs to this machine."""
        return self.host == socket.gethostname()

    @property
    def alive(self) -> bool:
        """Whether it still runs here; a zombie does not."""
        found = _start_ticks(self.pid) if self.here else 0
        return found != 0 and abs(found - self.started) <= TOLERANCE_TICKS

    def end(self, *, grace: float) -> None:
        """SIGTERM, and SIGKILL after `grace` seconds."""
        if self.alive:
            with suppress(psutil.NoSuchProcess):
                end([psutil.Process(self.pid)], grace=grace)


class Child(Protocol):
    """A child of this process: `subprocess.Popen`, or `Fork`."""

    @property
    def pid(self) -> int:
        """Process id; not reused until the child has been waited for."""

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one; `TimeoutExpired` after `timeout` seconds."""


class Fork:
    """A child that was forked, by us or by a process whose orphan we took (Linux)."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._code: int | None = None

    def poll(self) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        if self._code is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            self._code = os.waitstatus_to_exitcode(status) if ended else None
        return self._code

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, once there is one; `TimeoutExpired` after `timeout` seconds."""
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


def fork() -> Fork | None:
    """Go on as two processes: the child's handle in this one, None in the child."""
    pid = os.fork()
    return Fork(pid) if pid else None


def start(
    argv: Sequence[str],
    *,
    output: IO[bytes] | None = None,
    environment: Mapping[str, str] | None = None,
    own_session: bool = False,
) -> "subprocess.Popen[bytes]":
    """Start a program that gets SIGTERM when this process dies; standard input is empty.

    `output` takes both of its streams. Call it from a thread that lives as long as the program
    should: Linux counts the death of the thread that started it.
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
    """In a child, first thing after the fork: let it get `signum` when `parent` is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum, 0, 0, 0)
    else:  # lost when the child becomes another program; the supervisor then ends the program

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(POLL_SECONDS)
            os.kill(os.getpid(), signum)

        threading.Thread(target=watch, name="die with parent", daemon=True).start()
    if os.getppid() != parent:  # it died before the kernel was asked
        os.kill(os.getpid(), signum)


def adopt_orphans() -> None:
    """From now on processes below this one whose parent ends become its children (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


@contextmanager
def adopting_orphans() -> Iterator[None]:
    """Inside, `adopt_orphans`; afterwards as before (Linux)."""
    prctl, before = ctypes.CDLL(None).prctl, ctypes.c_int()
    with _adopting:
        prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0)
        adopt_orphans()
        try:
            yield
        finally:
            prctl(PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)


def family(pid: int) -> list[psutil.Process]:
    """The process `pid` and everything below it; empty if there is no such process."""
    try:
        head = psutil.Process(pid)
        return [head, *head.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def descendants(pid: int) -> list[int]:
    """The ids of everything below the process `pid`."""
    return [process.pid for process in family(pid)[1:]]


def end(processes: Iterable[psutil.Process], *, grace: float) -> None:
    """SIGTERM to all, SIGKILL after `grace` seconds to those still running; returns once all ended.

    Zombies count as ended. Reaping is left to the parent, which wants the exit code.
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
    """Whether it has not ended; a zombie has."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _start_ticks(pid: int) -> int:
    """When `pid` started, 0 if nothing runs under it.

    Counted from the machine's start, which no correction of the clock moves.
    """
    try:
        process = psutil.Process(pid)
        if not is_running(process):
            return 0
        seconds = float(process.create_time() - psutil.boot_time())
    except psutil.NoSuchProcess:
        return 0
    return max(1, round(seconds * os.sysconf("SC_CLK_TCK")))
