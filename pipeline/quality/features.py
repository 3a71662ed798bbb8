"""What quality is labelled by: the words of documents, pairs of them, and the shape of the text.

In:  a block of cleaned documents, one paragraph per line.
Out: words as hashes, with punctuation marks and line breaks as words of their own; and, per
     document, counts of what kinds of words they are.

Every digit counts as the same one, so that numbers and dates are known by their shape. Characters
of scripts without spaces are words by themselves. Hashes are folded into a fixed number of buckets,
so memory does not grow with the text; two words that share one are taken for the same.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Bytes, Int64s, Mask, UInt64s
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import LINE_FEED, SPACE
from cloze.pipeline.text.duplicates import range_hashes
from cloze.pipeline.text.scripts import lower_bytes

MARKS, LETTERS, DIGITS, BREAKS, CAPITALS = range(5)
"""Kinds of words; those that begin with a capital are counted besides."""

KINDS = 5

_CONTINUES, _LEADS = 0x80, 0xC0
_FIRST_ALONE = 0xE3
"""First bytes of characters from U+3000 on, nearly all of scripts without spaces."""
_PAIR = np.uint64(0x9E3779B97F4A7C15)

Floats = npt.NDArray[np.float64]

# D documents, W words, K kinds of words


@dataclass(frozen=True)
class Words:
    """The W words of D documents.

    hashes_W:    a hash of each, without case and with one digit for all.
    documents_W: the index of its document, ascending.
    is_text_W:   whether it has letters.
    kinds_DK:    how many are `MARKS`, `LETTERS`, `DIGITS`, `BREAKS` (lines), `CAPITALS`.
    """

    hashes_W: UInt64s
    documents_W: Int64s
    is_text_W: Mask
    kinds_DK: Int64s

    def buckets(self, count: int) -> Int64s:
        """The bucket of each word, below `count`: (W,)."""
        return (self.hashes_W % np.uint64(count)).astype(np.int64)

    @property
    def pairs(self) -> "tuple[UInt64s, Int64s]":
        """A hash of each word with the next of its document, and the index of the first of them."""
        first = np.flatnonzero(self.documents_W[:-1] == self.documents_W[1:])
        # 64 bits wrap around; the order of the two matters
        return self.hashes_W[first] * _PAIR ^ self.hashes_W[first + 1], first


def find_words(block: DocumentBlock) -> Words:
    """The words of a block of cleaned documents."""
    text = lower_bytes(block.text)
    is_digit = (text >= ord("0")) & (text <= ord("9"))
    text = np.where(is_digit, np.uint8(ord("0")), text)
    kinds = _KIND_OF_BYTE[text]
    begins = _begins(text, kinds)
    starts = np.flatnonzero(begins)
    # A word ends where another or white space begins: the next of all these places.
    ends = np.flatnonzero(np.append(begins | (kinds == _NOTHING), True))
    stops_W = ends[np.flatnonzero(begins[ends[:-1]]) + 1]
    words_before_D = np.searchsorted(starts, block.ends)
    documents_W = np.repeat(np.arange(len(block.ends)), np.diff(words_before_D, prepend=0))
    kinds_W = kinds[starts]
    first, count = block.text[starts], len(block.ends)
    counts = np.bincount(documents_W * KINDS + kinds_W, minlength=count * KINDS)
    kinds_DK = counts.reshape(count, KINDS).astype(np.int64)
    is_capital = (first >= ord("A")) & (first <= ord("Z"))
    kinds_DK[:, CAPITALS] = np.bincount(documents_W[is_capital], minlength=count)
    return Words(range_hashes(text, starts, stops_W), documents_W, kinds_W == LETTERS, kinds_DK)


_NOTHING = 255


def _kind_of_byte() -> Bytes:
    kinds = np.full(256, MARKS, dtype=np.uint8)
    kinds[: SPACE + 1] = _NOTHING
    kinds[LINE_FEED] = BREAKS
    kinds[ord("0") : ord("9") + 1] = DIGITS
    kinds[ord("a") : ord("z") + 1] = LETTERS
    kinds[ord("A") : ord("Z") + 1] = LETTERS
    kinds[_CONTINUES:] = LETTERS
    return kinds


_KIND_OF_BYTE = _kind_of_byte()


def _begins(text: Bytes, kinds: Bytes) -> Mask:
    """Where a word begins: at another kind of byte, every mark, line feed and wide character."""
    changes = np.diff(kinds, prepend=np.uint8(_NOTHING)) != 0
    alone = (kinds == MARKS) | (kinds == BREAKS) | (text >= _FIRST_ALONE)
    begins: Mask = (changes | alone) & (kinds != _NOTHING)
    return begins
