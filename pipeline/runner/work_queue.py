"""The work queue of a job on this machine, and the reports of what is done.

In:  tasks to share out; reports of finished ones, from any thread or process of the job.
Out: each task for whichever worker is free first; sums of the reports, for the progress line and
     the stall time-out.

Beam's local runner hands out all work in advance and reports nothing while a job runs. So both go
through the file system: a task belongs to the worker that creates its file, and reports are short
appended lines, which the operating system never tears.
"""

import os
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from artifacts.progress import Progress, say

Task = TypeVar("Task")

POLL_SECONDS = 0.5


@dataclass(frozen=True)
class WorkQueue:
    """A worker's end: cheap to pickle, safe to use from any thread or process."""

    directory: str = ""
    """The job's directory; empty where workers share no disk with the launcher, as on Dataflow."""
    workers: int = 1

    @property
    def reports(self) -> str:
        """The file of reports."""
        return os.path.join(self.directory, "reports")

    def claim(self, tasks: Sequence[Task], *, label: str) -> Iterator[Task]:
        """The tasks that no other worker has claimed, each once the one before is finished."""
        directory = os.path.join(self.directory, label)
        os.makedirs(directory, exist_ok=True)
        for number, task in enumerate(tasks):
            try:
                os.close(os.open(os.path.join(directory, str(number)), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            yield task

    def report(self, **done: float) -> None:
        """Add what is done, by the names of the units; that of the launcher's `Progress` moves it.

        The others are shown beside it.
        """
        if not self.directory:
            return
        words = (f"{unit}={amount:.9g}" for unit, amount in done.items())
        handle = os.open(self.reports, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, " ".join(words).encode() + b"\n")
        finally:
            os.close(handle)


class ReportReader:
    """The launcher's end: moves new reports into a `Progress`."""

    def __init__(self, path: str, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._offset = 0
        self._others: dict[str, float] = defaultdict(float)

    def poll(self) -> bool:
        """Read new reports, print a line if it is time; whether there was anything new."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return False
        self._offset += len(whole) + 1
        done = 0.0
        for unit, _, amount in (word.partition("=") for word in whole.decode().split()):
            if unit == self._progress.unit:
                done += float(amount)
            else:
                self._others[unit] += float(amount)
        noted = (f"{amount:,.0f} {unit}" for unit, amount in self._others.items() if amount)
        self._progress.advance(done, ", ".join(noted))
        return True


def stalled(stall_timeout: float) -> str:
    """The message for a job that was stopped because it finished nothing."""
    return (
        f"the job has finished nothing for {stall_timeout:.0f} s and was stopped; the same "
        "command goes on, stall_timeout in the machine file allows for slower pieces"
    )


@contextmanager
def polling(reader: ReportReader, *, stall_timeout: float) -> Iterator[None]:
    """Poll from a thread while the body runs a job in this very process.

    The process is terminated where nothing is reported for `stall_timeout` seconds.
    """
    finished = threading.Event()

    def poll() -> None:
        alive_at = time.monotonic()
        while not finished.wait(POLL_SECONDS):
            if reader.poll():
                alive_at = time.monotonic()
            elif time.monotonic() - alive_at > stall_timeout:
                say(f"error: {stalled(stall_timeout)}")
                os.kill(os.getpid(), signal.SIGTERM)
                return

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        reader.poll()
