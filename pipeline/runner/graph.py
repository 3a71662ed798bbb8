"""A job as a chain of steps, the queue that its workers share, and the errors it can end with.

In:  tasks, and the functions to apply to them.
Out: `Collection`, a chain of steps for pipeline/runner/execution.py to run; `WorkQueue`, which
     hands each task to whichever worker is free first, and takes reports of completed work;
     `JobFailed`.

The model is Beam's (map, flat map, group by key), but nothing here imports Beam: for a small
corpus that import alone would take half of the run time.

Beam's local runner assigns all work up front and reports nothing while a job runs, so both go
through the file system: a worker claims a task by creating its file, and reports are short lines
appended to one file, which the operating system writes atomically.
"""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from cloze.artifacts.errors import ClozeError, DiskFull, IntegrityError, UsageError
from cloze.artifacts.progress import Progress
from cloze.artifacts.runtime.children import WorkerFailed, WorkerKilled

Item = TypeVar("Item")
Made = TypeVar("Made")


@dataclass(frozen=True)
class Step:
    """One transform: each item becomes one item (`map`) or any number of items (`flat_map`).

    `group` turns (key, value) pairs into (key, values) pairs. Functions must be picklable
    (cloudpickle, so lambdas and nested functions are).
    """

    label: str
    kind: Literal["map", "flat_map", "group"]
    function: Callable[..., Any] | None = None
    setup: Callable[[], Any] | None = None
    """Called once per worker process or thread; `function` takes the result before the item."""

    def ready(self) -> Callable[[Any], Iterable[Any]]:
        """Set up this worker; returns the function from an item to the items it becomes."""
        assert self.function
        function = partial(self.function, self.setup()) if self.setup else self.function
        return function if self.kind == "flat_map" else lambda item: [function(item)]


@dataclass(frozen=True)
class Collection(Generic[Item]):
    """Items, represented by the steps that produce them.

    Steps that do the actual work report progress through `WorkQueue.report`.
    """

    steps: tuple[Step, ...]

    def map(self, label: str, function: Callable[[Item], Made]) -> "Collection[Made]":
        """Apply `function` to each item."""
        return Collection((*self.steps, Step(label, "map", function)))

    def flat_map(
        self,
        label: str,
        function: Callable[..., Iterable[Made]],
        *,
        setup: Callable[[], Any] | None = None,
    ) -> "Collection[Made]":
        """Apply `function`, after each worker's `setup`, and flatten the results."""
        return Collection((*self.steps, Step(label, "flat_map", function, setup)))

    def group(self, label: str) -> "Collection[tuple[int, Iterable[Any]]]":
        """Group (key, value) pairs by key."""
        return Collection((*self.steps, Step(label, "group")))


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

    def claim(self, tasks: Sequence[Item], *, label: str) -> Iterator[Item]:
        """Claim and yield tasks no other worker has claimed, one at a time."""
        directory = os.path.join(self.directory, label)
        os.makedirs(directory, exist_ok=True)
        # Creating a file that must not exist is atomic between processes, and between threads.
        for number, task in enumerate(tasks):
            try:
                os.close(os.open(os.path.join(directory, str(number)), os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                continue
            # A claim is never given back: a worker that dies with one ends the job, and the next
            # attempt has a directory of its own.
            yield task

    def report(self, **done: float) -> None:
        """Report completed work by unit, for example `MB=3.5, documents=120`.

        The unit of the launcher's `Progress` advances it; the others are shown next to it.
        """
        if not self.directory:
            return
        words = (f"{unit}={amount:.9g}" for unit, amount in done.items())
        # Opened for each report, because the queue is pickled to other processes, where no handle
        # can go.
        handle = os.open(self.reports, os.O_WRONLY | os.O_APPEND)
        try:
            os.write(handle, " ".join(words).encode() + b"\n")
        finally:
            os.close(handle)


LastCollection = Collection[Any]
"""A whole job, which its last collection leads to, whatever its items are."""

Build = Callable[[WorkQueue], LastCollection]
"""Builds a job; its steps report to the queue after each task, every few seconds at most."""


def spread(tasks: Sequence[Item], queue: WorkQueue) -> Collection[Item]:
    """`tasks` as a collection, distributed over all workers."""
    whole = Collection[Sequence[Item]]((Step("Tasks", "map", lambda _: tasks),))
    return share_out(whole, queue, label="Share")


def for_each(tasks: Sequence[Item], function: Callable[..., object], *, label: str) -> Build:
    """A job that calls `function` with each task, and with the queue as `queue`."""
    return lambda queue: spread(tasks, queue).map(label, partial(function, queue=queue))


def share_out(
    every: Collection[Sequence[Item]], queue: WorkQueue, *, label: str
) -> Collection[Item]:
    """Distribute the tasks in a collection's only element, a list, over all workers.

    On this machine each worker receives the whole list and claims one unclaimed task at a time, so
    slow workers and large tasks balance out. Other engines do their own load balancing. (`Create`
    plus `Reshuffle` would add twenty steps to the graph instead of three, at 10 ms of CPU time each
    before the first worker starts.)
    """

    def deal(tasks: Sequence[Item]) -> Iterable[tuple[int, Sequence[Item]]]:
        # Where a directory is shared, every worker gets the whole list and claims from it;
        # elsewhere every task is an element of its own.
        return enumerate([tasks] * queue.workers if queue.directory else [[task] for task in tasks])

    def take(share: tuple[int, Iterable[Sequence[Item]]]) -> Iterable[Item]:
        # A share's number is its key, given once: there is exactly one list to each.
        (tasks,) = share[1]
        return queue.claim(tasks, label=label) if queue.directory else tasks

    return (
        every.flat_map(f"{label}:Deal", deal)
        .group(f"{label}:Spread")
        .flat_map(f"{label}:Take", take)
    )


def gather(results: Collection[Item], *, label: str) -> Collection[Sequence[Item]]:
    """Collect all elements into one list, in no particular order."""
    keyed = results.map(f"{label}:Key", lambda element: (0, element)).group(f"{label}:Gather")
    return keyed.map(f"{label}:List", lambda gathered: list(gathered[1]))


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
            # Only whole lines: the last may still be written.
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


class JobFailed(ClozeError):
    """The job ended without finishing its work."""


ERROR_KINDS = {
    kind.__name__: kind
    for kind in (DiskFull, IntegrityError, UsageError, WorkerFailed, WorkerKilled)
}
"""Our own errors, recognised by name where a worker's exception arrives as text."""

_RAISED = re.compile(
    r"^cloze\.artifacts\.errors\.(\w+): (.*?)(?: \[while running .*)?$", re.MULTILINE
)
_GRPC_DETAILS = re.compile(r'^\s*details = "(.*)"$', re.MULTILINE)
_LONGEST_REASON = 600


def job_error(kind: str, text: str) -> ClozeError:
    """The error for a job that ended with an exception of class `kind` and message `text`.

    Workers' exceptions reach the runner only as text; our own are recognised in it.
    """
    # The name of one of our errors, either as the exception itself or within its text.
    raised = _RAISED.findall(
        f"cloze.artifacts.errors.{kind}: {text}" if kind in ERROR_KINDS else text
    )
    if raised:
        # The last one: in a chain of exceptions, Python prints the causes first.
        return ERROR_KINDS.get(raised[-1][0], JobFailed)(raised[-1][1])
    details = _GRPC_DETAILS.findall(text)
    if details:
        text = details[-1]
    lines = [line.strip() for line in text.splitlines() if line.strip()] or ["no message"]
    # Beam appends where it happened.
    reason = re.sub(r" \[while running .*", "", lines[-1])[:_LONGEST_REASON]
    reason = reason if kind == "RuntimeError" else f"{kind}: {reason}"
    return JobFailed(
        f"the job failed: {reason}; finished parts are kept, run the same command to resume"
    )
