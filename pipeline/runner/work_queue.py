"""The work queue of a local job, and its progress reports.

In:  tasks to distribute; reports of completed work from any thread or process of the job.
Out: each task, handed to whichever worker is free first; totals for the progress line and the
     stall timeout.

Beam's local runner assigns all work up front and reports nothing while a job runs, so both go
through the file system: a worker claims a task by creating its file, and reports are short lines
appended to one file, which the operating system writes atomically.
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
    """The workers' side: cheap to pickle, safe to use from any thread or process."""

    directory: str = ""
    """The job's directory; empty where workers share no disk with the launcher (Dataflow)."""
    workers: int = 1

    @property
    def reports(self) -> str:
        """The file of progress reports."""
        return os.path.join(self.directory, "reports")

    def claim(self, tasks: Sequence[Task], *, label: str) -> Iterator[Task]:
        """Claim and yield tasks no other worker has claimed, one at a time."""
        directory = os.path.join(self.directory, label)
        os.makedirs(directory, exist_ok=True)
        for number, task in enumerate(tasks):
            try:
                os.close(os.open(os.path.join(directory, str(number)), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            yield task

    def report(self, **done: float) -> None:
        """Report completed work by unit, for example `MB=3.5, documents=120`.

        The unit of the launcher's `Progress` advances it; the others are shown next to it.
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
    """The launcher's side: feeds new reports into a `Progress`."""

    def __init__(self, path: str, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._offset = 0
        self._others: dict[str, float] = defaultdict(float)

    def poll(self) -> bool:
        """Read new reports and print a progress line if one is due; whether there were any."""
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
    """The message for a job stopped by its stall timeout."""
    return (
        f"the job has finished nothing for {stall_timeout:.0f} s and was stopped; run the same "
        "command to resume, or raise stall_timeout in the machine file if tasks are slow"
    )


@contextmanager
def polling(reader: ReportReader, *, stall_timeout: float) -> Iterator[None]:
    """Poll from a thread while the body runs a job in this process.

    If nothing is reported for `stall_timeout` seconds, the process sends itself SIGTERM.
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
