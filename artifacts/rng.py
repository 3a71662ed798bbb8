"""Counter-based random numbers: the same draw for the same address, wherever it is made.

In:  an address (seed, purpose, epoch, document digest, …) and a counter.
Out: 64 random bits per counter, vectorised over arrays; the same on every machine, rank and retry
     and with every version of NumPy.

There is no shared generator to consume from, and creating a generator per document would cost more
than everything else done with the document. Instead each draw is a hash: counter k of stream s is
the k-th output of SplitMix64 started at s (Steele, Lea, Flood 2014).
"""

import hashlib
import json
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

# D documents, N streams, M predicted tokens
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
    """The start of the streams for one purpose; different purposes are independent."""
    return np.uint64(_hashed(json.dumps([seed, *purpose])))


def address(*purpose: int | str) -> int:
    """The stream for one purpose, for example `address(seed, digest, "order", epoch)`.

    Like `stream_seed`, but hashes the parts joined by slashes. The two give different bits, so
    neither can replace the other.
    """
    return _hashed("/".join(str(part) for part in purpose))


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def document_streams(digests_D2: UInt64s, start: np.uint64) -> UInt64s:
    """One stream per document, (D,), from its digest as two 64-bit integers.

    The integers' byte order is part of the address (`digest_halves`, artifacts/arrays.py).
    """
    # Scrambled before the second half joins, so that the two cannot cancel out.
    first_D = scramble(digests_D2[:, 0] + start)
    return scramble(first_D ^ digests_D2[:, 1])


def draw(streams: UInt64s | np.uint64, counters: NDArray[np.integer] | int) -> UInt64s:
    """64 random bits: draw number `counters` (>= 0) of each stream, with broadcasting."""
    # SplitMix64's state after counter + 1 steps from the stream, then its finalizer.
    if isinstance(counters, int):
        return scramble(np.asarray(streams) + np.uint64((counters + 1) * GOLDEN_GAMMA & _MASK))
    steps = counters.astype(np.uint64)
    steps += np.uint64(1)
    steps *= np.uint64(GOLDEN_GAMMA)
    return scramble(streams + steps)


def permutation(key: int, size: int) -> Int64s:
    """A permutation of `range(size)` from the stream `key`."""
    # stable, so that even equal draws have the same order everywhere
    return np.argsort(draw(np.uint64(key), np.arange(size)), kind="stable")


def scramble(values: UInt64s) -> UInt64s:
    """SplitMix64's finalizer, in place: a bijection that mixes all bits."""
    values ^= values >> _SHIFT_1
    values *= _MULTIPLIER_1
    values ^= values >> _SHIFT_2
    values *= _MULTIPLIER_2
    values ^= values >> _SHIFT_3
    return values


def high_half(bits: UInt64s) -> UInt64s:
    """The upper 32 bits, as integers below 2**32."""
    return bits >> _HALF


def low_half(bits: UInt64s) -> UInt64s:
    """The lower 32 bits, independent of the upper ones."""
    return bits & _LOW


def below(halves: UInt64s, limits: Int64s | int) -> Int64s:
    """Uniform integers in [0, limit) from 32 random bits; limits are at most 2**32."""
    # The upper half of limit × bits, with a bias below limit / 2^32.
    wide = halves * np.asarray(limits).astype(np.uint64)
    wide >>= _HALF
    return wide.view(np.int64)


def happens(halves: UInt64s, probability: float) -> NDArray[np.bool_]:
    """True with `probability`, from 32 random bits."""
    return halves < np.uint64(round(probability * (1 << 32)))


def coin_flips(streams: UInt64s, flips: Int64s) -> Int64s:
    """The number of heads among `flips` fair coins, (N,): exactly binomial with p = 1/2.

    Each draw serves 64 flips, by counting its set bits.
    """
    # Words of 64 flips; one is nearly always enough.
    words = (flips + 63) >> 6
    heads = _heads(draw(streams, 0), np.minimum(flips, 64))
    long = np.flatnonzero(words > 1)
    if len(long):  # the remaining flips are the bits of draws 1, 2, …
        words, flips = words[long] - 1, flips[long] - 64
        first = np.cumsum(words) - words
        rank = np.arange(words.sum()) - np.repeat(first, words)
        # The last word of a stream may serve fewer flips.
        bits = np.minimum(np.repeat(flips, words) - (rank << 6), 64)
        later = _heads(draw(np.repeat(streams[long], words), rank + 1), bits)
        heads[long] += np.add.reduceat(later, first)
    return heads


def _heads(words: UInt64s, bits: Int64s) -> Int64s:
    # The upper `bits` bits; a shift by 64 is undefined, hence the condition.
    used = np.where(bits > 0, words >> (64 - bits).astype(np.uint64), np.uint64(0))
    return np.bitwise_count(used).astype(np.int64)


@dataclass(frozen=True)
class Replacement:
    """What random bits make of a predicted token: [MASK], any word-piece, itself (paper, 3.1)."""

    mask_id: int
    """Id of [MASK]."""

    vocabulary_size: int
    """Random word-pieces are drawn from [0, vocabulary_size)."""

    mask_share: float
    """Share replaced by [MASK] (paper: 0.8)."""

    random_share: float
    """Share replaced by a random word-piece (paper: 0.1); the rest stays."""

    def __call__(
        self,
        ids_M: NDArray[np.integer],
        fates_M: UInt64s,
        words_M: NDArray[np.integer] | None = None,
        *,
        bits: int,
    ) -> tuple[NDArray[np.integer], NDArray[np.bool_], NDArray[np.bool_]]:
        """The new ids; which of them are [MASK], and which are random.

        fates_M: `bits` random bits each, which decide. words_M: random word-pieces; None: derived
        from the fates, which are uniform again within their share.
        """
        # Below the first bound: [MASK]; below the second: a random word-piece.
        until_mask = round(self.mask_share * 2**bits)
        until_random = round((self.mask_share + self.random_share) * 2**bits)
        masked_M = fates_M < np.uint64(until_mask)
        random_M = ~masked_M & (fates_M < np.uint64(until_random))
        new_M = np.where(masked_M, ids_M.dtype.type(self.mask_id), ids_M)
        random = np.flatnonzero(random_M)
        if words_M is None:
            within = (fates_M[random] - np.uint64(until_mask)) * np.uint64(self.vocabulary_size)
            new_M[random] = within // np.uint64(max(until_random - until_mask, 1))
        else:
            new_M[random] = words_M[random]
        return new_M, masked_M, random_M
