"""How many buckets a split gets, from an estimate of its cardinality.

In:  the smallest digests of a split's documents, and the lengths of their texts.
Out: a number of bits: buckets are the power-of-two shares of the digests that they tell apart.

The estimate is by k minimum values (KMV; Bar-Yossef et al. 2002): digests are uniform, so the k-th
smallest of n lies near k / n. It gives the number of distinct documents, and the lengths of those k
are a fair sample. It depends on the texts alone, not on their shards; so does the number
of buckets.
"""

import math
from dataclasses import dataclass

import numpy as np

from artifacts.arrays import Int64s, UInt64s

MINIMUM_VALUES = 4096
"""The estimate of the number of documents is good to 2 %."""

BUCKET_BYTES = 4 << 20
"""Text in a bucket, at least; one is the task of the next stage."""

DOCUMENTS_PER_BUCKET = 650
"""On average, so that hardly a bucket has fewer than 500: random next sentences come from there."""

MOST_BUCKET_BYTES = 64 << 20
"""Text in a bucket, at most, however few documents that are: a worker holds one whole, and works on
it in about five times as much memory."""

MOST_BUCKETS = 1 << 16


@dataclass(frozen=True)
class Cardinality:
    """The documents of a split with the smallest digests.

    keys_D:  first halves of the digests, ascending, each once.
    bytes_D: bytes of the documents' texts.
    """

    keys_D: UInt64s
    bytes_D: Int64s

    def __add__(self, other: "Cardinality") -> "Cardinality":
        keys_D = np.concatenate((self.keys_D, other.keys_D))
        bytes_D = np.concatenate((self.bytes_D, other.bytes_D))
        distinct_D, first = np.unique(keys_D, return_index=True)
        return Cardinality(distinct_D[:MINIMUM_VALUES], bytes_D[first[:MINIMUM_VALUES]])

    def bucket_bits(self) -> int | None:
        """How many bits of the digest tell buckets apart; None if there are no documents."""
        if not len(self.keys_D):
            return None
        documents: float = len(self.keys_D)
        if documents == MINIMUM_VALUES:
            documents = (MINIMUM_VALUES - 1) / (float(self.keys_D[-1]) / 2.0**64)
        return bucket_bits(documents, documents * float(self.bytes_D.mean()))


def bucket_bits(documents: float, text_bytes: float) -> int:
    """How many bits of the digest tell buckets of a split of so many documents apart."""
    wanted = min(documents / DOCUMENTS_PER_BUCKET, text_bytes / BUCKET_BYTES, MOST_BUCKETS)
    least = min(text_bytes / MOST_BUCKET_BYTES, MOST_BUCKETS)
    return max(max(int(wanted), 1).bit_length() - 1, math.ceil(math.log2(max(least, 1))))


EMPTY = Cardinality(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))
