"""Which examples a step reads: a pure function that can be evaluated for any step.

In:  rows per copy and shard (from the manifest), the artifact's digest, the seed, a step.
Out: the address of a global batch, and from it (shard, row) of every example in the batch.

In an epoch, the shards are permuted and laid end to end, then rows are permuted within windows of
`WINDOW_ROWS`. So no array grows with the corpus, a step is found in constant time, and a batch
touches few shards. The documents are already distributed over shards by hashes of their texts, so a
window is a fair sample. World size, ranks and token budgets play no part.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.errors import UsageError
from cloze.artifacts.rng import address, permutation
from cloze.model.config import PhaseConfig

WINDOW_ROWS = 1 << 17

Rows = NDArray[np.int64]

cached_permutation = lru_cache(maxsize=8)(permutation)
"""Consecutive batches share the permutation of the shards and of a window."""


@dataclass(frozen=True)
class BatchAddress:
    """Examples `first` to `stop` in the order of an epoch: a global batch."""

    max_seq_length: int
    epoch: int
    first: int
    stop: int


@dataclass(frozen=True)
class LengthOrder:
    """The endless sequence of global batches at one sequence length.

    `rows[c][i]`: rows of copy c in shard i. Epoch e reads copy e mod copies, and its last batch may
    be smaller: within an epoch no example is dropped or read twice.
    """

    max_seq_length: int
    rows: tuple[tuple[int, ...], ...]
    batch_size: int
    purpose: str
    first_sizes: tuple[int, ...] = ()
    """Sizes of the first batches, if the batch size grows."""

    def __post_init__(self) -> None:
        if not any(sum(copy) for copy in self.rows):
            raise UsageError(
                f"the examples artifact has no training rows of length {self.max_seq_length}; "
                "add it to examples.max_seq_lengths, or change pretrain.phases"
            )

    @property
    def copies(self) -> int:
        """Number of differently masked copies of the corpus."""
        return len(self.rows)

    def batch(self, ordinal: int) -> BatchAddress:
        """The batch after `ordinal` earlier batches of this length."""
        if ordinal < len(self.first_sizes):
            return self._growing[ordinal]
        epoch, ordinal = 0, ordinal - len(self.first_sizes)
        # The growing batches end in the middle of an epoch, whose remaining examples come first.
        if self.first_sizes:
            last = self._growing[-1]
            rest = -(-(sum(self.rows[last.epoch % self.copies]) - last.stop) // self.batch_size)
            if ordinal < rest:
                return self._cut(last.epoch, last.stop + ordinal * self.batch_size, self.batch_size)
            epoch, ordinal = last.epoch + 1, ordinal - rest
        # From here on, batches begin at whole epochs. A cycle through all copies has the same
        # number of batches wherever it begins, so whole cycles are skipped at once.
        batches = [-(-sum(copy) // self.batch_size) for copy in self.rows]
        cycles, ordinal = divmod(ordinal, sum(batches))
        epoch += cycles * self.copies
        while ordinal >= batches[epoch % self.copies]:
            ordinal -= batches[epoch % self.copies]
            epoch += 1
        return self._cut(epoch, ordinal * self.batch_size, self.batch_size)

    @cached_property
    def _growing(self) -> list[BatchAddress]:
        """The growing batches in order; the last one of an epoch may be smaller."""
        found: list[BatchAddress] = []
        epoch = first = 0
        for size in self.first_sizes:
            while first == sum(self.rows[epoch % self.copies]):
                epoch, first = epoch + 1, 0
            found.append(self._cut(epoch, first, size))
            first = found[-1].stop
        return found

    def _cut(self, epoch: int, first: int, size: int) -> BatchAddress:
        stop = min(first + size, sum(self.rows[epoch % self.copies]))
        return BatchAddress(self.max_seq_length, epoch, first, stop)

    def locate(self, batch: BatchAddress) -> tuple[Rows, Rows]:
        """Shard and row of every example in `batch`."""
        shard_rows = np.asarray(self.rows[batch.epoch % self.copies], np.int64)
        key = address(self.purpose, self.max_seq_length, "epoch", batch.epoch)
        # The shards in this epoch's order, and where each ends when they are laid end to end.
        shards = cached_permutation(address(key, "shards"), len(shard_rows))
        rows = shard_rows[shards]
        ends = np.cumsum(rows)
        parts = [np.empty(0, np.int64)]
        # The batch takes a slice of every window that it touches; the last window may be shorter.
        for window in range(batch.first // WINDOW_ROWS, -(-batch.stop // WINDOW_ROWS)):
            begin = window * WINDOW_ROWS
            window_key = address(key, "window", window)
            inside = cached_permutation(window_key, min(WINDOW_ROWS, int(ends[-1]) - begin))
            parts.append(begin + inside[max(batch.first - begin, 0) : batch.stop - begin])
        places = np.concatenate(parts)  # in the concatenated shards
        # Back from a place to the shard that holds it, and the row within the shard.
        slot = np.searchsorted(ends, places, side="right")
        return shards[slot], places - (ends - rows)[slot]


@dataclass(frozen=True)
class Curriculum:
    """The sequence lengths by phase; maps a step to its batch."""

    steps: int
    phases: tuple[PhaseConfig, ...]
    lengths: dict[int, LengthOrder]

    def batch(self, step: int) -> BatchAddress:
        """The global batch of step `step`, counted from 0."""
        # The step where each phase ends; that step belongs to the next one. Rounding may move an
        # end by a step, but the last one is `steps`, because the shares add up to 1.
        ends = [round(share * self.steps) for share in accumulate(p.share for p in self.phases)]
        current = min(bisect_right(ends, step), len(ends) - 1)
        length = self.phases[current].max_seq_length
        begins = [0, *ends]
        # Batches of this length in earlier phases, because the epochs of a length continue.
        before = sum(
            ends[i] - begins[i] for i in range(current) if self.phases[i].max_seq_length == length
        )
        return self.lengths[length].batch(before + step - begins[current])
