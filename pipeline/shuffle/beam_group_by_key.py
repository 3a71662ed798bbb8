"""The shuffle backend of many machines: documents go through the engine's own shuffle, once.

In:  input shards.
Out: the buckets' tokens files (buckets.py), written by the workers that gather them; a list of
     early dropped documents and their counts for every few shards.

One job: the shards are counted, a single step writes the plan (shuffle_plan.py), the shards are
read again and their documents keyed by bucket, and the worker that gathers a key writes that
bucket's file. No key holds more than a bucket, and nothing is stored in between. A bundle may be
executed twice, and values arrive in another order each time: a bucket's rows are sorted by their
content, and files are replaced whole.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from tempfile import TemporaryDirectory
from typing import cast

import numpy as np
import pyarrow as pa

from artifacts import filesystem
from artifacts.arrays import digest_bytes, list_lengths
from artifacts.errors import IntegrityError
from artifacts.tables import ipc_bytes
from pipeline.duplicates.drop_list import read_drop_list
from pipeline.readers.documents import InputShard, shards_from_json, shards_to_json
from pipeline.runner.graph import Collection, Step, Worker, gather, share_out
from pipeline.runner.work_queue import WorkQueue
from pipeline.shuffle.buckets import (
    BucketAccount,
    deduplicate,
    put_account,
    unfinished_groups,
    write_bucket,
)
from pipeline.shuffle.cardinality import EMPTY, MINIMUM_VALUES, Cardinality
from pipeline.shuffle.dropped import DocumentCounts
from pipeline.shuffle.packed_documents import pack, unpack
from pipeline.shuffle.shuffle_plan import (
    Identity,
    PlanFacts,
    ShufflePlan,
    carriers,
    sampled,
    smallest_of,
)
from pipeline.shuffle.sorted_runs import IDENTITY, KEY, sort_run
from pipeline.shuffle.tokenization import ShardTokenizer, TokensJob
from pipeline.text.filters import Reason
from pipeline.text.texts import assign_splits, read_texts, stronger_splits

SHARDS_PER_ACCOUNT = 32
"""Shards whose dropped documents are listed in one file."""

PLAN, SHARDS = "shuffle_plan.json", "shards.json"
"""Files of the stage's work folder: what the plan is made of; the shards, which may be more than an
engine takes in the description of a job."""

_LARGEST_KEY = (1 << 64) - 1

Sample = tuple[Identity, str]


@dataclass(frozen=True)
class BeamGroupByKey:
    """The engine's shuffle, and a folder of the workspace, local or a URL, for plan and lists."""

    job: TokensJob
    directory: str
    shards: int
    """Number of shards."""

    def unfinished(self, shards: Sequence[InputShard]) -> list[InputShard]:
        """All shards or none: documents are written nowhere before they reach their bucket."""
        if not filesystem.exists(filesystem.join(self.directory, PLAN)):
            return list(shards)
        accounts = map(self._account_path, range(self.accounts))
        left = unfinished_groups(self.plan().groups, self.job)
        return [] if not left and all(map(filesystem.exists, accounts)) else list(shards)

    def graph(self, shards: list[InputShard], queue: WorkQueue) -> Collection[str]:
        """Count, plan, send each document to its bucket's key, write each bucket where it is."""
        path = filesystem.join(self.directory, SHARDS)
        filesystem.write_bytes(path, shards_to_json(shards))
        done: frozenset[int] = frozenset()
        planned = Collection[Sequence[InputShard]](
            (Step("Planned", "map", partial(_listed, path=path)),)
        )
        if filesystem.exists(filesystem.join(self.directory, PLAN)):
            groups = self.plan().groups
            left = set(unfinished_groups(groups, self.job))
            done = frozenset(place for place, group in enumerate(groups) if group not in left)
        else:
            counted = share_out(planned, queue, label="Share")
            merge = math.isqrt(len(shards)) + 1
            found = counted.flat_map("Count", _Count(self, merge)).group("Merge")
            parts = found.map("MergeCounts", partial(_merge, keys=merge))
            write = partial(_write_plan, backend=self, path=path)
            planned = gather(parts, label="Plan").map("WritePlan", write)
        scattered = share_out(planned, queue, label="Shards").flat_map(
            "Tokenize", _Scatter(self, done, queue)
        )
        written = scattered.group("Shuffle").flat_map("WriteBuckets", partial(_write, backend=self))
        return written.group("Account").map("WriteAccounts", partial(_put_account, backend=self))

    def plan(self) -> ShufflePlan:
        """What the job decided."""
        return _read_plan(self)[1]

    def cardinality(self, split: int) -> Cardinality:
        """The smallest digests of all shards."""
        return _read_plan(self)[0].cardinality(split)

    @property
    def accounts(self) -> int:
        """Number of files of accounts."""
        return -(-self.shards // SHARDS_PER_ACCOUNT)

    def _account_path(self, number: int) -> str:
        return filesystem.join(self.directory, f"account-{number:05}.json")

    def list_path(self, number: int) -> str:
        """The list of documents that some shards have dropped."""
        return filesystem.join(self.directory, f"early-{number:05}.arrow")

    def put_counts(self, number: int, counts: DocumentCounts) -> None:
        """Write down what some shards held; their list must be there."""
        content = json.dumps(asdict(counts)).encode()
        filesystem.write_bytes(self._account_path(number), content)

    def counts(self) -> DocumentCounts:
        """What all shards held."""
        return sum(self._counts(), DocumentCounts())

    def _counts(self) -> Iterator[DocumentCounts]:
        for number in range(self.accounts):
            yield DocumentCounts(**json.loads(filesystem.read_bytes(self._account_path(number))))

    @contextmanager
    def dropped(self) -> Iterator[Iterator[str]]:
        """The lists of what shards have dropped, fetched one at a time."""

        def each_fetched(scratch: str) -> Iterator[str]:
            for number, counts in enumerate(self._counts()):
                if counts.dropped:
                    with filesystem.brought_here(self.list_path(number), scratch) as path:
                        yield path

        with TemporaryDirectory(dir=self.job.scratch or None) as scratch:
            yield each_fetched(scratch)


class _Count(Worker[InputShard, tuple[int, object]]):
    """A shard becomes its smallest digests, under a key below `keys`, and its sample.

    The sample is gathered by the first byte of the digest, under the keys from `keys` on.
    """

    def __init__(self, backend: BeamGroupByKey, keys: int) -> None:
        self._job = backend.job
        self._keys = keys

    def setup(self) -> None:
        """Build the tokenizer, once a worker."""
        self._tokenizer = ShardTokenizer(self._job)

    def __call__(self, shard: InputShard) -> Iterator[tuple[int, object]]:
        """Read the shard; only what may be among the smallest is tokenised."""
        corpus, cleaning = self._job.stage.corpus, self._job.stage.cleaning
        smallest = [EMPTY] * self._job.splits
        for number, block in enumerate(read_texts(shard, corpus=corpus, cleaning=cleaning)):
            digests_D2, bytes_D = block.digests_D2, np.diff(block.ends_D, prepend=0)
            splits_D = assign_splits(block, corpus=corpus, seed=self._job.stage.seed)
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


def _merge(gathered: tuple[int, Iterable[object]], *, keys: int) -> PlanFacts:
    """One key's part of what the plan is made of."""
    key, values = gathered
    if key < keys:
        return PlanFacts(smallest_of(cast(Iterable[Sequence[Cardinality]], values)), {})
    return PlanFacts((), carriers(cast(Iterable[Sample], values)))


def _write_plan(
    parts: Sequence[PlanFacts], *, backend: BeamGroupByKey, path: str
) -> Sequence[InputShard]:
    """Write what the plan is made of; the shards come out."""
    smallest = smallest_of(part.smallest for part in parts if part.smallest)
    frequent = {identity: by for part in parts for identity, by in part.carriers.items()}
    facts = PlanFacts(smallest, dict(sorted(frequent.items())))
    filesystem.write_bytes(filesystem.join(backend.directory, PLAN), facts.to_json())
    return _listed(None, path=path)


def _listed(_: object, *, path: str) -> Sequence[InputShard]:
    return shards_from_json(filesystem.read_bytes(path))


@lru_cache(maxsize=1)
def _read_plan(backend: BeamGroupByKey) -> tuple[PlanFacts, ShufflePlan]:
    path = filesystem.join(backend.directory, PLAN)
    facts = PlanFacts.from_json(filesystem.read_bytes(path))
    return facts, facts.plan(backend.job)


class _Scatter(Worker[InputShard, tuple[int, object]]):
    """A shard becomes pairs of a bucket's number and documents as bytes.

    The numbers after the buckets' carry its counts and what it has dropped. The first shard sends
    an empty value to every bucket, so that buckets without documents get their files, too.
    """

    def __init__(self, backend: BeamGroupByKey, done: frozenset[int], queue: WorkQueue) -> None:
        self._backend = backend
        self._done = done
        self._queue = queue

    def setup(self) -> None:
        """Build the tokenizer, once a worker."""
        self._tokenizer = ShardTokenizer(self._backend.job)

    def __call__(self, shard: InputShard) -> Iterator[tuple[int, object]]:
        """The shard's documents by bucket."""
        plan = self._backend.plan()
        place = _places(filesystem.join(self._backend.directory, SHARDS))[shard.name]
        account = place // SHARDS_PER_ACCOUNT
        if place == 0:
            yield from ((key, b"") for key in range(len(plan)) if self._is_wanted(plan, key))
        sent: set[Identity] = set()  # the frequent texts that this shard has sent
        documents = 0
        for table in self._tokenizer.tables(shard):
            run = sort_run(table, splits=self._backend.job.splits)
            documents += run.counts.documents
            yield len(plan) + account, (run.counts, ipc_bytes(run.dropped))
            splits_D = np.repeat(np.arange(len(run.by_split)), [*map(len, run.by_split)])
            rows = pa.concat_tables(run.by_split)
            rows = rows.append_column("split", pa.array(splits_D.astype(np.uint8)))
            # the tokens of a frequent text are sent by one shard, and once
            sends_D = np.ones(len(rows), dtype=np.bool_)
            digests = digest_bytes(rows["document_digest"]) if plan.carriers else ()
            for row, digest in enumerate(digests):
                identity = int(splits_D[row]), digest.tobytes()
                if carrier := plan.carriers.get(identity):
                    sends_D[row] = carrier == shard.name and identity not in sent
                    sent.add(identity)
            found = plan.deliveries(rows[KEY].to_numpy(), splits_D)
            ends = [*np.flatnonzero(np.diff(found.keys_N)) + 1, len(found.keys_N)]
            full_N = found.with_tokens_N & sends_D[found.rows_N]
            stretches = pack(rows.take(pa.array(found.rows_N)), full_N, ends)
            for end, stretch in zip(ends if len(found.keys_N) else (), stretches, strict=False):
                key = int(found.keys_N[end - 1])
                if self._is_wanted(plan, key):
                    yield key, stretch
        self._queue.report(MB=shard.megabytes, documents=documents)

    def _is_wanted(self, plan: ShufflePlan, key: int) -> bool:
        return plan.bucket(key)[0] not in self._done


@lru_cache(maxsize=1)
def _places(path: str) -> dict[str, int]:
    return {shard.name: place for place, shard in enumerate(_listed(None, path=path))}


def _write(
    gathered: tuple[int, Iterable[object]], *, backend: BeamGroupByKey
) -> Iterator[tuple[int, BucketAccount]]:
    """Write a bucket, or what some shards have dropped; a bucket's account comes out."""
    key, values = gathered
    plan, job = backend.plan(), backend.job
    if key >= len(plan):
        number, early = key - len(plan), cast(Iterable[tuple[DocumentCounts, bytes]], values)
        counts, lists = zip(*early, strict=True)
        rows = pa.concat_tables([pa.ipc.open_file(content).read_all() for content in lists])
        filesystem.write_bytes(backend.list_path(number), ipc_bytes(rows))
        backend.put_counts(number, sum(counts, DocumentCounts()))
        return
    place, bucket = plan.bucket(key)
    stretches = (blob for blob in cast(Iterable[bytes], values) if blob)
    rows = unpack(stretches, vocabulary_size=job.vocabulary_size)
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
    """The kept rows, those of frequent texts with the tokens that another row has brought."""
    without = np.flatnonzero(list_lengths(kept["token_ids"]) == 0)
    if not len(without):
        return kept
    full = own.filter(pa.array(list_lengths(own["token_ids"]) > 0))
    digests = digest_bytes(full["document_digest"])
    brought = {digest.tobytes(): row for row, digest in enumerate(digests)}
    wanted = [digest.tobytes() for digest in digest_bytes(kept["document_digest"])[without]]
    missing = [digest.hex() for digest in wanted if digest not in brought]
    if missing:
        raise IntegrityError(
            f"{of}: the tokens of document {missing[0]} have not arrived; "
            "the engine's shuffle has lost documents, use another engine"
        )
    rows = np.arange(len(kept))
    rows[without] = len(kept) + np.array([brought[digest] for digest in wanted])
    both = pa.concat_tables((kept, full))
    for name in ("token_ids", "sentence_lengths"):
        column = both[name].take(pa.array(rows))
        kept = kept.set_column(kept.column_names.index(name), name, column)
    return kept.combine_chunks()


def _put_account(gathered: tuple[int, Iterable[BucketAccount]], *, backend: BeamGroupByKey) -> str:
    place, accounts = gathered
    return put_account(backend.plan().groups[place], accounts, job=backend.job)
