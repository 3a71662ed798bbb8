"""A hash table from short words to integers, looked up a million words at a time.

In:  words as columns of 8-byte integers, zero-padded: `the` is the one integer 0x656874.
Out: the value of each word, or 0.

A word of at most 8 * width bytes *is* its key, so equal keys mean equal words, and none can
collide. Python's dict would need one object a word; this needs a dozen NumPy calls a block.
"""

import numpy as np

from artifacts.arrays import Int64s, Mask, UInt64s
from artifacts.rng import GOLDEN_GAMMA

ABSENT = np.uint64(0)
"""The value of a word that is not there; and the key of a free slot, since no word is empty."""

MAX_PROBES = 16
"""Slots tried for a word. A word that finds no free one among them is simply not stored."""

_MULTIPLIER_1 = np.uint64(GOLDEN_GAMMA)
_MULTIPLIER_2 = np.uint64(0xC2B2AE3D27D4EB4F)


class WordTable:
    """Open addressing with linear probing; words are never deleted one by one, only all at once.

    A slot is a row: the word's integers, then its value, so that a look-up touches one cache line.
    """

    def __init__(self, *, width: int, slots: int) -> None:
        """`width` integers a word, 1 or 2; `slots` is a power of two."""
        self.width = width
        self._slots = slots
        self.clear()
        self._last = slots - 1
        self._shift = np.uint64(64 - (slots.bit_length() - 1))

    def clear(self) -> None:
        """Forget everything."""
        self._rows = np.zeros((self._slots, self.width + 1), dtype=np.uint64)
        self.count = 0

    def find(self, keys: list[UInt64s]) -> UInt64s:
        """The values of words (`width` arrays of one length); 0 where a word is not there."""
        slots = self._home(keys)
        rows = self._rows.take(slots, axis=0)
        values = rows[:, -1].copy()
        unsettled = np.flatnonzero(_differ(rows, keys))
        rows, slots = rows[unsettled], slots[unsettled]
        for _ in range(MAX_PROBES):
            values[unsettled] = ABSENT
            occupied = np.flatnonzero(rows[:, 0])
            if not len(occupied):
                return values
            unsettled, slots = unsettled[occupied], (slots[occupied] + 1) & self._last
            rows = self._rows.take(slots, axis=0)
            values[unsettled] = rows[:, -1]
            differ = np.flatnonzero(_differ(rows, [key[unsettled] for key in keys]))
            unsettled, slots, rows = unsettled[differ], slots[differ], rows[differ]
        values[unsettled] = ABSENT
        return values

    def insert(self, keys: list[UInt64s], values: UInt64s) -> None:
        """Add distinct words that are not there yet, with values other than 0."""
        slots = self._home(keys)
        for _ in range(MAX_PROBES):
            free = self._rows[slots, 0] == ABSENT
            for column, key in enumerate((*keys, values)):
                self._rows[slots[free], column] = key[free]
            # Of words that share a slot the last one stays, in every column alike.
            left = np.flatnonzero(~free | _differ(self._rows[slots], keys))
            self.count += len(slots) - len(left)
            if not len(left):
                return
            keys, values = [key[left] for key in keys], values[left]
            slots = (slots[left] + 1) & self._last

    def _home(self, keys: list[UInt64s]) -> Int64s:
        mixed = keys[0] * _MULTIPLIER_1
        if self.width == 2:
            mixed ^= keys[1] * _MULTIPLIER_2
            mixed *= _MULTIPLIER_1
        return (mixed >> self._shift).view(np.int64)


def _differ(rows: UInt64s, keys: list[UInt64s]) -> Mask:
    differ: Mask = rows[:, 0] != keys[0]
    for column, key in enumerate(keys[1:], start=1):
        differ |= rows[:, column] != key
    return differ
