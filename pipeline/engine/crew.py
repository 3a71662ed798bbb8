"""How workers tell the launcher what they have done, on every local runner.

In:  finished work, reported by any thread or process of the job.
Out: sums, read by the launcher once a moment, for the progress line and the stall time-out.

Beam's local runner reports no progress while a job runs, so the reports go through a small file:
one short appended line each, which the operating system never tears.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from artifacts.progress import Progress


@dataclass(frozen=True)
class Meter:
    """What a worker holds: cheap to pickle, safe to use from anywhere."""

    path: str
    """The launcher's file; empty where workers share no disk with it, as on Dataflow."""

    def report(self, amount: float, documents: int = 0) -> None:
        """Count `amount` more units, in the unit of the launcher's `Progress`, as done."""
        if self.path:
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(handle, f"{amount:.9g} {documents}\n".encode())
            finally:
                os.close(handle)


class MeterReader:
    """The launcher's end: moves new reports into a `Progress`."""

    def __init__(self, path: str, progress: Progress) -> None:
        self._path = path
        self._progress = progress
        self._offset = 0
        self._documents = 0

    def poll(self) -> bool:
        """Read what is new, print a line if it is time; True if there was anything new."""
        with open(self._path, "rb") as file:
            file.seek(self._offset)
            whole, _, _ = file.read().rpartition(b"\n")
        if not whole:
            return False
        self._offset += len(whole) + 1
        reports = [line.split() for line in whole.split(b"\n")]
        self._documents += sum(int(documents) for _, documents in reports)
        note = f"{self._documents:,} documents" if self._documents else ""
        self._progress.advance(sum(float(amount) for amount, _ in reports), note)
        return True


@contextmanager
def polling(reader: MeterReader, *, interval: float = 0.5) -> Iterator[None]:
    """Poll from a thread while the body runs a job in this very process."""
    finished = threading.Event()

    def poll() -> None:
        while not finished.wait(interval):
            reader.poll()

    thread = threading.Thread(target=poll, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        finished.set()
        thread.join()
        reader.poll()
