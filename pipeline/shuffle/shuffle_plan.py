"""Which bucket each document goes to, decided before any is sent.

In:  for each input shard, the smallest digests of its splits and a sample of its documents.
Out: `ShufflePlan`: all buckets with a key each, and the texts that are so frequent that their
     tokens must be sent only once.

The number of buckets depends on the texts alone (buckets.py), so all texts are read once before
the shuffle. The vocabulary stage's pass cannot serve: the vocabulary may be given, and only the
vocabulary determines which documents have no tokens. Each document is sent to one key, that of its
split and bucket. Identities of documents in splits that take precedence (`stronger_splits`,
pipeline/text/splits.py) are also sent to the buckets that must not contain them. All documents of a
small split are known by then, and only possible duplicates are sent to it.

A text that occurs in very many shards would be gathered that often in one bucket. Each shard drops
its own duplicates; a text that is long enough, or in enough shards, to fill a bucket is found by a
sample weighted by size, and only one shard known to contain it, its carrier, sends its tokens.
"""

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby

import numpy as np

from artifacts.arrays import Int64s, Mask, UInt64s
from artifacts.rng import document_streams, high_half, stream_seed
from pipeline.shuffle.buckets import (
    EMPTY,
    MINIMUM_VALUES,
    BucketGroup,
    BucketRange,
    Cardinality,
    TokensJob,
    bucket_groups,
)
from pipeline.text.splits import stronger_splits

SAMPLED_BYTES = 4 << 20
"""Bytes of text per sampled document. A text whose copies add up to 32 MB is found with 99.7 %
probability, one that adds up to a bucket's 64 MB almost certainly."""

Identity = tuple[int, bytes]
"""A split and a digest."""


@dataclass(frozen=True)
class ShufflePlan:
    """The facts that determine a plan, small for any corpus, and what follows from them."""

    job: TokensJob
    smallest: tuple[Cardinality, ...]
    """The documents with the smallest digests, by split."""
    carriers: Mapping[Identity, str]
    """The shard that sends the tokens of a frequent text."""

    def cardinality(self, split: int) -> Cardinality:
        """The estimate for a split."""
        return self.smallest[split]

    @cached_property
    def groups(self) -> list[BucketGroup]:
        """The groups of buckets, the same wherever they are computed."""
        return bucket_groups(self, self.job)

    @cached_property
    def _places(self) -> list[tuple[int, BucketRange]]:
        return [
            (place, bucket) for place, group in enumerate(self.groups) for bucket in group.buckets
        ]

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._places)

    def bucket(self, key: int) -> tuple[int, BucketRange]:
        """The index of the group, and the bucket, with this number."""
        return self._places[key]

    def deliveries(self, keys_D: UInt64s, splits_D: Int64s) -> tuple[Int64s, Int64s, Mask]:
        """The destinations of documents, by the first halves of their digests and their splits.

        For each of N deliveries, sorted by bucket: the number of the bucket, the document's row,
        and whether it belongs to the bucket and is not only for comparison. A row may be sent to
        several buckets.
        """
        none = np.zeros(0, dtype=np.int64)
        keys, rows, own, base = [none], [none], [none > 0], 0
        for _, family in groupby(self.groups, key=lambda group: group.split):
            buckets = [bucket for group in family for bucket in group.buckets]
            every = buckets[0]
            stronger = stronger_splits(every.splits[0], count=self.job.splits)
            inside_D = keys_D >= np.uint64(every.first)
            if not every.end >> 64:
                inside_D &= keys_D < np.uint64(every.end)
            wanted_D = inside_D & np.isin(splits_D, [*every.splits, *stronger])
            known = [self.smallest[split].keys_D for split in every.splits]
            if max(map(len, known)) < MINIMUM_VALUES:  # all known: send only possible duplicates
                wanted_D &= np.isin(keys_D, np.concatenate(known))
            found = np.flatnonzero(wanted_D)
            shift = np.uint64(64 - every.bits)
            numbers = (keys_D[found] >> shift).astype(np.int64) if every.bits else 0 * found
            keys.append(base + numbers)
            rows.append(found)
            own.append(np.isin(splits_D[found], every.splits))
            base += len(buckets)
        keys_N = np.concatenate(keys)
        order = np.argsort(keys_N, kind="stable")
        return keys_N[order], np.concatenate(rows)[order], np.concatenate(own)[order]

    def to_json(self) -> bytes:
        """Serialise the facts."""
        smallest = [[found.keys_D.tolist(), found.bytes_D.tolist()] for found in self.smallest]
        carriers = [[split, digest.hex(), by] for (split, digest), by in self.carriers.items()]
        return json.dumps({"smallest": smallest, "carriers": carriers}).encode()

    @classmethod
    def from_json(cls, content: bytes, job: TokensJob) -> "ShufflePlan":
        """The inverse of `to_json`."""
        table = json.loads(content)
        return cls(
            job,
            tuple(
                Cardinality(np.array(keys, dtype=np.uint64), np.array(sizes, dtype=np.int64))
                for keys, sizes in table["smallest"]
            ),
            {(split, bytes.fromhex(digest)): by for split, digest, by in table["carriers"]},
        )


def sampled(digests_D2: UInt64s, bytes_D: Int64s, *purpose: str | int) -> Mask:
    """Which documents of a block are sampled; `purpose` identifies the block."""
    draws_D = high_half(document_streams(digests_D2, stream_seed(0, "frequent", *purpose)))
    return draws_D < np.minimum(bytes_D * 2.0**32 / SAMPLED_BYTES, 2.0**32)


def carriers(samples: Iterable[tuple[Identity, str]]) -> dict[Identity, str]:
    """The texts that were sampled more than once, each with the first shard that contains it."""
    shards: dict[Identity, list[str]] = defaultdict(list)
    for identity, shard in samples:
        shards[identity].append(shard)
    return {identity: min(names) for identity, names in shards.items() if len(names) > 1}


def smallest_of(parts: Iterable[Sequence[Cardinality]]) -> tuple[Cardinality, ...]:
    """Merge the estimates of all parts, by split."""
    return tuple(sum(found, EMPTY) for found in zip(*parts, strict=True))
