"""Counts and samples of a corpus of any size in bounded memory.

In:  keys, lengths or scores of documents, a block at a time.
Out: the most frequent keys; quantiles and histograms of lengths; the documents of smallest score.

The most frequent keys are found by the summary of Misra and Gries (1982): a table of `COUNTERS`
counts. Whenever it has more, the count of the first one beyond is subtracted from all, and what
falls to zero is forgotten. So a count is never too large, and too small by no more than what was
subtracted in all, which is at most a `COUNTERS`-th of everything counted (Agarwal et al. 2012).
"""

from collections.abc import Callable
from typing import Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Int64s, UInt64s

COUNTERS = 1 << 18
"""Keys in a table."""

MERGED = 4
"""Times as many keys wait before they are merged into the table."""

EXACT_LENGTHS, BINS_PER_OCTAVE, OCTAVES = 64, 16, 34
"""Shorter lengths are counted by themselves, longer ones in bins of a 16th of an octave: a quantile
is within 2.2 % of the length that it stands for."""

Payload = TypeVar("Payload")


class Frequent(NamedTuple):
    """A key of a stream."""

    text: str
    times: int
    """Never too large; too small by `FrequentKeys.error` at most."""


class FrequentKeys:
    """The most frequent of a stream of keys, with what they stand for."""

    def __init__(self, counters: int = COUNTERS) -> None:
        self._counters = counters
        self._keys_K = np.zeros(0, dtype=np.uint64)
        self._counts_K = np.zeros(0, dtype=np.int64)
        self._waiting: list[tuple[UInt64s, Int64s]] = []
        self._texts: dict[int, str] = {}
        self.error = 0
        """How much too small a count may be."""
        self.total = 0
        """Keys seen, with repetitions."""

    def add(self, keys_N: UInt64s, text_at: Callable[[int], str], *, every: bool = False) -> None:
        """Count keys; `text_at` is what stands at one of them.

        every: keep the texts of all keys, and not only of those that are twice in a block.
        """
        found_U, first_U, counts_U = np.unique(keys_N, return_index=True, return_counts=True)
        self.total += len(keys_N)
        self._waiting.append((found_U, counts_U))
        # What occurs more often than there are blocks is twice in one of them, so the texts of
        # others, most of all, need not be kept.
        repeated = counts_U > (0 if every else 1)
        for key, at in zip(found_U[repeated].tolist(), first_U[repeated].tolist(), strict=True):
            if key not in self._texts:
                self._texts[key] = text_at(at)
        if sum(len(keys) for keys, _ in self._waiting) > MERGED * self._counters:
            self._merge()

    def most(self, wanted: int) -> list[Frequent]:
        """The `wanted` most frequent of those whose texts were kept, if they occur twice."""
        self._merge()
        rows = np.argsort(-self._counts_K, kind="stable").tolist()
        keys, counts = self._keys_K.tolist(), self._counts_K.tolist()
        found: list[Frequent] = []
        for row in rows:
            # Ties with the last one are all looked at, so that their texts decide and not the order
            # of keys.
            if len(found) >= wanted and counts[row] < found[-1].times:
                break
            if counts[row] > 1 and keys[row] in self._texts:
                found.append(Frequent(self._texts[keys[row]], counts[row]))
        return sorted(found, key=lambda one: (-one.times, one.text))[:wanted]

    def _merge(self) -> None:
        if not self._waiting:
            return
        keys_N = np.concatenate([self._keys_K, *(keys for keys, _ in self._waiting)])
        counts_N = np.concatenate([self._counts_K, *(counts for _, counts in self._waiting)])
        self._waiting = []
        order = np.argsort(keys_N, kind="stable")
        keys_N, counts_N = keys_N[order], counts_N[order]
        # A key other than the first one stands before it, so that the first one, too, differs from
        # what is before.
        starts = np.flatnonzero(np.diff(keys_N, prepend=~keys_N[:1]))
        keys_K, counts_K = keys_N[starts], np.add.reduceat(counts_N, starts)
        if len(keys_K) > self._counters:
            # The largest count that does not fit: subtracted from all, it leaves at most so many
            # counters above zero.
            beyond = len(keys_K) - self._counters - 1
            cut = int(np.partition(counts_K, beyond)[beyond])
            self.error += cut
            counts_K = counts_K - cut
            keys_K, counts_K = keys_K[counts_K > 0], counts_K[counts_K > 0]
        if len(self._texts) > 2 * self._counters:
            known = set(keys_K.tolist())
            self._texts = {key: text for key, text in self._texts.items() if key in known}
        self._keys_K, self._counts_K = keys_K, counts_K


class Lengths:
    """The distribution of lengths, in a fixed number of bins."""

    def __init__(self) -> None:
        self._counts_B = np.zeros(EXACT_LENGTHS + BINS_PER_OCTAVE * OCTAVES, dtype=np.int64)
        self.total = 0
        self._smallest, self._largest = np.iinfo(np.int64).max, 0

    def add(self, lengths_N: Int64s) -> None:
        """Count lengths, none negative."""
        if not len(lengths_N):
            return
        # Bins of equal ratio: an error is a share of the length, whatever the length.
        octaves = np.log2(np.maximum(lengths_N, EXACT_LENGTHS) / EXACT_LENGTHS)
        bins_N = EXACT_LENGTHS + (octaves * BINS_PER_OCTAVE).astype(np.int64)
        bins_N = np.where(lengths_N < EXACT_LENGTHS, lengths_N, bins_N)
        bins_N = np.minimum(bins_N, len(self._counts_B) - 1)
        self._counts_B += np.bincount(bins_N, minlength=len(self._counts_B))
        self.total += int(lengths_N.sum())
        self._smallest = min(self._smallest, int(lengths_N.min()))
        self._largest = max(self._largest, int(lengths_N.max()))

    @property
    def count(self) -> int:
        """How many lengths were counted."""
        return int(self._counts_B.sum())

    def quantiles(self, shares: tuple[float, ...]) -> list[int]:
        """The length that each share of the documents does not exceed; zeros without any."""
        if not self.count:
            return [0] * len(shares)
        wanted = np.maximum(np.ceil(np.array(shares) * self.count), 1)
        bins = np.searchsorted(np.cumsum(self._counts_B), wanted)
        # The middle of a bin, by ratio.
        above = EXACT_LENGTHS * 2.0 ** ((bins - EXACT_LENGTHS + 0.5) / BINS_PER_OCTAVE)
        lengths = np.where(bins < EXACT_LENGTHS, bins, np.round(above)).astype(np.int64)
        found: list[int] = np.clip(lengths, self._smallest, self._largest).tolist()
        return found

    @property
    def largest(self) -> int:
        """The greatest length; 0 without any."""
        return self._largest

    def histogram(self) -> tuple[list[int], list[int]]:
        """Powers of two (and 0) as bin edges, and the number of lengths between two of them."""
        short = [0, 1, 2, 4, 8, 16, 32, EXACT_LENGTHS]
        edges = short + [EXACT_LENGTHS << octave for octave in range(1, OCTAVES + 1)]
        bins = short[:-1] + [EXACT_LENGTHS + BINS_PER_OCTAVE * octave for octave in range(OCTAVES)]
        counts = np.add.reduceat(self._counts_B, bins)
        filled = np.flatnonzero(counts)
        if not len(filled):
            return [0, 1], [0]
        first, last = int(filled[0]), int(filled[-1]) + 1
        return edges[first : last + 1], counts[first:last].tolist()


class Smallest(Generic[Payload]):
    """The few of smallest score among any number, whatever their order."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._found: dict[tuple[float, int], Payload] = {}
        self._limit = (float("inf"), 0)

    def offer(
        self,
        scores_N: npt.NDArray[np.float64],
        keys_N: UInt64s,
        payload_at: Callable[[int], Payload],
    ) -> None:
        """Keep what has a small score, or of equal scores a small key; of equal keys the first.

        What has an infinite score is not kept.
        """
        limit, key_limit = self._limit
        small = (scores_N < limit) | ((scores_N == limit) & (keys_N < np.uint64(key_limit)))
        small &= np.isfinite(scores_N)
        rows = np.flatnonzero(small)
        rows = rows[np.lexsort((keys_N[rows], scores_N[rows]))]
        _, first = np.unique(keys_N[rows], return_index=True)  # equal documents
        rows = rows[np.sort(first)]
        for row in rows[: self._wanted].tolist():
            at = (float(scores_N[row]), int(keys_N[row]))
            if at not in self._found:
                self._found[at] = payload_at(row)
        kept = sorted(self._found)[: self._wanted]
        self._found = {at: self._found[at] for at in kept}
        if len(kept) == self._wanted:
            self._limit = kept[-1]

    def payloads(self) -> list[Payload]:
        """What was kept, the smallest score first."""
        return [self._found[at] for at in sorted(self._found)]
