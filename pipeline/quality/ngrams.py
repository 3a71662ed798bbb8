"""The likelihood ratio of two bigram models: of good text, and of all text.

In:  counts of words and pairs of words, by bucket, of both.
Out: for each document the mean over its words of log P(word | word before, good) - log P(…, all).

A pair's probability is interpolated with its second word's by a Dirichlet prior, and a word's with
the uniform one. Counts are kept by bucket, so the models have the same size for any corpus.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from cloze.artifacts.arrays import Int64s
from cloze.pipeline.quality.features import Floats, Words, find_words
from cloze.pipeline.readers.documents import DocumentBlock

WORDS, PAIRS = 1 << 20, 1 << 22
"""Buckets."""

SIZE = WORDS + PAIRS
"""Counts of words, then of pairs."""


UNSEEN = 0.01
"""Occurrences added to each bucket of words, since no probability may be 0."""

PRIOR = 20.0
"""Occurrences of a word before its own followers weigh as much as the frequencies of all words."""


@dataclass(frozen=True)
class NgramCounts:
    """How often the words and pairs in each bucket occur: (SIZE,)."""

    counts: Int64s

    @cached_property
    def _total(self) -> float:
        return float(self.counts[:WORDS].sum())

    def log_likelihoods(self, words_W: Int64s, pairs_P: Int64s, first_P: Int64s) -> Floats:
        """The logarithm of each word's probability: (W,).

        words_W, pairs_P: buckets. first_P: the index of the first word of each pair.
        """
        shares_W = (self.counts[words_W] + UNSEEN) / (self._total + UNSEEN * WORDS)
        before_P = self.counts[words_W[first_P]]
        # The count of a pair is at most that of its first word, whatever else fell into its bucket.
        of_pairs_P = np.minimum(self.counts[WORDS + pairs_P], before_P)
        # Only words that are second in no pair, the first of each document, keep their share.
        shares_W[first_P + 1] = (of_pairs_P + PRIOR * shares_W[first_P + 1]) / (before_P + PRIOR)
        likelihoods: Floats = np.log(shares_W)
        return likelihoods


@dataclass(frozen=True)
class NgramRatio:
    """The two models."""

    good: NgramCounts
    every: NgramCounts

    def score(self, block: DocumentBlock) -> tuple[Floats, Int64s, Int64s]:
        """The score of each document; its words with letters, and how many the good text has."""
        words = find_words(block)
        words_W, pairs_P, first_P = in_buckets(words)
        # Both models share buckets, so a collision adds the same words to both, and little to their
        # ratio.
        ratio_W = self.good.log_likelihoods(words_W, pairs_P, first_P)
        ratio_W -= self.every.log_likelihoods(words_W, pairs_P, first_P)
        count = len(block.ends)
        # The mean, so that long documents are not judged by their length.
        sizes_D = np.maximum(np.bincount(words.documents_W, minlength=count), 1)
        scores_D = np.bincount(words.documents_W, ratio_W, minlength=count) / sizes_D
        # Numbers and marks are the same in every language, so only words with letters tell whether
        # the good text is of this one.
        known_W = words.is_text_W & (self.good.counts[words_W] > 0)
        text_D, known_D = (
            np.bincount(words.documents_W, which, minlength=count).astype(np.int64)
            for which in (words.is_text_W, known_W)
        )
        return scores_D, text_D, known_D

    def table(self) -> pa.Table:
        """The models as a table, to be written beside the scores."""
        buckets = np.flatnonzero(self.good.counts | self.every.counts)
        columns = {"good": self.good.counts[buckets], "all": self.every.counts[buckets]}
        return pa.table({"bucket": buckets.astype(np.uint32), **columns})

    @classmethod
    def of_table(cls, table: pa.Table) -> "NgramRatio":
        """The models that `table` has written."""
        counts = np.zeros((2, SIZE), dtype=np.int64)
        for row, name in zip(counts, ("good", "all"), strict=True):
            row[table["bucket"].to_numpy()] = table[name].to_numpy()
        return cls(*map(NgramCounts, counts))


def in_buckets(words: Words) -> tuple[Int64s, Int64s, Int64s]:
    """The buckets of the words and of the pairs, and the index of each pair's first word."""
    hashes, first = words.pairs
    return words.buckets(WORDS), (hashes % np.uint64(PAIRS)).astype(np.int64), first
