"""Texts in, results out, in order, computed in batches of similar length.

In:  a stream of texts.
Out: a stream of results, one per text.

A window of texts is tokenised at once, sorted by length and cut to a token budget; sorting within
a window is enough to keep batches even, and memory does not grow with the stream.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

WINDOW = 2048
TOKEN_BUDGET = 8192

ItemT = TypeVar("ItemT")
ReadT = TypeVar("ReadT")
ResultT = TypeVar("ResultT")


def in_windows(
    items: Iterable[ItemT],
    read: Callable[[Sequence[ItemT], int], Sequence[ReadT]],
    compute: Callable[[Sequence[ReadT]], Sequence[ResultT]],
    *,
    length: Callable[[ReadT], int],
) -> Iterator[ResultT]:
    """Results in the order of `items`. `read` gets a window and the number of its first item."""
    stream = iter(items)
    first = 0
    while window := list(islice(stream, WINDOW)):
        prepared = read(window, first)
        first += len(window)
        results: dict[int, ResultT] = {}
        for numbers in by_length([length(item) for item in prepared]):
            computed = compute([prepared[number] for number in numbers])
            results.update(zip(numbers, computed, strict=True))
        yield from (results[number] for number in range(len(window)))


def by_length(lengths: Sequence[int]) -> Iterator[list[int]]:
    """Numbers of the items in batches of at most `TOKEN_BUDGET` tokens, longest first."""
    batch: list[int] = []
    tokens = 0
    for number in sorted(range(len(lengths)), key=lambda number: -lengths[number]):
        if batch and tokens + lengths[number] > TOKEN_BUDGET:
            yield batch
            batch, tokens = [], 0
        batch.append(number)
        tokens += lengths[number]
    if batch:
        yield batch
