"""Worker processes on the cores of one machine, each running one trial at a time.

In:  a number of processes, and the function that each of them runs.
Out: the result of the first one, once all have finished.

The matrices of a small encoder are too small for more than one core, so trials run in parallel
instead. Workers are forked before any computation, so that torch is loaded only once.
"""

import gc
import mmap
import os
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import ClozeError
from artifacts.progress import Progress, say
from artifacts.runtime.processes import die_with_parent

Result = TypeVar("Result")

POLL_SECONDS = 0.2


class WorkerKilled(ClozeError):
    """A worker process was killed."""

    exit_code = 128 + signal.SIGKILL
    """The same as if the program itself had been killed: a retry may help."""


@dataclass
class Worker:
    """One process among the workers."""

    number: int
    """0 is the process that forked the others."""

    size: int
    done: NDArray[np.int64]
    """[size] optimizer steps made by each worker; shared memory."""

    progress: Progress | None = None
    """Logs the steps of all workers, in the first process."""

    def advance(self, steps: int, note: str = "") -> None:
        """Count steps of this process."""
        self.done[self.number] += steps
        if self.number == 0:
            self.report(note)

    def report(self, note: str = "") -> None:
        """Log the progress since the last report."""
        if self.progress is not None:
            self.progress.advance(float(self.done.sum()) - self.progress.done, note)


def run_workers(size: int, work: Callable[[Worker], Result]) -> Result:
    """Run `work` in this process and in `size` - 1 forked ones; return this one's result.

    The launch ends if a worker fails.
    """
    shared = np.frombuffer(mmap.mmap(-1, 8 * size), np.int64)
    gc.freeze()  # collections write to every object they visit, and so would copy shared pages
    children = {_fork(work, Worker(number, size, shared)) for number in range(1, size)}
    first = Worker(0, size, shared)
    try:
        result = work(first)
        while children:
            for child in tuple(children):
                found, status = os.waitpid(child, os.WNOHANG)
                if not found:
                    continue
                children.remove(child)
                code = os.waitstatus_to_exitcode(status)
                if code < 0:
                    raise WorkerKilled(
                        f"a process of the launch was ended by {signal.Signals(-code).name}, "
                        "perhaps for memory; finished trials are kept"
                    )
                if code:
                    raise ClozeError(
                        f"a process of the launch ended with {code}; "
                        "its message is above; finished trials are kept"
                    )
            first.report()
            time.sleep(POLL_SECONDS if children else 0.0)
    finally:
        for child in children:
            os.kill(child, signal.SIGTERM)
    return result


def _fork(work: Callable[[Worker], object], worker: Worker) -> int:
    """Fork a process that runs `work` and exits; return its id."""
    sys.stderr.flush()
    first = os.getpid()
    child = os.fork()
    if child:
        return child
    die_with_parent(first)
    code = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        work(worker)
        code = 0
    except ClozeError as error:
        say(f"error: {error}")
    finally:
        sys.stderr.flush()
        os._exit(code)  # skips exit handlers inherited from the first process
