"""Addressed chance: every draw is a function of what it is for, never of what was drawn before.

In:  a purpose (`seed, digest, epoch, …`) and an array of counters.
Out: 64 random bits per counter, the same on every machine, rank, retry and version of NumPy.

The mixing function is splitmix64 (Steele, Lea, Flood 2014): counters that differ in one bit give
independent-looking bits, and a whole array costs a few nanoseconds an element.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

UInt64 = NDArray[np.uint64]

_INCREMENT = np.uint64(0x9E3779B97F4A7C15)
_FIRST = np.uint64(0xBF58476D1CE4E5B9)
_SECOND = np.uint64(0x94D049BB133111EB)


def address(*purpose: str | int) -> int:
    """A 64-bit key for one purpose, for example `address(seed, digest, "order", epoch)`."""
    text = "/".join(str(part) for part in purpose)
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def random_bits(key: int, counters: NDArray[np.integer]) -> UInt64:
    """64 random bits for each of `counters` under `key`; same shape."""
    mixed = counters.astype(np.uint64)
    mixed += np.uint64(1)
    mixed *= _INCREMENT
    mixed += np.uint64(key)
    mixed ^= mixed >> np.uint64(30)
    mixed *= _FIRST
    mixed ^= mixed >> np.uint64(27)
    mixed *= _SECOND
    mixed ^= mixed >> np.uint64(31)
    return mixed


def permutation(key: int, size: int) -> NDArray[np.int64]:
    """A permutation of `range(size)` under `key`."""
    bits = random_bits(key, np.arange(size, dtype=np.uint64))
    # A stable sort, so that even two equal draws have one order everywhere.
    return np.argsort(bits, kind="stable")
