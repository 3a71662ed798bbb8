"""Which bucket each document goes to, decided before the first is sent.

In:  for each input shard, the smallest digests of its splits and a sample of its documents.
Out: `ShufflePlan`: all buckets, a key for each, and the documents that are too frequent to travel
     with their tokens more than once.

The number of buckets follows from the texts alone (cardinality.py), so all of them are read once
before: the vocabulary stage's reading cannot serve, because a vocabulary may be given, and because
which documents have no tokens is known only with it. Every document then goes to one key, that of
the split and bucket it belongs to, and the identities of documents of stronger splits
(`stronger_splits`, pipeline/text/texts.py) go to the buckets whose documents may not equal them. Of
a split of few documents all are known by then, and only what may equal one of them is sent there.

A text that is in very many shards would meet its equals in one bucket. A shard drops its own
repetitions; a text that is long enough, or in enough shards, to fill a bucket is found by a sample
weighted by size, and one shard that is known to have it, its carrier, sends its tokens.
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
from pipeline.shuffle.buckets import BucketGroup, BucketRange, bucket_groups
from pipeline.shuffle.cardinality import EMPTY, MINIMUM_VALUES, Cardinality
from pipeline.shuffle.tokenization import TokensJob
from pipeline.text.texts import stronger_splits

SAMPLED_BYTES = 4 << 20
"""Of text; a document is sampled once in so many. One that repeats 32 MB of it is found with 99.7 %
probability, one that repeats a bucket's 64 MB with all but certainty."""

Identity = tuple[int, bytes]
"""A split and a digest."""


@dataclass(frozen=True)
class Deliveries:
    """Rows and where they go, in order of key.

    keys_N:        numbers of buckets (`ShufflePlan.bucket`).
    rows_N:        which row; one may go to several.
    with_tokens_N: whether it is one of the bucket's own, and not there for comparison only.
    """

    keys_N: Int64s
    rows_N: Int64s
    with_tokens_N: Mask


@dataclass(frozen=True)
class ShufflePlan:
    """All buckets, numbered, and the carriers of frequent texts."""

    groups: tuple[BucketGroup, ...]
    splits: int
    """Number of splits."""
    carriers: Mapping[Identity, str]
    """The shard that sends a frequent text's tokens."""
    keys: Mapping[int, UInt64s]
    """Of each small split the keys of all its documents."""

    @cached_property
    def _places(self) -> list[tuple[int, BucketRange]]:
        return [
            (place, bucket) for place, group in enumerate(self.groups) for bucket in group.buckets
        ]

    def __len__(self) -> int:
        """Number of buckets."""
        return len(self._places)

    def bucket(self, key: int) -> tuple[int, BucketRange]:
        """The bucket with that number, and which of the groups it belongs to."""
        return self._places[key]

    def deliveries(self, keys_D: UInt64s, splits_D: Int64s) -> Deliveries:
        """Where documents go, by the first halves of their digests and their splits."""
        keys, rows, own, base = [], [], [], 0
        for _, family in groupby(self.groups, key=lambda group: group.split):
            buckets = [bucket for group in family for bucket in group.buckets]
            every = buckets[0]
            stronger = stronger_splits(every.splits[0], count=self.splits)
            inside_D = keys_D >= np.uint64(every.first)
            if not every.end >> 64:
                inside_D &= keys_D < np.uint64(every.end)
            wanted_D = inside_D & np.isin(splits_D, [*every.splits, *stronger])
            if self.keys.keys() >= set(every.splits):  # perhaps a few against very many
                known = np.concatenate([self.keys[split] for split in every.splits])
                wanted_D &= np.isin(keys_D, known)
            found = np.flatnonzero(wanted_D)
            shift = np.uint64(64 - every.bits)
            numbers = (keys_D[found] >> shift).astype(np.int64) if every.bits else 0 * found
            keys.append(base + numbers)
            rows.append(found)
            own.append(np.isin(splits_D[found], every.splits))
            base += len(buckets)
        none = np.zeros(0, dtype=np.int64)
        keys_N, rows_N = np.concatenate([none, *keys]), np.concatenate([none, *rows])
        order = np.argsort(keys_N, kind="stable")
        own_N = np.concatenate([none > 0, *own])
        return Deliveries(keys_N[order], rows_N[order], own_N[order])


@dataclass(frozen=True)
class PlanFacts:
    """What a plan is made of: small for any corpus."""

    smallest: tuple[Cardinality, ...]
    """For each split the documents with the smallest digests."""
    carriers: Mapping[Identity, str]
    """As in `ShufflePlan`."""

    def cardinality(self, split: int) -> Cardinality:
        """The smallest digests of a split."""
        return self.smallest[split]

    def plan(self, job: TokensJob) -> ShufflePlan:
        """The plan; the same wherever it is computed."""
        keys = {
            split: found.keys_D
            for split, found in enumerate(self.smallest)
            if len(found.keys_D) < MINIMUM_VALUES
        }
        return ShufflePlan(tuple(bucket_groups(self, job)), job.splits, self.carriers, keys)

    def to_json(self) -> bytes:
        """For a file."""
        smallest = [[found.keys_D.tolist(), found.bytes_D.tolist()] for found in self.smallest]
        carriers = [[split, digest.hex(), by] for (split, digest), by in self.carriers.items()]
        return json.dumps({"smallest": smallest, "carriers": carriers}).encode()

    @classmethod
    def from_json(cls, content: bytes) -> "PlanFacts":
        """The inverse of `to_json`."""
        table = json.loads(content)
        return cls(
            tuple(
                Cardinality(np.array(keys, dtype=np.uint64), np.array(sizes, dtype=np.int64))
                for keys, sizes in table["smallest"]
            ),
            {(split, bytes.fromhex(digest)): by for split, digest, by in table["carriers"]},
        )


def sampled(digests_D2: UInt64s, bytes_D: Int64s, *purpose: str | int) -> Mask:
    """Which documents of a block the sample has; `purpose` names the block."""
    draws_D = high_half(document_streams(digests_D2, stream_seed(0, "frequent", *purpose)))
    return draws_D < np.minimum(bytes_D * 2.0**32 / SAMPLED_BYTES, 2.0**32)


def carriers(samples: Iterable[tuple[Identity, str]]) -> dict[Identity, str]:
    """The texts that were sampled more than once, and of the shards that have each the first."""
    shards: dict[Identity, list[str]] = defaultdict(list)
    for identity, shard in samples:
        shards[identity].append(shard)
    return {identity: min(names) for identity, names in shards.items() if len(names) > 1}


def smallest_of(parts: Iterable[Sequence[Cardinality]]) -> tuple[Cardinality, ...]:
    """For each split the smallest digests of all parts."""
    return tuple(sum(found, EMPTY) for found in zip(*parts, strict=True))
