"""Passages: every run of so many consecutive words of a document, as a number.

In:  blocks of documents as text.
Out: for each passage its hash and the document it stands in.

Two texts share a passage if they share these words, whatever their case, punctuation and line
breaks. All words of a block are hashed at once: a word is a polynomial in its bytes, and the sum
over any stretch of the block is the difference of two prefix sums, modulo 2**64.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from artifacts.rng import UInt64s, scramble
from pipeline.readers.documents import Bytes, Offsets

_BASE = 0x9E3779B97F4A7C15
"""Odd, so that it has an inverse modulo 2**64."""
_MODULUS = 1 << 64

_CONTINUES_WORD = np.zeros(256, dtype=np.bool_)
for _first, _last in ((b"0", b"9"), (b"a", b"z"), (b"\x80", b"\xff")):
    _CONTINUES_WORD[_first[0] : _last[0] + 1] = True
_LOWER = np.frombuffer(bytes(range(256)).lower(), dtype=np.uint8)


@dataclass(frozen=True)
class Passages:
    """The passages of a block of D documents, in the order of the text.

    hashes_P:    each passage's words; equal passages have equal numbers.
    documents_P: the document it stands in, ascending.
    """

    hashes_P: UInt64s
    documents_P: Offsets


def passages(text: Bytes, ends_D: Offsets, *, words: int) -> Passages:
    """All runs of `words` words within one document; a shorter document has none."""
    starts_W, stops_W = _words(text)
    documents_W = np.searchsorted(ends_D, starts_W, side="right")
    count = max(len(starts_W) - words + 1, 0)
    whole = np.flatnonzero(documents_W[:count] == documents_W[words - 1 :][:count])
    hashes_W = _word_hashes(_LOWER[text], starts_W, stops_W)
    hashes_P = np.zeros(len(whole), dtype=np.uint64)
    for offset in range(words):
        hashes_P *= np.uint64(_BASE)
        hashes_P += hashes_W[whole + offset]
    return Passages(scramble(hashes_P), documents_W[whole])


def _words(text: Bytes) -> tuple[Offsets, Offsets]:
    """Where words begin and end: runs of letters, digits and non-ASCII characters."""
    inside = _CONTINUES_WORD[_LOWER[text]]
    inside[_general_punctuation(text)] = False
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    return edges[0::2], edges[1::2]


def _general_punctuation(text: Bytes) -> Offsets:
    """The bytes of U+2000 to U+206F: curly quotes, dashes, ellipses, odd spaces."""
    lead = np.flatnonzero((text[:-2] == 0xE2) & ((text[1:-1] == 0x80) | (text[1:-1] == 0x81)))
    return np.concatenate((lead, lead + 1, lead + 2))


def _word_hashes(text: Bytes, starts_W: Offsets, stops_W: Offsets) -> UInt64s:
    """A number for each word that depends on its bytes alone."""
    powers = _powers(_BASE, len(text) + 1)
    sums = np.zeros(len(text) + 1, dtype=np.uint64)
    np.cumsum(powers[:-1] * (text + np.uint64(1)), out=sums[1:])
    inverse = _powers(pow(_BASE, -1, _MODULUS), len(text) + 1)
    hashes: UInt64s = (sums[stops_W] - sums[starts_W]) * inverse[starts_W]
    return scramble(hashes)


def _powers(base: int, count: int) -> npt.NDArray[np.uint64]:
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)
