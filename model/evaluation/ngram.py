"""The count baseline: P(word | left and right neighbour), with back-off.

In:  the training tokens; the visible neighbours of masked positions.
Out: a probability for every word-piece at every position.

Witten-Bell smoothing (Bell, Cleary & Witten 1990), twice: what followed between exactly these two
neighbours, backed by the even mixture of what followed the left one and what preceded the right
one, each backed by the unigram. A neighbour that is a special token ([MASK], [CLS], [SEP]) tells
nothing and is left out. Everything is counted with sorted keys, nothing with Python objects.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from model.evaluation.training_tokens import TokenStream

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

NOTHING = -1
"""A neighbour that tells nothing."""

CHUNK_CELLS = 1 << 23
"""Probabilities held at once."""

# C contexts, V vocabulary, T training tokens


@dataclass(frozen=True)
class Counts:
    """How often each word stood in each context, contexts and words sorted."""

    keys: Int64
    """[K] context * V + word, ascending."""

    counts: Int64
    """[K]"""

    vocabulary_size: int

    def dense(self, contexts_C: Int64) -> tuple[Float32, Float32]:
        """[C, V] count / (total + kinds), and [C] the share left for the shorter context.

        Contexts below 0 or never seen have no counts and leave everything to the shorter one.
        """
        begin = np.searchsorted(self.keys, contexts_C * self.vocabulary_size)
        end = np.searchsorted(self.keys, (contexts_C + 1) * self.vocabulary_size)
        kinds = np.where(contexts_C >= 0, end - begin, 0)
        rows = np.repeat(np.arange(len(contexts_C)), kinds)
        places = np.repeat(begin - (np.cumsum(kinds) - kinds), kinds) + np.arange(len(rows))
        weights = kinds + np.where(kinds > 0, self._sums[end] - self._sums[begin], 0)
        shares_CV = np.zeros((len(contexts_C), self.vocabulary_size), np.float32)
        shares_CV[rows, self._words[places]] = self.counts[places] / weights[rows]
        back_off = np.where(kinds > 0, kinds / np.maximum(weights, 1), 1.0)
        return shares_CV, back_off.astype(np.float32)

    @cached_property
    def _words(self) -> Int64:
        return self.keys % self.vocabulary_size

    @cached_property
    def _sums(self) -> Int64:
        return np.concatenate(([0], np.cumsum(self.counts)))


def count(contexts: Int64, words: Int64, *, vocabulary_size: int) -> Counts:
    """Count every (context, word)."""
    keys, counts = np.unique(contexts * vocabulary_size + words, return_counts=True)
    return Counts(keys, counts, vocabulary_size)


class CountModel:
    """Counted on training tokens, for the contexts that will be asked."""

    def __init__(
        self, stream: TokenStream, frequencies_V: Int64, *, pairs: Int64 | None = None
    ) -> None:
        """Count. `pairs`: keys of the neighbour pairs that will be asked; None: any."""
        self.vocabulary_size = vocabulary_size = len(frequencies_V)
        self.unigram_V = smoothed(frequencies_V)
        left, word, follows = stream.ids[:-1], stream.ids[1:], ~stream.first[1:]
        self._after = count(left[follows], word[follows], vocabulary_size=vocabulary_size)
        self._before = count(word[follows], left[follows], vocabulary_size=vocabulary_size)
        between = np.flatnonzero(follows[:-1] & follows[1:]) + 1
        contexts = self.pair_keys(stream.ids[between - 1], stream.ids[between + 1])
        if pairs is not None:
            asked = np.isin(contexts, pairs)
            between, contexts = between[asked], contexts[asked]
        self._between = count(contexts, stream.ids[between], vocabulary_size=vocabulary_size)

    def pair_keys(self, left: Int64, right: Int64) -> Int64:
        """One number for each pair of neighbours; `NOTHING` where one of them tells nothing."""
        known = (left >= 0) & (right >= 0)
        return np.where(known, left * self.vocabulary_size + right, NOTHING)

    def probabilities(self, left_C: Int64, right_C: Int64) -> Float32:
        """[C, V] float32, rows summing to 1; neighbours may be `NOTHING`."""
        shorter_CV = self._one_sided(left_C, right_C)
        dense_CV, back_off_C = self._between.dense(self.pair_keys(left_C, right_C))
        shorter_CV *= back_off_C[:, None]
        dense_CV += shorter_CV
        return dense_CV

    def chunks(self, left_N: Int64, right_N: Int64) -> Iterator[tuple[Int64, Float32]]:
        """`probabilities` of many contexts, a bounded number at once, with their places in N.

        Contexts with the same neighbour come together, so that its counts are spread out once.
        """
        order = np.lexsort((right_N, left_N))
        size = max(1, CHUNK_CELLS // self.vocabulary_size)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            yield part, self.probabilities(left_N[part], right_N[part])

    def _one_sided(self, left_C: Int64, right_C: Int64) -> Float32:
        """Even mixture of P(word | left) and P(word | right), or the one that tells something."""
        dense_CV = np.zeros((len(left_C), self.vocabulary_size), np.float32)
        rest_C = np.zeros(len(left_C), np.float32)
        for counts, neighbour_C in ((self._after, left_C), (self._before, right_C)):
            distinct, place_C = np.unique(neighbour_C, return_inverse=True)
            shares, back_off = counts.dense(distinct)
            dense_CV += shares[place_C]
            rest_C += np.where(neighbour_C >= 0, back_off[place_C], 0.0)
        sides_C = (left_C >= 0).astype(np.float32) + (right_C >= 0)
        rest_C[sides_C == 0] = 1.0
        dense_CV += rest_C[:, None] * self.unigram_V
        dense_CV /= np.maximum(sides_C, 1.0)[:, None]
        return dense_CV


def smoothed(frequencies_V: Int64) -> Float32:
    """Unigram probabilities with one added to every count, so that none is 0."""
    raised_V = frequencies_V + 1.0
    return np.asarray(raised_V / raised_V.sum(), np.float32)
