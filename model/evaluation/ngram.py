"""The n-gram baseline: P(token | left and right neighbour), with back-off.

In:  the training tokens; the visible neighbours of masked tokens.
Out: a probability for every token of the vocabulary in every context.

Witten-Bell smoothing (Bell, Cleary & Witten 1990) on two levels: counts of tokens between these two
neighbours back off to the even mixture of counts after the left one and counts before the right
one, each of which backs off to the unigram distribution. A neighbour that is a special token
([MASK], [CLS], [SEP]) carries no information and is left out. Counts are sorted arrays in NumPy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.store import Artifact
from cloze.model.data.batch import ragged_indices
from cloze.model.data.documents import training_batches

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]

NOTHING = -1
"""A neighbour that carries no information."""

CHUNK_CELLS = 1 << 23
"""Number of probabilities in memory at once."""

# C contexts, V vocabulary, T training tokens


@dataclass(frozen=True)
class TokenStream:
    """The tokens of consecutive documents."""

    ids: Int64
    """[T]"""

    first: NDArray[np.bool_]
    """[T] whether a token begins a document."""


def read_training_tokens(tokens: Artifact, *, limit: int) -> TokenStream:
    """The first `limit` tokens of the training documents, bucket by bucket.

    Documents are assigned to buckets by a hash of their text, so the first buckets are a fair
    sample.
    """
    ids, first, total = [], [], 0
    for part, begins in training_batches(tokens):
        ids.append(part)
        first.append(begins)
        total += len(part)
        if total >= limit:
            break
    if not total:
        raise IntegrityError(f"{tokens.directory}: no training tokens; run the tokens stage again")
    return TokenStream(np.concatenate(ids)[:limit], np.concatenate(first)[:limit])


@dataclass(frozen=True)
class NgramCounts:
    """Counts of words by context, sorted by context and word."""

    keys: Int64
    """[K] context * V + word, ascending."""

    counts: Int64
    """[K]"""

    vocabulary_size: int

    def dense(self, contexts_C: Int64) -> tuple[Float32, Float32]:
        """[C, V] count / (total + distinct words), and [C] the back-off weight.

        Contexts that are negative or never seen have no counts and back off entirely.
        """
        # Contexts are ranges of the sorted keys: from context · V to (context + 1) · V.
        begin = np.searchsorted(self.keys, contexts_C * self.vocabulary_size)
        end = np.searchsorted(self.keys, (contexts_C + 1) * self.vocabulary_size)
        kinds = np.where(contexts_C >= 0, end - begin, 0)
        rows, places = np.repeat(np.arange(len(contexts_C)), kinds), ragged_indices(begin, kinds)
        # Total count plus number of distinct words, Witten and Bell's denominator.
        weights = kinds + np.where(kinds > 0, self._sums[end] - self._sums[begin], 0)
        shares_CV = np.zeros((len(contexts_C), self.vocabulary_size), np.float32)
        words = self.keys[places] % self.vocabulary_size
        shares_CV[rows, words] = self.counts[places] / weights[rows]
        # distinct / (total + distinct) is the chance of a word not seen here
        back_off = np.where(kinds > 0, kinds / np.maximum(weights, 1), 1.0)
        return shares_CV, back_off.astype(np.float32)

    @cached_property
    def _sums(self) -> Int64:
        return offsets_of(self.counts)


def count(contexts: Int64, words: Int64, *, vocabulary_size: int) -> NgramCounts:
    """Count every pair of context and word."""
    keys, counts = np.unique(contexts * vocabulary_size + words, return_counts=True)
    return NgramCounts(keys, counts, vocabulary_size)


class NgramModel:
    """The baseline's counts, and probabilities from them."""

    def __init__(
        self,
        stream: TokenStream,
        frequencies_V: Int64,
        *,
        contexts: Sequence[tuple[Int64, Int64]] | None = None,
    ) -> None:
        """Count. `contexts`: the left and right neighbours that will be looked up; None: any."""
        self.vocabulary_size = vocabulary_size = len(frequencies_V)
        raised_V = frequencies_V + 1.0  # no probability may be 0
        self.unigram_V = np.asarray(raised_V / raised_V.sum(), np.float32)
        # Neighbours within a document: the pair ends where the next one begins.
        left, word, follows = stream.ids[:-1], stream.ids[1:], ~stream.first[1:]
        self._after = count(left[follows], word[follows], vocabulary_size=vocabulary_size)
        self._before = count(word[follows], left[follows], vocabulary_size=vocabulary_size)
        # words that have both neighbours in their document
        between = np.flatnonzero(follows[:-1] & follows[1:]) + 1
        pairs = self._pair_keys(stream.ids[between - 1], stream.ids[between + 1])
        if contexts is not None:
            wanted = np.concatenate([self._pair_keys(left, right) for left, right in contexts])
            kept = np.isin(pairs, np.unique(wanted))
            between, pairs = between[kept], pairs[kept]
        self._between = count(pairs, stream.ids[between], vocabulary_size=vocabulary_size)

    def _pair_keys(self, left: Int64, right: Int64) -> Int64:
        """One number per pair of neighbours; `NOTHING` if either of them is."""
        known = (left >= 0) & (right >= 0)
        return np.where(known, left * self.vocabulary_size + right, NOTHING)

    def probabilities(self, left_C: Int64, right_C: Int64) -> Float32:
        """[C, V] float32, rows summing to 1; neighbours may be `NOTHING`."""
        # The even mixture of P(word | left) and P(word | right), or the only one that is known.
        shorter_CV = np.zeros((len(left_C), self.vocabulary_size), np.float32)
        rest_C = np.zeros(len(left_C), np.float32)
        for counts, neighbour_C in ((self._after, left_C), (self._before, right_C)):
            # Contexts are sorted, so a chunk repeats its few left neighbours many times: their rows
            # of V numbers are computed once and spread.
            distinct, place_C = np.unique(neighbour_C, return_inverse=True)
            shares, back_off = counts.dense(distinct)
            shorter_CV += shares[place_C]
            rest_C += np.where(neighbour_C >= 0, back_off[place_C], 0.0)
        # How many neighbours are known: 2, 1 or 0; without any, only the unigram remains.
        sides_C = (left_C >= 0).astype(np.float32) + (right_C >= 0)
        rest_C[sides_C == 0] = 1.0
        shorter_CV += rest_C[:, None] * self.unigram_V
        shorter_CV /= np.maximum(sides_C, 1.0)[:, None]
        # What the pair's own counts leave over is divided as the mixture says.
        dense_CV, back_off_C = self._between.dense(self._pair_keys(left_C, right_C))
        shorter_CV *= back_off_C[:, None]
        dense_CV += shorter_CV
        return dense_CV

    def chunks(self, left_N: Int64, right_N: Int64) -> Iterator[tuple[Int64, Float32]]:
        """`probabilities` of many contexts in chunks of bounded size, with their indices in N.

        Contexts are sorted by neighbours, so that the counts of each are expanded only once.
        """
        order = np.lexsort((right_N, left_N))
        size = max(1, CHUNK_CELLS // self.vocabulary_size)
        for start in range(0, len(order), size):
            part = order[start : start + size]
            yield part, self.probabilities(left_N[part], right_N[part])
