"""Buckets: all documents of a range of digests, each once, in order of digest.

In:  the runs that may hold a part of a bucket.
Out: its documents as rows of a tokens file (artifacts/tables.py), and those dropped here because an
     equal one came first or because they are on a drop list.

A bucket is a power-of-two share of the digests (cardinality.py says how many there are).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from artifacts.rng import Int64s, UInt64s
from artifacts.tables import tokens_schema
from pipeline.duplicates.drop_list import DropList
from pipeline.shuffle.sorted_runs import IDENTITY, KEY, dropped_rows, open_batches
from pipeline.shuffle.splits import digest_bytes, halves, stronger_splits
from pipeline.text.filters import Reason


@dataclass(frozen=True)
class BucketRange:
    """One bucket of a split: the digests whose first bits are its number."""

    split: int
    number: int
    bits: int

    def bounds(self) -> tuple[int, int]:
        """Its keys: from the first number up to and without the second."""
        width = 64 - self.bits
        return self.number << width, (self.number + 1) << width


@dataclass(frozen=True)
class BucketContent:
    """A bucket's surviving rows, in order of digest, and the documents dropped for them."""

    rows: pa.Table
    dropped: pa.Table


def read_bucket(
    runs: Sequence[str], bucket: BucketRange, *, splits: int, drop_list: DropList
) -> BucketContent:
    """The bucket's documents, each once, and those dropped for an equal or listed one."""
    own = pa.Table.from_batches(list(_slices(runs, bucket, bucket.split)))
    stronger = [
        pa.Table.from_batches(list(_slices(runs, bucket, split))).select(IDENTITY)
        for split in stronger_splits(bucket.split, count=splits)
    ]
    identity = pa.concat_tables([*stronger, own.select(IDENTITY)]).combine_chunks()
    strength = np.repeat(np.arange(len(stronger) + 1), [*map(len, stronger), len(own)])
    digests_D2 = halves(digest_bytes(identity["document_digest"]))
    order, winners = _by_digest(identity, digests_D2, strength)
    reasons = np.full(len(order), Reason.KEPT, dtype=np.uint8)
    reasons[drop_list.holds(digests_D2[order])] = Reason.DROP_LIST
    reasons[winners != order] = Reason.DUPLICATE
    reasons[strength[winners] < strength[order]] = Reason.HELD_OUT
    ours = strength[order] == len(stronger)
    kept = order[ours & (reasons == Reason.KEPT)] - (len(identity) - len(own))
    lost = ours & (reasons != Reason.KEPT)
    return BucketContent(
        rows=own.combine_chunks().take(pa.array(kept)),
        dropped=dropped_rows(identity, order[lost], reasons[lost]),
    )


def tokens_table(rows: pa.Table, *, weights: Sequence[int], vocabulary_size: int) -> pa.Table:
    """The rows of a tokens file."""
    copies = np.array(weights, dtype=np.uint8)[rows["source"].to_numpy()]
    columns = [
        rows["document_digest"],
        pa.array(copies),
        rows["token_ids"],
        rows["sentence_lengths"],
    ]
    schema = tokens_schema(vocabulary_size)
    return pa.Table.from_arrays(
        [
            pc.cast(column, field.type) if column.type != field.type else column
            for column, field in zip(columns, schema, strict=True)
        ],
        schema=schema,
    )


def _by_digest(identity: pa.Table, digests_D2: UInt64s, strength: Int64s) -> tuple[Int64s, Int64s]:
    """The rows in order of digest, and for each the row that comes first among its equals."""
    names = [identity[name].to_numpy() for name in ("position", "file", "source")]
    order = np.lexsort((*names, strength, digests_D2[:, 1], digests_D2[:, 0]))
    sorted_D2 = digests_D2[order]
    first = np.ones(len(order), dtype=np.bool_)
    first[1:] = np.any(sorted_D2[1:] != sorted_D2[:-1], axis=1)
    leads = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    return order, order[leads]


def close_runs() -> None:
    """Let go of the runs' files, which are kept open for the next bucket."""
    _open.cache_clear()


@lru_cache(maxsize=4096)
def _open(run: str) -> list[pa.RecordBatch]:
    return open_batches(run)


def _slices(runs: Sequence[str], bucket: BucketRange, split: int) -> Iterator[pa.RecordBatch]:
    low, high = bucket.bounds()
    for run in runs:
        batch = _open(run)[split]
        keys_D = batch[KEY].to_numpy()
        start = int(np.searchsorted(keys_D, np.uint64(low)))
        stop = len(keys_D) if high >> 64 else int(np.searchsorted(keys_D, np.uint64(high)))
        yield batch.slice(start, stop - start)
