"""Buckets: how many there are, which digests belong to each, and how one is written.

In:  the smallest digests of a split's documents; the rows of a bucket, from a shuffle backend.
Out: the bucket's tokens file (artifacts/tables.py), put into the artifact: all documents in a range
     of digests, each once, sorted by digest. For each group of buckets, a list of the documents
     dropped as duplicates or by the drop list, and how often each id occurs.

The buckets of a split divide its digests into equal ranges: the first bits of a document's digest
are the number of its bucket. How many bits follows from an estimate of the split's cardinality by k
minimum values (KMV; Bar-Yossef et al. 2002): digests are uniform, so the k-th smallest of n lies
near k / n, and the lengths of these k documents are a fair sample. The result depends on the texts
alone, not on their division into shards.

Two shuffle backends bring documents there, with the same result. On one machine each input shard
becomes sorted runs on the local disk, and a bucket reads its slice of each (local_spill.py); on
several machines documents go through the engine's shuffle (beam_group_by_key.py).
"""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import chain
from operator import add
from typing import Literal

import numpy as np
import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import Int64s, UInt64s, list_values
from cloze.artifacts.filesystem import naming_full_disk
from cloze.artifacts.results import HELDOUT, TRAIN
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.artifacts.store import (
    WORK,
    all_finished,
    finished_file,
    finished_files,
    put_bytes,
    put_local_file,
)
from cloze.artifacts.tables import ipc_bytes, tokens_name, tokens_schema
from cloze.pipeline.config.settings import TokensStage, bucket_bits
from cloze.pipeline.mlm.statistics import count_tokens
from cloze.pipeline.text.duplicates import read_drop_list
from cloze.pipeline.text.splits import (
    HELDOUT_SPLIT,
    TRAIN_SPLIT,
    Division,
    divide,
    heldout_count,
    split_names,
    tail_digest,
)

MINIMUM_VALUES = 4096
"""k: the estimated number of documents is accurate to 2 %."""

MOST_GROUPS = 1024

COUNTED_AT_ONCE = 1 << 18
"""Ids to count at once, so that their 64-bit copy fits into the cache."""

Part = Literal["whole", "head", "tail"]
"""Whole documents, documents without their held-out sentences, or only these sentences."""


@dataclass(frozen=True)
class Cardinality:
    """The documents of a split with the smallest digests; merged by addition.

    keys_D:  first halves of the digests, ascending and distinct.
    bytes_D: bytes of the documents' texts.
    """

    keys_D: UInt64s
    bytes_D: Int64s

    @classmethod
    def of(cls, rows: pa.RecordBatch) -> "Cardinality":
        """The documents of `rows`; if they are not ascending and distinct, add it to `EMPTY`."""
        return cls(rows["key"].to_numpy(), rows["text_bytes"].to_numpy().astype(np.int64))

    def __add__(self, other: "Cardinality") -> "Cardinality":
        keys_D = np.concatenate((self.keys_D, other.keys_D))
        bytes_D = np.concatenate((self.bytes_D, other.bytes_D))
        # np.unique sorts, and keeps one of two equal keys, which stand for the same text.
        distinct_D, first = np.unique(keys_D, return_index=True)
        return Cardinality(distinct_D[:MINIMUM_VALUES], bytes_D[first[:MINIMUM_VALUES]])

    def bucket_bits(self) -> int | None:
        """Bits of a bucket number; None if there are no documents."""
        if not len(self.keys_D):
            return None
        documents: float = len(self.keys_D)
        if documents == MINIMUM_VALUES:
            # The k-th smallest of n uniform values in [0, 1) lies near k / n; (k - 1) / value is
            # unbiased.
            documents = (MINIMUM_VALUES - 1) / (float(self.keys_D[-1]) / 2.0**64)
        return bucket_bits(documents, documents * float(self.bytes_D.mean()))


EMPTY = Cardinality(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))


def smallest_of(parts: Iterable[Sequence[Cardinality]], *, splits: int) -> tuple[Cardinality, ...]:
    """Merge the estimates of all parts, by split."""
    smallest = (EMPTY,) * splits
    for part in parts:
        smallest = tuple(map(add, smallest, part))
    return smallest


@dataclass(frozen=True)
class TokensJob:
    """What all workers of the stage `tokens` share."""

    stage: TokensStage
    vocabulary: str
    """Directory of the vocabulary artifact."""
    output: str
    """Directory of the unfinished artifact."""
    scratch: str
    """Local directory on the artifact's disk; empty if each worker uses its own."""
    vocabulary_size: int
    """Number of word-pieces."""
    unk_id: int
    """Id of [UNK]."""
    tokenizer_files: tuple[str, ...]
    """Names of the vocabulary's files to copy into the artifact."""

    @property
    def splits(self) -> int:
        """Number of splits."""
        return len(split_names(self.stage.corpus))


@dataclass(frozen=True)
class Buckets:
    """Adjacent buckets of one split, processed as one task.

    The digests of a bucket's documents begin with the bits of its number.
    """

    split: str
    sources: tuple[int, ...]
    """The splits of the sorted runs that the documents come from."""
    numbers: range = range(1)
    bits: int = 0
    """Bits of a number."""
    first: int = 0
    """Lowest key; documents with lower ones are in another split."""
    end: int = 1 << 64
    """End of the keys, exclusive; documents with higher ones are in another split."""
    part: Part = "whole"
    """The part of each document to keep."""

    def bounds(self, number: int) -> tuple[int, int]:
        """The half-open range of keys of one of the buckets."""
        width = 64 - self.bits
        # Limits of the group apply to the buckets at its border; elsewhere they do nothing.
        low, high = number << width, (number + 1) << width
        return max(low, min(self.first, high)), min(high, self.end)

    @property
    def counts_name(self) -> str:
        """File with the number of occurrences of each id in these buckets."""
        return f"{WORK}/counts-{self.split}-{self.numbers.start:05}.npy"

    @property
    def dropped_name(self) -> str:
        """File with the list of documents dropped here."""
        return f"{WORK}/dropped-{self.split}-{self.numbers.start:05}.arrow"

    @property
    def names(self) -> list[str]:
        """The tokens files of these buckets."""
        return [tokens_name(self.split, number) for number in self.numbers]


def bucket_groups(smallest: Sequence[Cardinality], job: TokensJob) -> list[Buckets]:
    """The buckets of all splits, in groups; empty splits have none.

    smallest: the documents with the smallest digests, by split.
    """
    by_split = [
        list(_groups(Buckets(name, (split,)), smallest[split]))
        for split, name in enumerate(split_names(job.stage.corpus))
    ]
    named = chain.from_iterable(by_split[HELDOUT_SPLIT + 1 :])
    division = division_of(smallest, job)
    # Few documents: both splits are made from the same runs, whatever was drawn, and divided by
    # part or by digest.
    if division.rule == "draw":
        return [*by_split[TRAIN_SPLIT], *by_split[HELDOUT_SPLIT], *named]
    heldout, trained = (Buckets(name, (TRAIN_SPLIT, HELDOUT_SPLIT)) for name in (HELDOUT, TRAIN))
    drawn = smallest[TRAIN_SPLIT] + smallest[HELDOUT_SPLIT]
    if division.rule == "tails":
        tails, heads = replace(heldout, part="tail"), replace(trained, part="head")
        return [tails, *_groups(heads, drawn), *named]
    heldout, trained = (
        replace(heldout, end=division.border),
        replace(trained, first=division.border),
    )
    if division.rule == "smallest":
        return [heldout, *_groups(trained, drawn), *named]
    return [trained, *_groups(heldout, drawn), *named]


def unfinished_groups(groups: Sequence[Buckets], job: TokensJob) -> list[Buckets]:
    """The groups that no earlier attempt finished."""
    finished = finished_files(job.output, [group.counts_name for group in groups])
    return [group for group in groups if group.counts_name not in finished]


def division_of(smallest: Sequence[Cardinality], job: TokensJob) -> Division:
    """How `train` and `heldout` are divided; documents on the drop list do not count."""
    listed = read_drop_list(job.stage.cleaning.drop_list).digests_D2[:, 0]
    trained, drawn = smallest[TRAIN_SPLIT], smallest[HELDOUT_SPLIT]
    trained_D, drawn_D = (np.setdiff1d(found.keys_D, listed) for found in (trained, drawn))
    return divide(trained_D, drawn_D, job.stage.corpus)


def _groups(every: Buckets, documents: Cardinality) -> Iterator[Buckets]:
    """Divide a single bucket into many by the number of its `documents`; none if empty."""
    bits = documents.bucket_bits()
    if bits is None:
        return
    # at most `MOST_GROUPS` groups of equally many buckets
    size = max(1, (1 << bits) // MOST_GROUPS)
    for first in range(0, 1 << bits, size):
        yield replace(every, numbers=range(first, first + size), bits=bits)


@dataclass(frozen=True)
class BucketAccount:
    """Counts and dropped documents of a bucket that was written."""

    counts_V: Int64s
    """How often each id occurs."""
    dropped: pa.Table
    """The dropped documents, rows of `sorted_runs.ROWS_SCHEMA`."""


def write_bucket(
    rows: pa.Table, lost: pa.Table, *, group: Buckets, number: int, job: TokensJob
) -> BucketAccount:
    """Write one bucket of deduplicated `rows`; `lost` are the documents dropped from it."""
    rows = _part_of(rows, group.part, share=job.stage.corpus.heldout_share)
    # Counted even where the file exists already: an account is of all the group's buckets.
    ids = list_values(rows["token_ids"])
    counts_V = np.zeros(job.vocabulary_size, dtype=np.int64)
    for begin in range(0, len(ids), COUNTED_AT_ONCE):  # bincount makes a 64-bit copy
        part = ids[begin : begin + COUNTED_AT_ONCE]
        counts_V += np.bincount(part, minlength=job.vocabulary_size)
    name = tokens_name(group.split, number)
    # The file may have survived an attempt that was interrupted before the group's account.
    if finished_file(job.output, name) is None:
        weights = [source.weight for source in job.stage.corpus.sources]
        columns = {
            "document_digest": rows["document_digest"],
            "copies": pa.array(np.array(weights, dtype=np.uint8)[rows["source"].to_numpy()]),
            "token_ids": rows["token_ids"],
            "sentence_lengths": rows["sentence_lengths"],
            "source": rows["source"],
        }
        schema = tokens_schema(job.vocabulary_size, named=job.stage.keep_sources)
        table = pa.table({name: columns[name] for name in schema.names}).cast(schema)
        statistics = count_tokens(
            table,
            text_bytes=int(rows["text_bytes"].to_numpy().sum()),
            unknown_tokens=int(counts_V[job.unk_id]),
        )
        facts = {"split": group.split, "bucket": number, **asdict(statistics)}
        with temporary_directory(job.scratch) as scratch, naming_full_disk(scratch):
            path = os.path.join(scratch, name)
            with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
                writer.write_table(table)
            put_local_file(job.output, path, name=name, rows=len(table), statistics=facts)
    # A tail's documents are the same as the head's: they must not be listed as dropped twice.
    return BucketAccount(counts_V, lost if group.part != "tail" else lost.slice(0, 0))


def put_account(group: Buckets, accounts: Iterable[BucketAccount], *, job: TokensJob) -> str:
    """Put the merged accounts of a group into the artifact; returns the name of the counts file."""
    every = list(accounts)
    dropped = pa.concat_tables([account.dropped for account in every])
    counts_V = np.sum([account.counts_V for account in every], axis=0)
    # The counts come last, since they are what marks the group as finished.
    put_bytes(job.output, ipc_bytes(dropped), name=group.dropped_name, rows=len(dropped))
    put_bytes(job.output, counts_V.tobytes(), name=group.counts_name)
    return group.counts_name


def occurrences(groups: Sequence[Buckets], job: TokensJob) -> Int64s:
    """Occurrences of each id in the groups' buckets, counting each document once, (V,)."""
    total_V = np.zeros(job.vocabulary_size, dtype=np.int64)
    for entry in all_finished(job.output, [group.counts_name for group in groups]):
        content = filesystem.read_bytes(filesystem.join(job.output, entry.stored_name))
        total_V += np.frombuffer(content, dtype=np.int64)
    return total_V


def dropped_lists(groups: Sequence[Buckets], output: str, *, scratch: str) -> Iterator[str]:
    """Local paths of the groups' nonempty lists of dropped documents."""
    for entry in all_finished(output, [group.dropped_name for group in groups]):
        stored = filesystem.join(output, entry.stored_name)
        if entry.rows:
            with filesystem.brought_here(stored, scratch) as path:
                yield path


def _part_of(rows: pa.Table, part: Part, *, share: float) -> pa.Table:
    """Keep the `part` of each document; documents left without sentences are omitted.

    A tail gets a digest of its own.
    """
    if part == "whole":
        return rows
    parts = []
    for row in rows.to_pylist():
        lengths, ids = row["sentence_lengths"], row["token_ids"]
        # From the end: the tail is held out.
        head = len(lengths) - heldout_count(len(lengths), share)
        tokens = sum(lengths[:head])
        row |= {"sentence_lengths": lengths[:head], "token_ids": ids[:tokens]}
        if part == "tail":
            digest = tail_digest(row["document_digest"])
            row |= {"sentence_lengths": lengths[head:], "token_ids": ids[tokens:]}
            row["document_digest"] = digest
        # its share of the text, by tokens
        row["text_bytes"] = row["text_bytes"] * len(row["token_ids"]) // max(len(ids), 1)
        if row["sentence_lengths"]:
            parts.append(row)
    # The tails' new digests are in no order.
    parts.sort(key=lambda row: bytes(row["document_digest"]))
    return pa.Table.from_pylist(parts, schema=rows.schema)
