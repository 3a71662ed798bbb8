"""The shuffle backend of several machines: one pass through the engine's own shuffle.

In:  input shards.
Out: the buckets' tokens files (buckets.py), written by the workers that gather them; for every few
     shards, a list of the documents dropped early, and counts.

It is a single job: the shards are counted, one step writes the plan (shuffle_plan.py), the shards
are read again and their documents keyed by bucket, and the worker that gathers a key writes that
bucket's file. No key holds more than a bucket, and nothing is stored in between. The engine may
execute a bundle twice and deliver values in any order; so rows are sorted by content within a
bucket, and files are replaced atomically.

A shard of 100 MB has barely one document for each bucket of a large corpus, and an Arrow stream of
one row has 1.5 KB of schema and padding. So documents travel as bytes: a row takes 43 plus its
sentence lengths and ids. A row may be sent without tokens, if it only serves for comparison or
another row brings the tokens of the same document.
"""

import json
import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import pairwise
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import pyarrow as pa

from artifacts import filesystem
from artifacts.arrays import (
    Mask,
    digest_array,
    digest_bytes,
    digest_halves,
    list_array,
    list_lengths,
    list_values,
    offsets,
)
from artifacts.errors import IntegrityError
from artifacts.tables import TOKEN_DIGEST_BYTES, id_type, ipc_bytes
from pipeline.duplicates.drop_list import read_drop_list
from pipeline.readers.input_shards import InputShard, shards_from_json, shards_to_json
from pipeline.runner.graph import Collection, Step, Worker, WorkQueue, gather, share_out
from pipeline.shuffle.buckets import (
    EMPTY,
    MINIMUM_VALUES,
    BucketAccount,
    Cardinality,
    TokensJob,
    put_account,
    unfinished_groups,
    write_bucket,
)
from pipeline.shuffle.dropped import DocumentCounts
from pipeline.shuffle.shuffle_plan import (
    Identity,
    ShufflePlan,
    carriers,
    sampled,
    smallest_of,
)
from pipeline.shuffle.sorted_runs import IDENTITY, KEY, ShardTokenizer, deduplicate, sort_run
from pipeline.text.filters import Reason
from pipeline.text.splits import assign_splits, stronger_splits
from pipeline.text.texts import read_texts

SHARDS_PER_ACCOUNT = 32
"""Shards that share one list of dropped documents."""

PLAN, SHARDS = "shuffle_plan.json", "shards.json"
"""Files in the stage's work folder: the facts that determine the plan; the shards, of which there
may be too many for an engine's job description."""

_LARGEST_KEY = (1 << 64) - 1

_COUNT = struct.Struct("<I")
_ROW = np.dtype(
    [
        ("document_digest", f"V{TOKEN_DIGEST_BYTES}"),
        ("source", "<u2"),
        ("file", "<u4"),
        ("position", "<i8"),
        ("text_bytes", "<u4"),
        ("split", "u1"),
        ("sentences", "<u4"),
        ("tokens", "<u4"),
    ]
)
ROW_BYTES = _ROW.itemsize
"""Bytes of a row without its tokens."""

_PLAIN = ("source", "file", "position", "text_bytes", "split")


Sample = tuple[Identity, str]

PlanPart = tuple[tuple[Cardinality, ...], dict[Identity, str]]
"""The smallest documents by split, or carriers, from some of the shards."""


@dataclass(frozen=True)
class BeamGroupByKey:
    """The engine's shuffle, with a folder of the workspace (path or URL) for the plan and lists."""

    job: TokensJob
    directory: str
    shards: int
    """Number of shards."""

    def unfinished(self, shards: Sequence[InputShard]) -> list[InputShard]:
        """All shards or none: documents are not stored before they reach their bucket."""
        if not filesystem.exists(filesystem.join(self.directory, PLAN)):
            return list(shards)
        accounts = map(self.account_path, range(self.accounts))
        left = unfinished_groups(self.plan().groups, self.job)
        return [] if not left and all(map(filesystem.exists, accounts)) else list(shards)

    def graph(self, shards: list[InputShard], queue: WorkQueue) -> Collection[str]:
        """Count, plan, send each document to its bucket's key, write each bucket there."""
        path = filesystem.join(self.directory, SHARDS)
        filesystem.write_bytes(path, shards_to_json(shards))
        done: frozenset[int] = frozenset()
        planned = Collection[Sequence[InputShard]](
            (Step("Planned", "map", partial(read_shards, path=path)),)
        )
        if filesystem.exists(filesystem.join(self.directory, PLAN)):
            groups = self.plan().groups
            left = set(unfinished_groups(groups, self.job))
            done = frozenset(place for place, group in enumerate(groups) if group not in left)
        else:
            counted = share_out(planned, queue, label="Share")
            merge = math.isqrt(len(shards)) + 1
            found = counted.flat_map("Count", _Count(self, merge)).group("Merge")
            parts = found.map("MergeCounts", partial(merge_counts, keys=merge))
            write = partial(write_plan, backend=self, path=path)
            planned = gather(parts, label="Plan").map("WritePlan", write)
        scattered = share_out(planned, queue, label="Shards").flat_map(
            "Tokenize", _Scatter(self, done, queue)
        )
        written = scattered.group("Shuffle").flat_map(
            "WriteBuckets", partial(write_buckets, backend=self)
        )
        return written.group("Account").map("WriteAccounts", partial(write_account, backend=self))

    def plan(self) -> ShufflePlan:
        """The plan that the job wrote."""
        return _read_plan(self)

    def cardinality(self, split: int) -> Cardinality:
        """The estimate for a split, from all shards."""
        return self.plan().cardinality(split)

    @property
    def accounts(self) -> int:
        """Number of account files."""
        return -(-self.shards // SHARDS_PER_ACCOUNT)

    def account_path(self, number: int) -> str:
        """Path of the counts of some shards, written after their list."""
        return filesystem.join(self.directory, f"account-{number:05}.json")

    def list_path(self, number: int) -> str:
        """Path of the list of documents dropped by the shards of one account."""
        return filesystem.join(self.directory, f"early-{number:05}.arrow")

    def counts(self) -> DocumentCounts:
        """Counts over all shards."""
        return sum(self._counts(), DocumentCounts())

    def _counts(self) -> Iterator[DocumentCounts]:
        for number in range(self.accounts):
            yield DocumentCounts(**json.loads(filesystem.read_bytes(self.account_path(number))))

    @contextmanager
    def dropped(self) -> Iterator[Iterator[str]]:
        """The lists of documents dropped by shards, fetched one at a time."""

        def each_fetched(scratch: str) -> Iterator[str]:
            for number, counts in enumerate(self._counts()):
                if counts.dropped:
                    with filesystem.brought_here(self.list_path(number), scratch) as path:
                        yield path

        with TemporaryDirectory(dir=self.job.scratch or None) as scratch:
            yield each_fetched(scratch)


class _Count(Worker[InputShard, tuple[int, object]]):
    """Emit a shard's smallest digests, under a key below `keys`, and its sample.

    Samples are keyed by the first byte of their digest, starting at `keys`.
    """

    def __init__(self, backend: BeamGroupByKey, keys: int) -> None:
        self._job = backend.job
        self._keys = keys

    def setup(self) -> None:
        """Build the tokenizer, once per worker."""
        self._tokenizer = ShardTokenizer(self._job)

    def __call__(self, shard: InputShard) -> Iterator[tuple[int, object]]:
        """Read the shard; tokenise only documents that may be among the smallest."""
        corpus, cleaning = self._job.stage.corpus, self._job.stage.cleaning
        smallest = [EMPTY] * self._job.splits
        for number, block in enumerate(read_texts(shard, corpus=corpus, cleaning=cleaning)):
            digests_D2, bytes_D = block.digests_D2, np.diff(block.ends_D, prepend=0)
            splits_D = assign_splits(
                block.digests_D2, source=block.source, corpus=corpus, seed=self._job.stage.seed
            )
            kept_D = block.reasons_D == Reason.KEPT
            for row in np.flatnonzero(kept_D & sampled(digests_D2, bytes_D, shard.name, number)):
                digest = block.digests[row].tobytes()
                yield self._keys + digest[0], ((int(splits_D[row]), digest), shard.name)
            # a document with a larger key is not among the smallest of its split
            last = np.array(
                [
                    found.keys_D[-1] if len(found.keys_D) == MINIMUM_VALUES else _LARGEST_KEY
                    for found in smallest
                ],
                dtype=np.uint64,
            )
            documents = self._tokenizer.documents(
                block.select(kept_D & (digests_D2[:, 0] <= last[splits_D]))
            )
            kept = documents.filter(pa.array(documents["reason"].to_numpy() == Reason.KEPT))
            for split in range(self._job.splits):
                rows = kept.filter(pa.array(kept["split"].to_numpy() == split))
                sizes_D = rows["text_bytes"].to_numpy().astype(np.int64)
                smallest[split] += Cardinality(rows[KEY].to_numpy(), sizes_D)
        yield int(shard.name[:8], 16) % self._keys, tuple(smallest)


def merge_counts(gathered: tuple[int, Iterable[object]], *, keys: int) -> PlanPart:
    """Merge the counts or samples gathered under one key."""
    key, values = gathered
    if key < keys:
        return smallest_of(cast(Iterable[Sequence[Cardinality]], values)), {}
    return (), carriers(cast(Iterable[Sample], values))


def write_plan(
    parts: Sequence[PlanPart], *, backend: BeamGroupByKey, path: str
) -> Sequence[InputShard]:
    """Write the facts that determine the plan; returns the shards."""
    smallest = smallest_of(found for found, _ in parts if found)
    frequent = {identity: by for _, found in parts for identity, by in found.items()}
    plan = ShufflePlan(backend.job, smallest, dict(sorted(frequent.items())))
    filesystem.write_bytes(filesystem.join(backend.directory, PLAN), plan.to_json())
    return read_shards(None, path=path)


def read_shards(_: object, *, path: str) -> Sequence[InputShard]:
    """All shards, from the file `SHARDS`."""
    return shards_from_json(filesystem.read_bytes(path))


@lru_cache(maxsize=1)
def _read_plan(backend: BeamGroupByKey) -> ShufflePlan:
    path = filesystem.join(backend.directory, PLAN)
    return ShufflePlan.from_json(filesystem.read_bytes(path), backend.job)


class _Scatter(Worker[InputShard, tuple[int, object]]):
    """Emit a shard's documents as pairs of bucket number and bytes.

    The numbers after the last bucket carry its counts and dropped documents. The first shard sends
    an empty value to every bucket, so that empty buckets get their files, too.
    """

    def __init__(self, backend: BeamGroupByKey, done: frozenset[int], queue: WorkQueue) -> None:
        self._backend = backend
        self._done = done
        self._queue = queue

    def setup(self) -> None:
        """Build the tokenizer and number the shards, once per worker."""
        self._tokenizer = ShardTokenizer(self._backend.job)
        shards = read_shards(None, path=filesystem.join(self._backend.directory, SHARDS))
        self._places = {shard.name: place for place, shard in enumerate(shards)}

    def __call__(self, shard: InputShard) -> Iterator[tuple[int, object]]:
        """Send the documents of one shard."""
        plan = self._backend.plan()
        place = self._places[shard.name]
        account = place // SHARDS_PER_ACCOUNT
        if place == 0:
            yield from ((key, b"") for key in range(len(plan)) if self._is_wanted(plan, key))
        sent: set[Identity] = set()  # frequent texts that this shard has already sent
        documents = 0
        for table in self._tokenizer.tables(shard):
            run = sort_run(table, splits=self._backend.job.splits)
            documents += run.counts.documents
            yield len(plan) + account, (run.counts, ipc_bytes(run.dropped))
            splits_D = np.repeat(np.arange(len(run.by_split)), [*map(len, run.by_split)])
            rows = pa.concat_tables(run.by_split)
            rows = rows.append_column("split", pa.array(splits_D.astype(np.uint8)))
            # the tokens of a frequent text are sent once, by one shard
            sends_D = np.ones(len(rows), dtype=np.bool_)
            digests = digest_bytes(rows["document_digest"]) if plan.carriers else ()
            for row, digest in enumerate(digests):
                identity = int(splits_D[row]), digest.tobytes()
                if carrier := plan.carriers.get(identity):
                    sends_D[row] = carrier == shard.name and identity not in sent
                    sent.add(identity)
            keys_N, rows_N, own_N = plan.deliveries(rows[KEY].to_numpy(), splits_D)
            ends = [*np.flatnonzero(np.diff(keys_N)) + 1, len(keys_N)]
            packed = pack(rows.take(pa.array(rows_N)), own_N & sends_D[rows_N], ends)
            for end, blob in zip(ends if len(keys_N) else (), packed, strict=False):
                key = int(keys_N[end - 1])
                if self._is_wanted(plan, key):
                    yield key, blob
        self._queue.report(MB=shard.megabytes, documents=documents)

    def _is_wanted(self, plan: ShufflePlan, key: int) -> bool:
        return plan.bucket(key)[0] not in self._done


def write_buckets(
    gathered: tuple[int, Iterable[object]], *, backend: BeamGroupByKey
) -> Iterator[tuple[int, BucketAccount]]:
    """Write a bucket and yield its account, or write the documents dropped by some shards."""
    key, values = gathered
    plan, job = backend.plan(), backend.job
    if key >= len(plan):
        number, early = key - len(plan), cast(Iterable[tuple[DocumentCounts, bytes]], values)
        counts, lists = zip(*early, strict=True)
        rows = pa.concat_tables([pa.ipc.open_file(content).read_all() for content in lists])
        filesystem.write_bytes(backend.list_path(number), ipc_bytes(rows))
        total = json.dumps(asdict(sum(counts, DocumentCounts()))).encode()
        filesystem.write_bytes(backend.account_path(number), total)
        return
    place, bucket = plan.bucket(key)
    packed = (blob for blob in cast(Iterable[bytes], values) if blob)
    rows = unpack(packed, vocabulary_size=job.vocabulary_size)
    splits_D = rows["split"].to_numpy()
    own = rows.filter(pa.array(np.isin(splits_D, bucket.splits)))
    stronger = [
        rows.filter(pa.array(splits_D == split)).select(IDENTITY)
        for split in stronger_splits(bucket.splits[0], count=job.splits)
    ]
    drop_list = read_drop_list(job.stage.cleaning.drop_list)
    kept, lost = deduplicate(own, stronger, drop_list=drop_list)
    kept = _with_tokens(kept, own, of=f"bucket {bucket.number} of {plan.groups[place].split}")
    account = write_bucket(kept, lost, group=plan.groups[place], bucket=bucket, job=job)
    yield place, account


def _with_tokens(kept: pa.Table, own: pa.Table, *, of: str) -> pa.Table:
    """The kept rows, with the tokens of frequent texts filled in from the row that carries them."""
    without = np.flatnonzero(list_lengths(kept["token_ids"]) == 0)
    if not len(without):
        return kept
    full = own.filter(pa.array(list_lengths(own["token_ids"]) > 0))
    digests = digest_bytes(full["document_digest"])
    carried = {digest.tobytes(): row for row, digest in enumerate(digests)}
    wanted = [digest.tobytes() for digest in digest_bytes(kept["document_digest"])[without]]
    missing = [digest.hex() for digest in wanted if digest not in carried]
    if missing:
        raise IntegrityError(
            f"{of}: the tokens of document {missing[0]} did not arrive; "
            "the engine's shuffle has lost documents, use another engine"
        )
    rows = np.arange(len(kept))
    rows[without] = len(kept) + np.array([carried[digest] for digest in wanted])
    both = pa.concat_tables((kept, full))
    for name in ("token_ids", "sentence_lengths"):
        column = both[name].take(pa.array(rows))
        kept = kept.set_column(kept.column_names.index(name), name, column)
    return kept.combine_chunks()


def write_account(gathered: tuple[int, Iterable[BucketAccount]], *, backend: BeamGroupByKey) -> str:
    """Put the accounts of one group of buckets into the artifact."""
    place, accounts = gathered
    return put_account(backend.plan().groups[place], accounts, job=backend.job)


def pack(rows: pa.Table, with_tokens_N: Mask, ends: Sequence[int]) -> Iterator[bytes]:
    """Consecutive ranges of rows, which end at `ends`, as bytes.

    rows: columns of a sorted run, and `split`. Only the rows in `with_tokens_N` keep their tokens.
    """
    heads_N = np.zeros(len(rows), dtype=_ROW)
    digests_N16 = np.ascontiguousarray(digest_bytes(rows["document_digest"]))
    heads_N["document_digest"] = digests_N16.view(f"V{TOKEN_DIGEST_BYTES}").ravel()
    for name in _PLAIN:
        heads_N[name] = rows[name].to_numpy()
    full = rows.filter(pa.array(with_tokens_N))
    heads_N["sentences"][with_tokens_N] = list_lengths(full["sentence_lengths"])
    heads_N["tokens"][with_tokens_N] = list_lengths(full["token_ids"])
    lengths = list_values(full["sentence_lengths"])
    ids = list_values(full["token_ids"])
    sentences_N1 = offsets(heads_N["sentences"].astype(np.int64))
    tokens_N1 = offsets(heads_N["tokens"].astype(np.int64))
    for start, stop in pairwise((0, *ends)):
        yield b"".join(
            (
                _COUNT.pack(stop - start),
                heads_N[start:stop].tobytes(),
                lengths[sentences_N1[start] : sentences_N1[stop]].tobytes(),
                ids[tokens_N1[start] : tokens_N1[stop]].tobytes(),
            )
        )


def unpack(ranges: Iterable[bytes], *, vocabulary_size: int) -> pa.Table:
    """The rows of packed ranges: the columns of a sorted run, and `split`."""
    form = np.dtype(id_type(vocabulary_size).to_pandas_dtype())
    heads, lengths, ids = [np.zeros(0, dtype=_ROW)], [np.zeros(0, np.uint32)], [np.zeros(0, form)]
    for packed in ranges:
        (count,) = _COUNT.unpack_from(packed)
        heads.append(np.frombuffer(packed, _ROW, count, _COUNT.size))
        place = _COUNT.size + count * _ROW.itemsize
        sentences, tokens = (int(heads[-1][name].sum()) for name in ("sentences", "tokens"))
        lengths.append(np.frombuffer(packed, np.uint32, sentences, place))
        place += sentences * lengths[0].itemsize
        ids.append(np.frombuffer(packed, form, tokens, place))
    rows_N = np.concatenate(heads)
    digests = rows_N["document_digest"].tobytes()
    digests_N16 = np.frombuffer(digests, dtype=np.uint8).reshape(-1, TOKEN_DIGEST_BYTES)
    return pa.table(
        {
            KEY: digest_halves(digests_N16)[:, 0],
            "document_digest": digest_array(digests_N16),
            **{name: np.ascontiguousarray(rows_N[name]) for name in _PLAIN},
            "token_ids": list_array(
                np.concatenate(ids), np.cumsum(rows_N["tokens"], dtype=np.int64)
            ),
            "sentence_lengths": list_array(
                np.concatenate(lengths), np.cumsum(rows_N["sentences"], dtype=np.int64)
            ),
        }
    )
