"""Counter-based random numbers: the same draw for the same address, wherever it is made.

In:  an address (seed, purpose, epoch, document digest, …) and a counter within it.
Out: 64 random bits for each counter, for whole arrays at once; the same on every machine, rank,
     retry and version of NumPy.

Nothing is consumed from a shared generator, and a generator object per document would cost more
than all work on that document. Every draw is a hash instead: counter k of stream s is the k-th
output of SplitMix64 started at s (Steele, Lea, Flood 2014).
"""

import hashlib
import json

import numpy as np
from numpy.typing import NDArray

# D documents, N streams
UInt64s = NDArray[np.uint64]
Int64s = NDArray[np.int64]

GOLDEN_GAMMA = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1
_MULTIPLIER_1 = np.uint64(0xBF58476D1CE4E5B9)
_MULTIPLIER_2 = np.uint64(0x94D049BB133111EB)
_SHIFT_1, _SHIFT_2, _SHIFT_3 = np.uint64(30), np.uint64(27), np.uint64(31)
_HALF = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)


def stream_seed(seed: int, *purpose: int | str) -> np.uint64:
    """Where the streams for one purpose begin; different purposes share nothing."""
    return np.uint64(_hashed(json.dumps([seed, *purpose])))


def address(*purpose: int | str) -> int:
    """The stream for one purpose, for example `address(seed, digest, "order", epoch)`.

    Like `stream_seed`, over the parts joined by slashes: which of the two a caller takes decides
    its bits, so neither can replace the other.
    """
    return _hashed("/".join(str(part) for part in purpose))


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def document_streams(digests_D2: UInt64s, start: np.uint64) -> UInt64s:
    """One stream for each document, (D,), from its digest as two 64-bit numbers.

    The byte order in which the digest was read is part of the address (artifacts/tables.py).
    """
    first_D = scramble(digests_D2[:, 0] + start)
    return scramble(first_D ^ digests_D2[:, 1])


def draw(streams: UInt64s | np.uint64, counters: NDArray[np.integer] | int) -> UInt64s:
    """64 random bits: draw number `counters` (>= 0) of each stream; the two are broadcast."""
    if isinstance(counters, int):
        return scramble(np.asarray(streams) + np.uint64((counters + 1) * GOLDEN_GAMMA & _MASK))
    steps = counters.astype(np.uint64)
    steps += np.uint64(1)
    steps *= np.uint64(GOLDEN_GAMMA)
    return scramble(streams + steps)


def permutation(key: int, size: int) -> Int64s:
    """A permutation of `range(size)` under the stream `key`."""
    # A stable sort, so that even two equal draws have one order everywhere.
    return np.argsort(draw(np.uint64(key), np.arange(size)), kind="stable")


def scramble(values: UInt64s) -> UInt64s:
    """SplitMix64's finalizer, in place: a bijection in which every bit depends on every bit."""
    values ^= values >> _SHIFT_1
    values *= _MULTIPLIER_1
    values ^= values >> _SHIFT_2
    values *= _MULTIPLIER_2
    values ^= values >> _SHIFT_3
    return values


def high_half(bits: UInt64s) -> UInt64s:
    """The upper 32 bits, as numbers below 2**32."""
    return bits >> _HALF


def low_half(bits: UInt64s) -> UInt64s:
    """The lower 32 bits: independent of the upper ones."""
    return bits & _LOW


def below(halves: UInt64s, limits: Int64s | int) -> Int64s:
    """Uniform integers in [0, limit) from 32 random bits; a limit is at most 2**32."""
    wide = halves * np.asarray(limits).astype(np.uint64)
    wide >>= _HALF
    return wide.view(np.int64)


def happens(halves: UInt64s, probability: float) -> NDArray[np.bool_]:
    """True with `probability`, from 32 random bits."""
    return halves < np.uint64(round(probability * (1 << 32)))


def coin_flips(streams: UInt64s, flips: Int64s) -> Int64s:
    """How many of `flips` fair coins show heads, (N,): binomial with p = 1/2, exactly.

    Counting set bits makes one draw serve 64 flips.
    """
    words = (flips + 63) >> 6
    heads = _heads(draw(streams, 0), np.minimum(flips, 64))
    long = np.flatnonzero(words > 1)
    if len(long):  # the other flips of these are the bits of their draws from number 1 on
        words, flips = words[long] - 1, flips[long] - 64
        first = np.cumsum(words) - words
        rank = np.arange(words.sum()) - np.repeat(first, words)
        bits = np.minimum(np.repeat(flips, words) - (rank << 6), 64)
        later = _heads(draw(np.repeat(streams[long], words), rank + 1), bits)
        heads[long] += np.add.reduceat(later, first)
    return heads


def _heads(words: UInt64s, bits: Int64s) -> Int64s:
    used = np.where(bits > 0, words >> (64 - bits).astype(np.uint64), np.uint64(0))
    return np.bitwise_count(used).astype(np.int64)
