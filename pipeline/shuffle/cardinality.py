"""The number of buckets of a split, from an estimate of its cardinality.

In:  the smallest digests of a split's documents, and the lengths of their texts.
Out: a number of bits: the first bits of a document's digest are the number of its bucket.

The estimator is k minimum values (KMV; Bar-Yossef et al. 2002): digests are uniform, so the k-th
smallest of n lies near k / n. It estimates the number of distinct documents, and the k lengths are
a fair sample. The result depends on the texts alone, not on their division into shards.
"""

import math
from dataclasses import dataclass

import numpy as np

from artifacts.arrays import Int64s, UInt64s

MINIMUM_VALUES = 4096
"""k: the estimated number of documents is accurate to 2 %."""

BUCKET_BYTES = 4 << 20
"""Least text in a bucket, which is one task of the next stage."""

DOCUMENTS_PER_BUCKET = 650
"""Average, so that hardly any bucket has fewer than 500: the source of random next sentences."""

MOST_BUCKET_BYTES = 64 << 20
"""Most text in a bucket, however few documents that is: a worker loads it whole, and needs about
five times as much memory."""

MOST_BUCKETS = 1 << 16


@dataclass(frozen=True)
class Cardinality:
    """The documents of a split with the smallest digests; merged by addition.

    keys_D:  first halves of the digests, ascending and distinct.
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
        """Bits of a bucket number; None if there are no documents."""
        if not len(self.keys_D):
            return None
        documents: float = len(self.keys_D)
        if documents == MINIMUM_VALUES:
            documents = (MINIMUM_VALUES - 1) / (float(self.keys_D[-1]) / 2.0**64)
        return bucket_bits(documents, documents * float(self.bytes_D.mean()))


def bucket_bits(documents: float, text_bytes: float) -> int:
    """Bits of a bucket number in a split of this size."""
    wanted = min(documents / DOCUMENTS_PER_BUCKET, text_bytes / BUCKET_BYTES, MOST_BUCKETS)
    least = min(text_bytes / MOST_BUCKET_BYTES, MOST_BUCKETS)
    return max(max(int(wanted), 1).bit_length() - 1, math.ceil(math.log2(max(least, 1))))


EMPTY = Cardinality(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))
