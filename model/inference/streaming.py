"""Texts in, results out, in order, computed in batches of similar length.

In:  a stream of texts.
Out: a stream of results, one per text.

A window of texts is tokenised at once, sorted by length and batched to a token budget; sorting
within a window is enough for even batches, and memory use is constant.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import TypeVar

import numpy as np
import torch

from model.tasks.features import batches_by_length, tokens_at_once

WINDOW = 2048

ItemT = TypeVar("ItemT")
ReadT = TypeVar("ReadT")
ResultT = TypeVar("ResultT")


def in_windows(
    items: Iterable[ItemT],
    read: Callable[[Sequence[ItemT], int], Sequence[ReadT]],
    compute: Callable[[Sequence[ReadT]], Sequence[ResultT]],
    *,
    length: Callable[[ReadT], int],
    device: torch.device,
) -> Iterator[ResultT]:
    """Results in the order of `items`. `read` gets a window and the number of its first item.

    `device`: where `compute` runs, which determines the token budget.
    """
    stream, budget = iter(items), tokens_at_once(device)
    first = 0
    while window := list(islice(stream, WINDOW)):
        prepared = read(window, first)
        first += len(window)
        results: dict[int, ResultT] = {}
        lengths = np.array([length(item) for item in prepared])
        for rows in batches_by_length(lengths, token_budget=budget):
            computed = compute([prepared[row] for row in rows])
            results.update(zip(rows.tolist(), computed, strict=True))
        yield from (results[number] for number in range(len(window)))
