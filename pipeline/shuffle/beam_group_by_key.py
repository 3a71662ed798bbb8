"""The shuffle backend of many machines: documents go through the runner's own shuffle.

In:  input shards.
Out: sorted runs in the workspace, by partition of the digests; an index for each partition, written
     last.

A partition is a power-of-two share of the digests. The worker that gathers one writes it as runs of
bounded size and never holds more than one. A bundle may be executed twice, and what is gathered
arrives in another order each time: so runs are named by their content, and the index decides.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import pairwise
from typing import cast

import numpy as np
import pyarrow as pa

from artifacts import filesystem
from artifacts.arrays import Int64s, UInt64s, list_lengths
from artifacts.digests import digest_of_file
from pipeline.readers.input_shards import InputShard
from pipeline.runner.graph import Collection, Worker, spread
from pipeline.runner.work_queue import WorkQueue
from pipeline.shuffle.buckets import BucketRange, close_runs
from pipeline.shuffle.cardinality import EMPTY, MINIMUM_VALUES, Cardinality, cardinality_of
from pipeline.shuffle.dropped import DocumentCounts
from pipeline.shuffle.sorted_runs import (
    KEY,
    RUN_TOKENS,
    dropped_path,
    open_batches,
    write_run,
)
from pipeline.shuffle.tokenization import ShardTokenizer, TokensJob

MOST_PARTITION_BITS = 10
PARTITION_BYTES = 64 << 20
"""Of the corpus, in a partition of a small one."""

FINISHED = "partitions.json"
"""Which partitions there are; written when all are finished."""


@dataclass(frozen=True)
class _Index:
    """What one partition holds."""

    runs: tuple[str, ...]
    counts: DocumentCounts
    smallest: tuple[tuple[list[int], list[int]], ...]
    """For each split the smallest keys and their documents' bytes."""


def partition_bits(corpus_bytes: int) -> int:
    """How many bits of the digest tell partitions apart. Decides nothing about the result."""
    partitions = max(corpus_bytes // PARTITION_BYTES, 1)
    return min(int(partitions).bit_length() - 1, MOST_PARTITION_BITS)


@dataclass(frozen=True)
class BeamGroupByKey:
    """Sorted runs of partitions in a directory of the workspace, local or a URL."""

    job: TokensJob
    directory: str
    bits: int

    def unfinished(self, shards: Sequence[InputShard]) -> list[InputShard]:
        """All or none: a shuffle cannot be gone on with."""
        done = filesystem.exists(filesystem.join(self.directory, FINISHED))
        return [] if done else list(shards)

    def graph(self, shards: list[InputShard], queue: WorkQueue) -> Collection[int]:
        """Documents are shuffled by partition; the partitions' numbers come out."""
        scattered = spread(shards, queue).flat_map("Tokenize", _Scatter(self.job, self.bits, queue))
        return scattered.group("Shuffle").map("WriteRuns", partial(_write_partition, backend=self))

    def finish(self, results: Sequence[object]) -> None:
        """Write down which partitions there are."""
        names = [_index_name(number) for number in sorted(set(cast(Sequence[int], results)))]
        content = json.dumps(names).encode()
        filesystem.write_bytes(filesystem.join(self.directory, FINISHED), content)

    def counts(self) -> DocumentCounts:
        """What all partitions hold."""
        return sum((index.counts for index in _indexes(self)), DocumentCounts())

    def cardinality(self, split: int) -> Cardinality:
        """The smallest digests of all partitions."""
        found = EMPTY
        for index in _indexes(self):
            if len(found.keys_D) < MINIMUM_VALUES:  # partitions are in order of digest
                keys, sizes = index.smallest[split]
                found += Cardinality(
                    np.array(keys, dtype=np.uint64), np.array(sizes, dtype=np.int64)
                )
        return found

    @contextmanager
    def runs(self, digests: BucketRange) -> Iterator[Sequence[str]]:
        """The runs of the partitions that the range lies in, or that lie in it."""
        low, high = digests.bounds()
        width = 64 - self.bits
        numbers = range(low >> width, ((high - 1) >> width) + 1)
        present = set(_names(self))
        wanted = [name for name in map(_index_name, numbers) if name in present]
        indexes = [_read_index(self.directory, name) for name in wanted]
        with _fetched(self.directory, [run for index in indexes for run in index.runs]) as paths:
            yield paths

    @contextmanager
    def dropped(self) -> Iterator[Iterator[str]]:
        """The lists beside the runs, fetched one at a time."""

        def each_fetched() -> Iterator[str]:
            for index in _indexes(self):
                for run in index.runs if index.counts.dropped else ():
                    with _fetched(self.directory, [dropped_path(run)]) as (path,):
                        yield path

        yield each_fetched()


class _Scatter(Worker[InputShard, tuple[int, bytes]]):
    """A shard becomes pairs of partition and documents, as Arrow streams; one pair at least."""

    def __init__(self, job: TokensJob, bits: int, queue: WorkQueue) -> None:
        self._job = job
        self._bits = bits
        self._queue = queue

    def setup(self) -> None:
        """Build the tokenizer, once a worker."""
        self._tokenizer = ShardTokenizer(self._job)

    def __call__(self, shard: InputShard) -> Iterator[tuple[int, bytes]]:
        """The shard's documents by partition."""
        documents = 0
        for table in self._tokenizer.tables(shard):
            documents += len(table)
            numbers = partition_of(table[KEY].to_numpy(), self._bits)
            order = np.argsort(numbers, kind="stable")
            rows = table.combine_chunks().take(pa.array(order))
            first = np.flatnonzero(np.diff(numbers[order], prepend=-1))
            if not len(rows):
                yield 0, _stream(rows)
            for start, stop in pairwise([*first.tolist(), len(order)]):
                yield int(numbers[order[start]]), _stream(rows.slice(start, stop - start))
        self._queue.report(MB=shard.megabytes, documents=documents)


def partition_of(keys_D: UInt64s, bits: int) -> Int64s:
    """The partition of each key."""
    return (keys_D >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(keys_D), int)


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def _write_partition(gathered: tuple[int, Iterable[bytes]], *, backend: BeamGroupByKey) -> int:
    """Write a partition's documents as runs, then its index."""
    number, blobs = gathered
    splits = backend.job.splits
    runs: list[str] = []
    counts = DocumentCounts()
    smallest = [EMPTY] * splits
    with tempfile.TemporaryDirectory() as scratch:
        for documents in _bounded(blobs):
            path = os.path.join(scratch, "run.arrow")
            counts += write_run(path, documents, splits=splits)
            batches = open_batches(path)
            smallest = [
                old + cardinality_of(new) for old, new in zip(smallest, batches, strict=True)
            ]
            name = f"{number:05}-{digest_of_file(path)[:16]}.arrow"
            runs.append(name)
            for source, target in ((path, name), (dropped_path(path), dropped_path(name))):
                filesystem.put_file(source, filesystem.join(backend.directory, target))
    lists = tuple((found.keys_D.tolist(), found.bytes_D.tolist()) for found in smallest)
    content = json.dumps(asdict(_Index(tuple(sorted(runs)), counts, lists))).encode()
    filesystem.write_bytes(filesystem.join(backend.directory, _index_name(number)), content)
    return number


def _bounded(blobs: Iterable[bytes]) -> Iterator[pa.Table]:
    """The documents in tables of about `RUN_TOKENS` tokens."""
    waiting: list[pa.Table] = []
    tokens = 0
    for blob in blobs:
        waiting.append(pa.ipc.open_stream(blob).read_all())
        tokens += int(list_lengths(waiting[-1]["token_ids"]).sum())
        if tokens >= RUN_TOKENS:
            yield pa.concat_tables(waiting)
            waiting, tokens = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _index_name(number: int) -> str:
    return f"partition-{number:05}.json"


@lru_cache(maxsize=2)
def _names(backend: BeamGroupByKey) -> tuple[str, ...]:
    path = filesystem.join(backend.directory, FINISHED)
    return tuple(json.loads(filesystem.read_bytes(path)))


def _indexes(backend: BeamGroupByKey) -> Iterator[_Index]:
    return (_read_index(backend.directory, name) for name in _names(backend))


@lru_cache(maxsize=4)
def _read_index(directory: str, name: str) -> _Index:
    table = json.loads(filesystem.read_bytes(filesystem.join(directory, name)))
    return _Index(tuple(table["runs"]), DocumentCounts(**table["counts"]), tuple(table["smallest"]))


@contextmanager
def _fetched(directory: str, names: Sequence[str]) -> Iterator[list[str]]:
    """Local paths of files of the workspace, brought here if it is elsewhere."""
    if filesystem.is_local(directory):
        yield [os.path.join(filesystem.local_path(directory), name) for name in names]
        return
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            filesystem.fetch_file(filesystem.join(directory, name), os.path.join(scratch, name))
        try:
            yield [os.path.join(scratch, name) for name in names]
        finally:
            close_runs()  # a mapped file takes its room on the disk even when it is deleted
