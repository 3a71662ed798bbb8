"""Which examples a step reads: a pure function that can be evaluated for any step.

In:  rows per copy and shard (from the manifest), the artifact's digest, the seed, a step.
Out: the address of a global batch, and from it (copy, shard, row) of every example in the batch.

In an epoch, the shards are permuted and laid end to end, then rows are permuted within windows of
`WINDOW_ROWS`. So no array grows with the corpus, a step is found in constant time, and a batch
touches few shards. The documents are already distributed over shards by hashes of their texts, so a
window is a fair sample. World size, ranks and token budgets play no part.

A mixture deals the examples of a phase to its sources at even distances, and each source reads its
own endless sequence of epochs, which goes on from phase to phase. How many examples of each source
come before any other example is found by bisection, so a mixture, too, is found for any step alone.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.errors import UsageError
from cloze.artifacts.rng import address, permutation
from cloze.model.config import PhaseConfig

WINDOW_ROWS = 1 << 17

CYCLE = 1 << 16
"""Examples after which a deal repeats itself; shares are exact to half of one in so many."""

Rows = NDArray[np.int64]

cached_permutation = lru_cache(maxsize=128)(permutation)
"""Consecutive batches share the permutation of the shards and of a window, each at most a megabyte;
those of a mixture two of each source."""


class Places(NamedTuple):
    """Where N examples are."""

    copies: Rows  # [N]
    shards: Rows  # [N]
    rows: Rows  # [N]


@dataclass(frozen=True)
class BatchAddress:
    """Examples `first` to `stop` in the order of an epoch: a global batch."""

    max_seq_length: int
    epoch: int
    """Always 0 in a mixture, whose sources have epochs of their own: examples count on."""
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

    begins: tuple[tuple[int, ...], ...] = ()
    """`begins[c][i]`: rows of copy c in shard i before those of this order; empty: none."""

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

    def first_examples(self, count: int) -> BatchAddress:
        """The address of the first `count` examples, or of the first epoch if it has fewer."""
        return self._cut(0, 0, count)

    def consecutive(self, first: int, stop: int) -> Places:
        """Examples `first` to `stop` of all epochs laid end to end."""
        totals = [sum(copy) for copy in self.rows]
        cycles, first = divmod(first, sum(totals))
        stop -= cycles * sum(totals)
        epoch, parts = cycles * self.copies, [NOWHERE]
        while stop > 0:
            total = totals[epoch % self.copies]
            if first < total:
                here = BatchAddress(self.max_seq_length, epoch, first, min(stop, total))
                parts.append(self.locate(here))
            first, stop, epoch = max(first - total, 0), stop - total, epoch + 1
        return joined(parts)

    def locate(self, batch: BatchAddress) -> Places:
        """Where every example of `batch` is."""
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
        inside = places - (ends - rows)[slot]
        copy = batch.epoch % self.copies
        if self.begins:
            inside += np.asarray(self.begins[copy], np.int64)[shards[slot]]
        return Places(np.full(len(places), copy), shards[slot], inside)


NOWHERE = Places(*(np.empty(0, np.int64) for _ in Places._fields))


def joined(parts: Sequence[Places]) -> Places:
    """The places of all parts, one after another."""
    return Places(*(np.concatenate(column) for column in zip(*parts, strict=True)))


@dataclass(frozen=True)
class Deal:
    """Which of S sources gives each example of an endless sequence.

    In a cycle, each source gives its count at even distances, so that the first n examples, for any
    n, hold a source's share of n to within about S / 2 examples.
    """

    counts: tuple[int, ...]
    """Examples of each source in a cycle."""

    @classmethod
    def of(cls, shares: Sequence[float]) -> "Deal":
        """The deal with these shares of the examples, of which at least one is positive."""
        ideal = np.asarray(shares) / sum(shares) * CYCLE
        # The largest remainders are rounded up; no source that has a share gets nothing.
        counts = np.where(ideal > 0, np.maximum(np.floor(ideal), 1), 0).astype(np.int64)
        up = np.argsort(counts - ideal, kind="stable")[: max(CYCLE - int(counts.sum()), 0)]
        counts[up] += 1
        return cls(tuple(counts.tolist()))

    @cached_property
    def _places(self) -> tuple[Rows, ...]:
        """The places of each source in a cycle, ascending."""
        ideal = [(np.arange(count) + 0.5) / count for count in self.counts if count]
        order = np.argsort(np.concatenate(ideal), kind="stable")
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        ends = np.cumsum(self.counts)
        return tuple(np.split(place, ends[:-1]))

    def before(self, ordinal: int) -> Rows:
        """Examples of each source before example `ordinal`, [S]."""
        cycles, inside = divmod(ordinal, sum(self.counts))
        started = [np.searchsorted(places, inside) for places in self._places]
        return cycles * np.asarray(self.counts, np.int64) + np.asarray(started, np.int64)


@dataclass(frozen=True)
class MixedOrder:
    """The endless sequence of global batches at one sequence length, mixed from S sources.

    All batches are whole: no epoch of all sources ends. The examples of a batch are grouped by
    source.
    """

    max_seq_length: int
    names: tuple[str, ...]
    """The names of the sources."""

    sources: tuple[LengthOrder, ...]
    """Each source's own sequence."""

    batch_size: int
    deals: tuple[tuple[int, Deal], ...]
    """(first example, deal) of each phase at this length, in order; the first one begins at 0."""

    first_sizes: tuple[int, ...] = ()
    """Sizes of the first batches, if the batch size grows."""

    @cached_property
    def _first_ends(self) -> Rows:
        return np.cumsum((0, *self.first_sizes))

    def batch(self, ordinal: int) -> BatchAddress:
        """The batch after `ordinal` earlier batches of this length."""
        growing = len(self.first_sizes)
        first = int(self._first_ends[min(ordinal, growing)])
        first += max(ordinal - growing, 0) * self.batch_size
        size = self.first_sizes[ordinal] if ordinal < growing else self.batch_size
        return BatchAddress(self.max_seq_length, 0, first, first + size)

    def first_examples(self, count: int) -> BatchAddress:
        """The address of the first `count` examples."""
        return BatchAddress(self.max_seq_length, 0, 0, count)

    def before(self, ordinal: int) -> Rows:
        """Examples of each source before example `ordinal` of this length, [S]."""
        begins = [*(begin for begin, _ in self.deals), ordinal]
        # Of each earlier phase all examples, of the phase that `ordinal` is in those before it.
        parts = [
            deal.before(min(end, ordinal) - begin)
            for (begin, deal), (_, end) in zip(self.deals, pairwise(begins), strict=True)
            if begin < ordinal
        ]
        return np.sum(parts, axis=0) if parts else np.zeros(len(self.sources), np.int64)

    def counts(self, batch: BatchAddress) -> Rows:
        """Examples of each source in `batch`, [S]."""
        return self.before(batch.stop) - self.before(batch.first)

    def locate(self, batch: BatchAddress) -> Places:
        """Where every example of `batch` is."""
        bounds = zip(
            self.before(batch.first).tolist(), self.before(batch.stop).tolist(), strict=True
        )
        return joined(
            [
                source.consecutive(first, stop) if first < stop else NOWHERE
                for source, (first, stop) in zip(self.sources, bounds, strict=True)
            ]
        )


Order = LengthOrder | MixedOrder


def phase_ends(steps: int, phases: Sequence[PhaseConfig]) -> list[int]:
    """The step at which each phase ends, and the next one begins."""
    # Rounding may move an end by a step, but the last one is `steps`, because the shares add up
    # to 1.
    return [round(share * steps) for share in accumulate(phase.share for phase in phases)]


@dataclass(frozen=True)
class Curriculum:
    """The sequence lengths by phase; maps a step to its batch."""

    steps: int
    phases: tuple[PhaseConfig, ...]
    lengths: dict[int, Order]

    def batch(self, step: int) -> BatchAddress:
        """The global batch of step `step`, counted from 0."""
        ends = phase_ends(self.steps, self.phases)
        current = min(bisect_right(ends, step), len(ends) - 1)
        length = self.phases[current].max_seq_length
        begins = [0, *ends]
        # Batches of this length in earlier phases, because the epochs of a length continue.
        before = sum(
            ends[i] - begins[i] for i in range(current) if self.phases[i].max_seq_length == length
        )
        return self.lengths[length].batch(before + step - begins[current])

    def examples(self, length: int) -> int:
        """Examples of this length, which is mixed from sources, in all steps."""
        begins = [0, *phase_ends(self.steps, self.phases)]
        batches = sum(
            end - begin
            for phase, (begin, end) in zip(self.phases, pairwise(begins), strict=True)
            if phase.max_seq_length == length
        )
        return self.lengths[length].batch(batches - 1).stop if batches else 0
