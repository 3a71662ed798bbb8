"""The next values, made by a thread while this one is busy.

In:  a function of an integer, the first integer and the one after the last.
Out: an iterator over its values in order; an error in the thread is raised where it is consumed.
"""

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Generic, TypeVar

Value = TypeVar("Value")


@dataclass
class Prefetcher(Generic[Value]):
    """`make(first)`, `make(first + 1)`, … up to `stop`, at most `depth` of them ahead."""

    make: Callable[[int], Value]
    first: int
    stop: int
    depth: int = 4
    _waiting: "deque[Future[Value]]" = field(default_factory=deque, init=False)

    def __post_init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="prefetch")
        self._next = self.first
        for _ in range(self.depth):
            self._order_one()

    def __iter__(self) -> Iterator[Value]:
        while self._waiting:
            value = self._waiting.popleft().result()
            self._order_one()
            yield value

    def close(self) -> None:
        """End the thread; values not consumed are dropped."""
        self._waiting.clear()
        self._thread.shutdown(cancel_futures=True)

    def _order_one(self) -> None:
        if self._next < self.stop:
            self._waiting.append(self._thread.submit(self.make, self._next))
            self._next += 1
