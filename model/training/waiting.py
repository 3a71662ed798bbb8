"""OpenMP threads that spin while the cores are free and sleep while other programs need them.

In:  processor time of the machine and of this process (/proc/stat, os.times).
Out: threads that adapt within a second. Results are unaffected: the number of threads is constant.

A step of a small encoder has thousands of parallel regions of a few microseconds. Threads that spin
between them are 1.5 times as fast as threads that sleep, but dozens of times slower if another
program competes for a core. libgomp spins only while it manages no more threads than there are
processors, which it checks at every wait. A second, idle team of threads is therefore the switch:
while it exists, threads sleep.
"""

import ctypes
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from cloze.artifacts.progress import say

INTERVAL = 0.5
"""Seconds between two samples of processor time."""

CROWDED = 0.25
"""Threads go to sleep if they lack this share of a core, and spin again below half of it."""


class Use(NamedTuple):
    """Processor time used so far, in seconds."""

    at: float
    idle: float
    """Idle time of the processors that this process may use."""
    ours: float
    """Time used by this process."""


class IdleTeam:
    """An OpenMP team that does nothing; libgomp counts its threads."""

    def __init__(self, runtime: ctypes.CDLL, *, size: int) -> None:
        self._end, begun = threading.Event(), threading.Event()
        nothing = ctypes.cast(ctypes.CDLL(None).free, ctypes.c_void_p)  # free(NULL) does nothing

        def lead() -> None:
            # An empty parallel region: libgomp keeps its threads for the next region of the same
            # leader, and counts them as long as that thread lives.
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
    """Switches between sleeping and spinning; threads start asleep."""

    def __init__(self, runtime: ctypes.CDLL, *, threads: int) -> None:
        self.threads = threads
        # One more than processors: with such a team alone, libgomp has more threads than they can
        # run.
        self._new_team = partial(IdleTeam, runtime, size=1 + (os.cpu_count() or 1))
        self._team: IdleTeam | None = self._new_team()

    @property
    def asleep(self) -> bool:
        """Whether threads sleep while they wait."""
        return self._team is not None

    def decide(self, before: Use, now: Use) -> None:
        """Sleep or spin, depending on the processor time used between two samples."""
        # Cores that were idle, or ours, on average over the interval.
        free = (now.idle - before.idle + now.ours - before.ours) / (now.at - before.at)
        lacking = self.threads - free
        if self._team is None and lacking > CROWDED:
            self._team = self._new_team()
        elif lacking < CROWDED / 2:
            self.spin()

    def spin(self) -> None:
        """Spin again."""
        if self._team is not None:
            self._team.end()
            self._team = None


@contextmanager
def patient_threads(threads: int) -> Iterator[None]:
    """Let this process's OpenMP threads spin while the cores are free, and sleep otherwise."""
    runtime = _runtime()
    if threads < 2 or runtime is None or processor_use() is None:
        yield
        return
    ended = threading.Event()
    waiting = Waiting(runtime, threads=threads)

    def watch() -> None:
        before, reported = processor_use(), False
        while not ended.wait(INTERVAL):
            now = processor_use()
            if before is not None and now is not None:
                waiting.decide(before, now)
            before = now
            if waiting.asleep and not reported:
                say("other programs are using these cores: OpenMP threads sleep between tasks")
                reported = True

    watcher = threading.Thread(target=watch, name="waiting", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        # First the watcher, then the team: a watcher that still runs could create another one.
        ended.set()
        watcher.join()
        waiting.spin()


def processor_use() -> Use | None:
    """Processor time used so far; None if the kernel does not report it."""
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
    """The libgomp that torch has loaded; None for another OpenMP runtime."""
    try:
        maps = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return None
    # By its path: torch's wheel brings a libgomp of its own, and loading one by name could yield a
    # second library, whose count of threads torch's never reads.
    paths = [line.split()[-1] for line in maps if "libgomp" in line]
    return ctypes.CDLL(paths[0]) if paths else None
