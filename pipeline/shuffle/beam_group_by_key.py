"""The shuffle backend of several machines: one pass through the engine's own shuffle.

In:  input shards.
Out: the buckets' tokens files (buckets.py), written by the workers that gather them; for every few
     shards, a list of the documents dropped early, and counts.

It is a single job: the shards are counted, one step writes the plan, the shards are read again and
their documents keyed by bucket, and the worker that gathers a key writes that bucket's file. No key
holds more than a bucket, and nothing is stored in between. The engine may execute a bundle twice
and deliver values in any order; so rows are sorted by content within a bucket, and files are
replaced atomically.

The number of buckets depends on the texts alone (buckets.py), so all texts are read once before the
shuffle. The vocabulary stage's pass cannot serve: the vocabulary may be given, and only the
vocabulary determines which documents have no tokens. Each document is sent to one key, that of its
split and bucket. Identities of documents in splits that take precedence (`stronger_splits`,
pipeline/text/splits.py) are also sent to the buckets that must not contain them. All documents of a
small split are known by then, and only possible duplicates are sent to it.

A text that occurs in very many shards would be gathered that often in one bucket. Each shard drops
its own duplicates; a text that is long enough, or in enough shards, to fill a bucket is found by a
sample weighted by size, and only one shard known to contain it, its carrier, sends its tokens.

A shard of 100 MB has barely one document for each bucket of a large corpus, and an Arrow stream of
one row has 1.5 KB of schema and padding. So documents travel as bytes: a row takes 43 plus its
sentence lengths and ids. A row may be sent without tokens, if it only serves for comparison or
another row brings the tokens of the same document.
"""

import json
import math
import struct
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache, partial
from itertools import groupby, pairwise
from typing import cast

import numpy as np
import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.arrays import (
    Int64s,
    Mask,
    UInt64s,
    digest_array,
    digest_bytes,
    digest_halves,
    list_array,
    list_lengths,
    list_values,
    offsets_of,
)
from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.rng import document_streams, high_half, stream_seed
from cloze.artifacts.tables import TOKEN_DIGEST_BYTES, id_type, ipc_bytes
from cloze.pipeline.readers.input_shards import InputShard, shards_from_json, shards_to_json
from cloze.pipeline.runner.graph import Collection, Step, WorkQueue, gather, share_out
from cloze.pipeline.shuffle.buckets import (
    EMPTY,
    MINIMUM_VALUES,
    BucketAccount,
    Buckets,
    Cardinality,
    TokensJob,
    bucket_groups,
    put_account,
    smallest_of,
    unfinished_groups,
    write_bucket,
)
from cloze.pipeline.shuffle.sorted_runs import (
    DocumentCounts,
    deduplicate,
    sort_run,
)
from cloze.pipeline.text.filters import Reason
from cloze.pipeline.text.splits import assign_splits, stronger_splits
from cloze.pipeline.text.texts import read_texts
from cloze.pipeline.tokenizer.tokenized_documents import IDENTITY, KEY, ShardTokenizer

SHARDS_PER_ACCOUNT = 32
"""Shards that share one list of dropped documents."""

PLAN, SHARDS = "shuffle_plan.json", "shards.json"
"""Files in the stage's work folder: the facts that determine the plan; the shards, of which there
may be too many for an engine's job description."""

SAMPLED_BYTES = 4 << 20
"""Bytes of text per sampled document. A text whose copies add up to 32 MB is found with 99.7 %
probability, one that adds up to a bucket's 64 MB almost certainly."""

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

Identity = tuple[int, bytes]
"""A split and a digest."""

Sample = tuple[Identity, str]
"""A document and its shard."""

PlanPart = tuple[tuple[Cardinality, ...], dict[Identity, str]]
"""The smallest documents by split, or carriers, from some of the shards."""


@dataclass(frozen=True)
class ShufflePlan:
    """The facts that determine a plan, small for any corpus, and what follows from them."""

    job: TokensJob
    smallest: tuple[Cardinality, ...]
    """The documents with the smallest digests, by split."""
    carriers: Mapping[Identity, str]
    """The shard that sends the tokens of a frequent text."""

    @cached_property
    def groups(self) -> list[Buckets]:
        """The groups of buckets, the same wherever they are computed."""
        return bucket_groups(self.smallest, self.job)

    @cached_property
    def buckets(self) -> list[tuple[int, int]]:
        """The group and the number of every bucket; a bucket's index here is its key."""
        return [
            (place, number) for place, group in enumerate(self.groups) for number in group.numbers
        ]

    def deliveries(self, keys_D: UInt64s, splits_D: Int64s) -> tuple[Int64s, Int64s, Mask]:
        """The destinations of documents, by the first halves of their digests and their splits.

        For each of N deliveries, sorted by bucket: the number of the bucket, the document's row,
        and whether it belongs to the bucket and is not only for comparison. A row may be sent to
        several buckets.
        """
        # The buckets of a split are adjacent, and a document's number among them is the first
        # `bits` bits of its digest. So a bucket's key is the number of buckets before its split's
        # first one, `base`, plus these bits: neither a search nor a table of ranges is needed.
        none = np.zeros(0, dtype=np.int64)
        keys, rows, own, base = [none], [none], [none > 0], 0
        for _, family in groupby(self.groups, key=lambda group: group.split):
            groups = list(family)
            # all groups of a split are alike but for `numbers`
            every = groups[0]
            stronger = stronger_splits(every.sources[0], count=self.job.splits)
            # A document is sent here if its digest is in the range of these buckets, and its split
            # either feeds them or takes precedence: of what arrives from a stronger split, the
            # bucket removes its own copies. (An end of 2**64 excludes nothing, and does not fit
            # into 64 bits.)
            inside_D = keys_D >= np.uint64(every.first)
            if not every.end >> 64:
                inside_D &= keys_D < np.uint64(every.end)
            wanted_D = inside_D & np.isin(splits_D, [*every.sources, *stronger])
            known = [self.smallest[split].keys_D for split in every.sources]
            # Fewer than k smallest keys are all keys of the split. Then only documents with one of
            # them can be its own or duplicates, and a small held-out split does not draw the
            # digests of a whole training corpus through the shuffle.
            if max(map(len, known)) < MINIMUM_VALUES:
                wanted_D &= np.isin(keys_D, np.concatenate(known))
            found = np.flatnonzero(wanted_D)
            shift = np.uint64(64 - every.bits)
            numbers = (keys_D[found] >> shift).astype(np.int64) if every.bits else 0 * found
            keys.append(base + numbers)
            rows.append(found)
            own.append(np.isin(splits_D[found], every.sources))
            base += sum(len(group.numbers) for group in groups)
        # stable, so that a bundle which is executed twice sends the same bytes
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
        filesystem.write_bytes(filesystem.join(self.directory, SHARDS), shards_to_json(shards))
        done: frozenset[int] = frozenset()
        planned = Collection[Sequence[InputShard]]((Step("Planned", "map", self.read_shards),))
        setup = partial(ShardTokenizer, self.job.stage, self.job.vocabulary)
        if filesystem.exists(filesystem.join(self.directory, PLAN)):
            # After an interrupted attempt the plan is there already, and finished groups get
            # nothing.
            groups = self.plan().groups
            left = set(unfinished_groups(groups, self.job))
            done = frozenset(place for place, group in enumerate(groups) if group not in left)
        else:
            counted = share_out(planned, queue, label="Share")
            # About √n keys, each merging the counts of √n shards: neither one worker for all nor
            # one per shard.
            merge = math.isqrt(len(shards)) + 1
            count = partial(count_shard, backend=self, keys=merge)
            found = counted.flat_map("Count", count, setup=setup).group("Merge")
            merged = partial(merge_counts, keys=merge, splits=self.job.splits)
            parts = gather(found.map("MergeCounts", merged), label="Plan")
            planned = parts.map("WritePlan", partial(write_plan, backend=self))
        send = partial(send_shard, backend=self, done=done, queue=queue)
        sent = share_out(planned, queue, label="Shards").flat_map("Tokenize", send, setup=setup)
        write = partial(write_buckets, backend=self)
        written = sent.group("Shuffle").flat_map("WriteBuckets", write)
        return written.group("Account").map("WriteAccounts", partial(write_account, backend=self))

    def plan(self) -> ShufflePlan:
        """The plan that the job wrote."""
        return _read_plan(self)

    def smallest(self) -> tuple[Cardinality, ...]:
        """The documents with the smallest digests, by split."""
        return self.plan().smallest

    def read_shards(self, _: object = None) -> list[InputShard]:
        """All shards, from the file `SHARDS`."""
        return shards_from_json(filesystem.read_bytes(filesystem.join(self.directory, SHARDS)))

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

    def dropped(self, scratch: str) -> Iterator[str]:
        """The lists of documents dropped by shards, fetched to `scratch` one at a time."""
        for number, counts in enumerate(self._counts()):
            if counts.dropped:
                with filesystem.brought_here(self.list_path(number), scratch) as path:
                    yield path


def count_shard(
    tokenizer: ShardTokenizer, shard: InputShard, *, backend: BeamGroupByKey, keys: int
) -> Iterator[tuple[int, object]]:
    """A shard's smallest digests, under a key below `keys`, and its sample.

    Samples are keyed by the first byte of their digest, starting at `keys`. Only documents that may
    be among the smallest are tokenised.
    """
    stage, splits = backend.job.stage, backend.job.splits
    smallest = [EMPTY] * splits
    blocks = read_texts(shard, corpus=stage.corpus, cleaning=stage.cleaning)
    for number, block in enumerate(blocks):
        digests_D2, bytes_D = block.digests_D2, np.diff(block.ends_D, prepend=0)
        splits_D = assign_splits(
            digests_D2, source=block.source, corpus=stage.corpus, seed=stage.seed
        )
        kept_D = block.reasons_D == Reason.KEPT
        for row in np.flatnonzero(kept_D & sampled(digests_D2, bytes_D, shard.name, number)):
            digest = block.digests[row].tobytes()
            yield keys + digest[0], ((int(splits_D[row]), digest), shard.name)
        # The smallest so far bound what can still become one of them, and the bound falls with
        # every block: all but the first blocks have next to nothing to tokenise, although only
        # tokenising tells whether a document has tokens and so belongs to a bucket at all.
        # a document with a larger key is not among the smallest of its split
        last = np.array(
            [
                found.keys_D[-1] if len(found.keys_D) == MINIMUM_VALUES else _LARGEST_KEY
                for found in smallest
            ],
            dtype=np.uint64,
        )
        possible_D = kept_D & (digests_D2[:, 0] <= last[splits_D])
        documents = tokenizer.documents(block.select(possible_D))
        kept = documents.filter(pa.array(documents["reason"].to_numpy() == Reason.KEPT))
        for split in range(splits):
            rows = kept.filter(pa.array(kept["split"].to_numpy() == split))
            smallest[split] += Cardinality.of(rows)
    yield int(shard.name[:8], 16) % keys, tuple(smallest)


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


def merge_counts(gathered: tuple[int, Iterable[object]], *, keys: int, splits: int) -> PlanPart:
    """Merge the counts or samples gathered under one key."""
    key, values = gathered
    if key < keys:
        return smallest_of(cast(Iterable[Sequence[Cardinality]], values), splits=splits), {}
    return (), carriers(cast(Iterable[Sample], values))


def write_plan(parts: Sequence[PlanPart], *, backend: BeamGroupByKey) -> list[InputShard]:
    """Write the facts that determine the plan; returns the shards."""
    smallest = smallest_of((found for found, _ in parts if found), splits=backend.job.splits)
    frequent = {identity: by for _, found in parts for identity, by in found.items()}
    plan = ShufflePlan(backend.job, smallest, dict(sorted(frequent.items())))
    filesystem.write_bytes(filesystem.join(backend.directory, PLAN), plan.to_json())
    return backend.read_shards()


@lru_cache(maxsize=1)
def _read_plan(backend: BeamGroupByKey) -> ShufflePlan:
    path = filesystem.join(backend.directory, PLAN)
    return ShufflePlan.from_json(filesystem.read_bytes(path), backend.job)


@lru_cache(maxsize=1)
def _shard_numbers(backend: BeamGroupByKey) -> dict[str, int]:
    return {shard.name: number for number, shard in enumerate(backend.read_shards())}


def send_shard(
    tokenizer: ShardTokenizer,
    shard: InputShard,
    *,
    backend: BeamGroupByKey,
    done: frozenset[int],
    queue: WorkQueue,
) -> Iterator[tuple[int, object]]:
    """A shard's documents as pairs of bucket number and bytes, without buckets of `done` groups.

    The numbers after the last bucket carry its counts and dropped documents. The first shard sends
    an empty value to every bucket, so that empty buckets get their files, too.
    """
    plan, number = backend.plan(), _shard_numbers(backend)[shard.name]
    wanted = [place not in done for place, _ in plan.buckets]
    # An engine only delivers keys that somebody sent.
    if number == 0:
        yield from ((key, b"") for key, is_wanted in enumerate(wanted) if is_wanted)
    sent: set[Identity] = set()  # frequent texts that this shard has already sent
    documents = 0
    for table in tokenizer.tables(shard):
        run = sort_run(table, splits=backend.job.splits)
        documents += run.counts.documents
        # Keys behind the last bucket carry the accounts, one key for several shards.
        account = len(plan.buckets) + number // SHARDS_PER_ACCOUNT
        yield account, (run.counts, ipc_bytes(run.dropped))
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
        # Where the bucket changes; sorted by bucket, so that each bucket's documents are one range.
        ends = [*np.flatnonzero(np.diff(keys_N)) + 1, len(keys_N)]
        packed = packed_ranges(rows.take(pa.array(rows_N)), own_N & sends_D[rows_N], ends)
        for end, blob in zip(ends if len(keys_N) else (), packed, strict=False):
            key = int(keys_N[end - 1])
            if wanted[key]:
                yield key, blob
    queue.report(MB=shard.megabytes, documents=documents)


def write_buckets(
    gathered: tuple[int, Iterable[object]], *, backend: BeamGroupByKey
) -> Iterator[tuple[int, BucketAccount]]:
    """Write a bucket and yield its account, or write the documents dropped by some shards."""
    key, values = gathered
    plan, job = backend.plan(), backend.job
    # Keys beyond the buckets stand for the shards' accounts.
    if key >= len(plan.buckets):
        number = key - len(plan.buckets)
        counts, lists = zip(*cast(Iterable[tuple[DocumentCounts, bytes]], values), strict=True)
        rows = pa.concat_tables([pa.ipc.open_file(content).read_all() for content in lists])
        filesystem.write_bytes(backend.list_path(number), ipc_bytes(rows))
        total = json.dumps(asdict(sum(counts, DocumentCounts()))).encode()
        filesystem.write_bytes(backend.account_path(number), total)
        return
    place, number = plan.buckets[key]
    group = plan.groups[place]
    packed = (blob for blob in cast(Iterable[bytes], values) if blob)
    rows = unpack(packed, vocabulary_size=job.vocabulary_size)
    splits_D = rows["split"].to_numpy()
    # What belongs here, and of stronger splits only what identifies a document.
    own = rows.filter(pa.array(np.isin(splits_D, group.sources)))
    stronger = [
        rows.filter(pa.array(splits_D == split)).select(IDENTITY)
        for split in stronger_splits(group.sources[0], count=job.splits)
    ]
    kept, lost = deduplicate(own, stronger, drop_list=job.stage.cleaning.drop_list)
    kept = _with_tokens(kept, own, of=f"bucket {number} of {group.split}")
    account = write_bucket(kept, lost, group=group, number=number, job=job)
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
    # Rows of `kept`, except that those without tokens take these from their carrier's row, which is
    # found behind `kept` in the concatenation.
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


def packed_ranges(rows: pa.Table, with_tokens_N: Mask, ends: Sequence[int]) -> Iterator[bytes]:
    """Consecutive ranges of rows, which end at `ends`, as bytes.

    rows: columns of a sorted run, and `split`. Only the rows in `with_tokens_N` keep their tokens.
    """
    heads_N = np.zeros(len(rows), dtype=_ROW)
    # as opaque bytes of one field
    digests_N16 = np.ascontiguousarray(digest_bytes(rows["document_digest"]))
    heads_N["document_digest"] = digests_N16.view(f"V{TOKEN_DIGEST_BYTES}").ravel()
    for name in _PLAIN:
        heads_N[name] = rows[name].to_numpy()
    full = rows.filter(pa.array(with_tokens_N))
    heads_N["sentences"][with_tokens_N] = list_lengths(full["sentence_lengths"])
    heads_N["tokens"][with_tokens_N] = list_lengths(full["token_ids"])
    lengths = list_values(full["sentence_lengths"])
    ids = list_values(full["token_ids"])
    sentences_N1 = offsets_of(heads_N["sentences"].astype(np.int64))
    tokens_N1 = offsets_of(heads_N["tokens"].astype(np.int64))
    # A range is: its number of rows, their heads, all sentence lengths, all ids.
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
    form = np.dtype(str(id_type(vocabulary_size)))  # to_pandas_dtype() imports pandas
    heads, lengths, ids = [np.zeros(0, dtype=_ROW)], [np.zeros(0, np.uint32)], [np.zeros(0, form)]
    for packed in ranges:
        # A range is a count, its rows, the lengths of their sentences, and their ids.
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
