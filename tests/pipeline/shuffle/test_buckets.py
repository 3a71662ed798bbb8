"""The number of buckets: enough documents in each, but never too many bytes."""

import numpy as np
import pytest

from cloze.pipeline.config.settings import DOCUMENTS_PER_BUCKET, MOST_BUCKET_BYTES, MOST_BUCKETS
from cloze.pipeline.shuffle.buckets import Cardinality


def estimate(documents: int, size: int) -> Cardinality:
    """The estimate for documents of equal size with evenly spaced digests."""
    keys = np.linspace(0, 2**64 - 2**11, documents, dtype=np.float64).astype(np.uint64)
    return Cardinality(keys, np.full(documents, size, dtype=np.int64)) + Cardinality(
        keys[:0], np.zeros(0, dtype=np.int64)
    )


@pytest.mark.parametrize(
    ("documents", "size"), [(251, 4 << 20), (11_000, 400_000), (2, 3 << 20), (5000, 1 << 20)]
)
def test_a_bucket_of_long_documents_is_bounded_in_bytes(documents: int, size: int) -> None:
    bits = estimate(documents, size).bucket_bits()
    assert bits is not None
    assert documents * size / 2**bits <= 1.05 * MOST_BUCKET_BYTES


@pytest.mark.parametrize("documents", [700, 4000, 100_000])
def test_a_bucket_of_short_documents_has_enough_of_them(documents: int) -> None:
    bits = estimate(documents, 8000).bucket_bits()
    assert bits is not None
    assert documents / 2**bits >= 0.95 * DOCUMENTS_PER_BUCKET


def test_there_are_never_more_buckets_than_a_file_system_bears() -> None:
    bits = estimate(4_000_000, 4 << 20).bucket_bits()
    assert bits is not None
    assert 1 << bits == MOST_BUCKETS


def test_a_split_without_documents_has_no_bucket() -> None:
    assert estimate(0, 1).bucket_bits() is None
