"""How OpenMP's threads wait: spinning while the cores are ours, asleep while they are not.

In:  the time that the processors were busy, and this process's own (/proc/stat, os.times).
Out: threads that adapt within a second of a change. No result depends on it: the number of threads
     stays the same.

A step of a small encoder has thousands of parallel regions of some microseconds each. Threads that
spin between them are half as fast again as threads that sleep, and dozens of times slower where
another program wants one of their cores. libgomp spins only while it manages no more threads than
there are processors, and counts them again at every wait. So a second, idle team of its threads is
the switch: while it exists, threads sleep.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from artifacts.progress import say

INTERVAL = 0.5
"""Seconds between two samples of the processors' use."""

CROWDED = 0.25
"""Share of a core that our threads lack when they go to sleep; below half of it they spin again."""


class Use(NamedTuple):
    """Processor time so far, in seconds."""

    at: float
    """When that was."""
    idle: float
    """Of all processors that this process may use."""
    ours: float
    """Of this process."""


class IdleTeam:
    """An OpenMP team that does nothing; libgomp counts its threads."""

    def __init__(self, runtime: ctypes.CDLL, *, size: int) -> None:
        self._end, begun = threading.Event(), threading.Event()
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing

        def lead() -> None:
            runtime.GOMP_parallel(nothing, None, ctypes.c_uint(size), ctypes.c_uint(0))
            begun.set()
            self._end.wait()  # a team ends with the thread that leads it

        self._thread = threading.Thread(target=lead, name="idle OpenMP team", daemon=True)
        self._thread.start()
        begun.wait()

    def end(self) -> None:
        """Release its threads."""
        self._end.set()
        self._thread.join()


class Waiting:
    """Switches between sleeping and spinning; threads sleep until the cores are seen to be free."""

    def __init__(self, runtime: ctypes.CDLL, *, threads: int) -> None:
        self.threads = threads
        self._runtime = runtime
        self._team: IdleTeam | None = self._sleep()

    @property
    def asleep(self) -> bool:
        """Whether threads sleep while they wait."""
        return self._team is not None

    def decide(self, before: Use, now: Use) -> None:
        """Sleep or spin, by the processor time used between the two samples."""
        free = (now.idle - before.idle + now.ours - before.ours) / (now.at - before.at)
        lacking = self.threads - free
        if self._team is None and lacking > CROWDED:
            self._team = self._sleep()
        elif self._team is not None and lacking < CROWDED / 2:
            self.spin()

    def _sleep(self) -> IdleTeam:
        return IdleTeam(self._runtime, size=1 + (os.cpu_count() or 1))

    def spin(self) -> None:
        """Spin again."""
        if self._team is not None:
            self._team.end()
            self._team = None


@contextmanager
def patient_threads(threads: int) -> Iterator[None]:
    """Within it, this process's OpenMP threads spin while the cores are free and else sleep."""
    runtime = _runtime()
    if threads < 2 or runtime is None or processor_use() is None:
        yield
        return
    ended = threading.Event()
    waiting = Waiting(runtime, threads=threads)
    watcher = threading.Thread(target=_watch, args=(waiting, ended), name="waiting", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        waiting.spin()


def processor_use() -> Use | None:
    """Processor time used so far; None where the kernel does not report it."""
    allowed = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    try:
        lines = [line.split() for line in Path("/proc/stat").read_text().splitlines()]
    except OSError:
        return None
    # user nice system idle iowait …, in ticks; a core that waits for a disk is free
    ticks = [int(line[4]) + int(line[5]) for line in lines if line[0] in allowed]
    times = os.times()
    idle = sum(ticks) / os.sysconf("SC_CLK_TCK")
    return Use(times.elapsed, idle, times.user + times.system) if ticks else None


def _runtime() -> ctypes.CDLL | None:
    """The libgomp that torch has loaded; None with another OpenMP runtime."""
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    paths = [line.split()[-1] for line in maps if "libgomp" in line]
    return ctypes.CDLL(paths[0]) if paths else None


def _watch(waiting: Waiting, ended: threading.Event) -> None:
    before, said = processor_use(), False
    while not ended.wait(INTERVAL):
        now = processor_use()
        if before is not None and now is not None:
            waiting.decide(before, now)
        before = now
        if waiting.asleep and not said:
            say("other programs want these cores: threads sleep while they wait, for as long")
            said = True
