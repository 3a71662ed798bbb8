"""A job: tasks, and the steps that process them.

In:  tasks and functions.
Out: `Collection`, a chain of steps, which pipeline/runner/execution.py runs.

A job is Beam's kind of graph, but knows nothing of Beam, whose import is half of what a small
preparation would take.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, TypeVar

from pipeline.runner.work_queue import WorkQueue

Item = TypeVar("Item")
Made = TypeVar("Made")


class Worker(ABC, Generic[Item, Made]):
    """A function of one item that needs a setup, once in every worker."""

    @abstractmethod
    def setup(self) -> None:
        """Prepare this worker."""

    @abstractmethod
    def __call__(self, item: Item) -> Iterable[Made]:
        """What becomes of one item."""


@dataclass(frozen=True)
class Step:
    """What is done with every item: it becomes one (`map`) or any number of them (`flat_map`).

    `group` makes of pairs (key, value) pairs (key, values). Everything in a step must be importable
    and picklable.
    """

    label: str
    kind: Literal["map", "flat_map", "group"]
    function: Callable[[Any], Any] | None = None


@dataclass(frozen=True)
class Collection(Generic[Item]):
    """Items, as the steps that make them; the steps that do the work call `WorkQueue.report`."""

    steps: tuple[Step, ...]

    def map(self, label: str, function: Callable[[Item], Made]) -> "Collection[Made]":
        """What `function` makes of each."""
        return Collection((*self.steps, Step(label, "map", function)))

    def flat_map(
        self, label: str, function: Callable[[Item], Iterable[Made]]
    ) -> "Collection[Made]":
        """All that `function` makes of each; it may be a `Worker`."""
        return Collection((*self.steps, Step(label, "flat_map", function)))

    def group(self, label: str) -> "Collection[tuple[int, Iterable[Any]]]":
        """The values of each key, of items that are pairs of key and value."""
        return Collection((*self.steps, Step(label, "group")))


Build = Callable[[WorkQueue], Collection[Any]]
"""Describes the job; reports go to the queue once per finished task, seconds apart at most."""


def spread(tasks: Sequence[Item], queue: WorkQueue) -> Collection[Item]:
    """The `tasks` as a collection, shared out among all workers."""
    whole: Collection[Sequence[Item]] = Collection(
        (Step("Tasks", "map", partial(_instead, value=list(tasks))),)
    )
    return share_out(whole, queue, label="Share")


def share_out(
    every: Collection[Sequence[Item]], queue: WorkQueue, *, label: str
) -> Collection[Item]:
    """The tasks in a collection's only element, a list, shared out among all workers.

    On this machine every worker is dealt all of them and claims one after another of those that are
    left, so that slow workers and those with large tasks get fewer. Elsewhere the engine balances
    the load. (`Create` and `Reshuffle` would be twenty steps of a graph instead of three, and
    each costs 10 ms of processor time before the first worker begins.)
    """
    dealt = every.flat_map(f"{label}:Deal", partial(_deal, queue=queue)).group(f"{label}:Spread")
    return dealt.flat_map(f"{label}:Take", partial(_take, queue=queue, label=label))


def gather(results: Collection[Item], *, label: str) -> Collection[Sequence[Item]]:
    """All elements as one list, in any order, as soon as the last of them is there."""
    keyed = results.map(f"{label}:Key", _keyed).group(f"{label}:Gather")
    return keyed.map(f"{label}:List", _listed)


# The functions of the steps above. Workers import them by name, so they are not nested.


def _instead(_: object, *, value: Any) -> Any:
    return value


def _deal(tasks: list[Any], *, queue: WorkQueue) -> Iterable[tuple[int, list[Any]]]:
    shares = [tasks] * queue.workers if queue.directory else [[task] for task in tasks]
    return enumerate(shares)


def _take(share: tuple[int, Iterable[list[Any]]], *, queue: WorkQueue, label: str) -> Iterable[Any]:
    (tasks,) = share[1]
    return queue.claim(tasks, label=label) if queue.directory else tasks


def _keyed(element: Any) -> tuple[int, Any]:
    return 0, element


def _listed(keyed: tuple[int, Iterable[Any]]) -> list[Any]:
    return list(keyed[1])
