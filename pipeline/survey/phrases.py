"""Words, n-grams and lines of documents, by key.

In:  a block of cleaned documents, one paragraph per line.
Out: a key for each word, for each run of 2, 4 and 8 words of a line, and for each line of a
     document; what stands there, as text.

Words are those of near-duplicate search (duplicates.py): letters and digits between other
characters, in any case; in scripts without spaces a character each. An n-gram of twice as many
words is made from two n-grams, so the sizes are powers of two.
"""

from collections.abc import Callable

import numpy as np

from cloze.artifacts.arrays import Int64s, Offsets, UInt64s
from cloze.artifacts.rng import GOLDEN_GAMMA, scramble
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import LINE_FEED
from cloze.pipeline.text.duplicates import find_words, range_hashes
from cloze.pipeline.text.scripts import lower_bytes

SIZES = (1, 2, 4, 8)
"""Words of an n-gram."""

LONGEST_TEXT = 300
"""Bytes of a word, n-gram or line that are kept to show it."""

TextAt = Callable[[int], str]

# W words, L lines


class Phrases:
    """What can be counted of a block's text."""

    def __init__(self, block: DocumentBlock) -> None:
        self._block = block
        self._lower = lower_bytes(block.text)
        self._raw = self._lower.tobytes()
        self._ends_L = np.flatnonzero(block.text == LINE_FEED) + 1

    def n_grams(self) -> list[tuple[UInt64s, TextAt]]:
        """The keys of each size of `SIZES`, and the text at each of them."""
        starts_W, stops_W, _ = find_words(self._lower)
        lines_W = np.searchsorted(self._ends_L, starts_W, side="right")
        hashes_W = range_hashes(self._lower, starts_W, stops_W)
        found = [(hashes_W, self._text_of(starts_W, stops_W))]
        for words in SIZES[1:]:
            half = words // 2
            # The n-gram at a word, from the one of half its size there and the one after that.
            hashes_W = scramble(hashes_W[:-half] * np.uint64(GOLDEN_GAMMA) + hashes_W[half:])
            count = len(hashes_W)
            last_W = np.arange(count) + words - 1
            inside = np.flatnonzero(lines_W[:count] == lines_W[last_W])
            found.append(
                (hashes_W[inside], self._text_of(starts_W[inside], stops_W[last_W[inside]]))
            )
        return found

    def lines(self) -> tuple[UInt64s, TextAt]:
        """The key of each line, once for each document that has it."""
        starts_L = np.concatenate(([0], self._ends_L[:-1]))[: len(self._ends_L)].astype(np.int64)
        keys_L = range_hashes(self._lower, starts_L, self._ends_L - 1)
        documents_L = np.searchsorted(self._block.ends, starts_L, side="right")
        order = np.lexsort((keys_L, documents_L))
        new_L = np.diff(documents_L[order], prepend=-1) != 0
        new_L |= np.diff(keys_L[order], prepend=~keys_L[order][:1]) != 0
        once = np.sort(order[new_L])
        raw = self._block.text.tobytes()  # as written, with its capitals

        def text_at(at: int) -> str:
            start, stop = int(starts_L[once[at]]), int(self._ends_L[once[at]]) - 1
            return raw[start : min(stop, start + LONGEST_TEXT)].decode("utf-8", "ignore")

        return keys_L[once], text_at

    def _text_of(self, starts_N: Offsets, stops_N: Int64s) -> TextAt:
        def text_at(at: int) -> str:
            start = int(starts_N[at])
            stop = min(int(stops_N[at]), start + LONGEST_TEXT)
            return self._raw[start:stop].decode("utf-8", "ignore")

        return text_at
