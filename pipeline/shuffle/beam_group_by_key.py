"""The exchange on many machines: documents go through the runner's shuffle.

In:  portions of the corpus.
Out: runs in the workspace, by partition of the digests; an index for each partition, written last.

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
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from artifacts import filesystem
from artifacts.digests import digest_of_file
from artifacts.rng import Int64s, UInt64s
from pipeline.runner.beam import DoFn, GroupByKey, Map, ParDo, PCollection, Pipeline
from pipeline.runner.graph import spread
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.buckets import BucketRange, close_runs
from pipeline.shuffle.cardinality import EMPTY, SKETCH_DOCUMENTS, Sketch, sketch_of
from pipeline.shuffle.input_shards import MEGABYTE, Portion
from pipeline.shuffle.sorted_runs import (
    KEY,
    RUN_TOKENS,
    RunCounts,
    dropped_path,
    open_batches,
    write_run,
)
from pipeline.shuffle.tokenise import Job, Tokeniser

MOST_PARTITION_BITS = 10
PARTITION_BYTES = 64 << 20
"""Of the corpus, in a partition of a small one."""

FINISHED = "partitions.json"
"""Which partitions there are; written when all are finished."""


@dataclass(frozen=True)
class _Index:
    """What one partition holds."""

    runs: tuple[str, ...]
    counts: RunCounts
    sketches: tuple[tuple[list[int], list[int]], ...]
    """For each split the smallest keys and their documents' bytes."""


def partition_bits(corpus_bytes: int) -> int:
    """How many bits of the digest tell partitions apart. Decides nothing about the result."""
    partitions = max(corpus_bytes // PARTITION_BYTES, 1)
    return min(int(partitions).bit_length() - 1, MOST_PARTITION_BITS)


@dataclass(frozen=True)
class RunnerShuffle:
    """Runs of partitions in a directory of the workspace, local or a URL."""

    job: Job
    directory: str
    bits: int

    def unfinished(self, work: Sequence[Portion]) -> list[Portion]:
        """All or none: a shuffle cannot be gone on with."""
        done = filesystem.exists(filesystem.join(self.directory, FINISHED))
        return [] if done else list(work)

    def graph(self, pipeline: Pipeline, work: list[Portion], crew: Crew) -> PCollection[int]:
        """Documents are shuffled by partition; the partitions' numbers come out."""
        scatter = ParDo(_Scatter(self.job, self.bits, crew))
        numbers: PCollection[int] = (
            spread(pipeline, work, crew)
            | "Tokenise" >> scatter.with_output_types(tuple[int, bytes])
            | "Shuffle" >> GroupByKey()
            | "WriteRuns" >> Map(_write_partition, exchange=self)
        )
        return numbers

    def finish(self, results: Sequence[Any]) -> None:
        """Write down which partitions there are."""
        names = [_index_name(number) for number in sorted(set(results))]
        content = json.dumps(names).encode()
        filesystem.write_bytes(filesystem.join(self.directory, FINISHED), content)

    def counts(self) -> RunCounts:
        """What all partitions hold."""
        return sum((index.counts for index in _indexes(self)), RunCounts())

    def sketch(self, split: int) -> Sketch:
        """The smallest digests of all partitions."""
        sketch = EMPTY
        for index in _indexes(self):
            if len(sketch.keys_D) < SKETCH_DOCUMENTS:  # partitions are in order of digest
                keys, sizes = index.sketches[split]
                sketch += Sketch(np.array(keys, dtype=np.uint64), np.array(sizes, dtype=np.int64))
        return sketch

    @contextmanager
    def runs(self, digests: BucketRange) -> Iterator[Sequence[str]]:
        """The runs of the partitions that the range lies in, or that lie in it."""
        low, high = digests.bounds()
        width = 64 - self.bits
        numbers = range(low >> width, ((high - 1) >> width) + 1)
        wanted = [_index_name(number) for number in numbers]
        present = set(_names(self))
        indexes = [_read_index(self.directory, name) for name in wanted if name in present]
        with _fetched(self.directory, [run for index in indexes for run in index.runs]) as paths:
            yield paths

    @contextmanager
    def dropped(self) -> Iterator[Iterator[str]]:
        """The lists beside the runs, fetched one at a time."""
        indexes = [index for index in _indexes(self) if index.counts.dropped]
        names = [dropped_path(run) for index in indexes for run in index.runs]
        yield self._each_fetched(names)

    def _each_fetched(self, names: list[str]) -> Iterator[str]:
        for name in names:
            with _fetched(self.directory, [name]) as (path,):
                yield path


class _Scatter(DoFn):
    """A portion becomes pairs of partition and documents, as Arrow streams; one pair at least."""

    def __init__(self, job: Job, bits: int, crew: Crew) -> None:
        self._job = job
        self._bits = bits
        self._crew = crew

    def setup(self) -> None:
        """Build the tokenizer, once a worker."""
        self._tokeniser = Tokeniser(self._job)

    def process(self, portion: Portion) -> Iterator[tuple[int, bytes]]:
        """The portion's documents by partition."""
        documents = 0
        for table in self._tokeniser.tables(portion):
            documents += len(table)
            yield from _by_partition(table.combine_chunks(), self._bits)
        self._crew.report(MB=portion.size / MEGABYTE, documents=documents)


def _by_partition(documents: pa.Table, bits: int) -> Iterator[tuple[int, bytes]]:
    if not len(documents):
        yield 0, _stream(documents)
        return
    numbers = partition_of(documents[KEY].to_numpy(), bits)
    order = np.argsort(numbers, kind="stable")
    sorted_numbers = numbers[order]
    rows = documents.take(pa.array(order))
    first = np.flatnonzero(np.diff(sorted_numbers, prepend=-1))
    for start, stop in pairwise([*first.tolist(), len(order)]):
        yield int(sorted_numbers[start]), _stream(rows.slice(start, stop - start))


def _stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows)
    return bytes(sink.getvalue().to_pybytes())


def partition_of(keys_D: UInt64s, bits: int) -> Int64s:
    """The partition of each key."""
    return (keys_D >> np.uint64(64 - bits)).astype(np.int64) if bits else np.zeros(len(keys_D), int)


def _write_partition(gathered: tuple[int, Iterable[bytes]], *, exchange: RunnerShuffle) -> int:
    """Write a partition's documents as runs, then its index."""
    number, blobs = gathered
    splits = exchange.job.splits
    runs: list[str] = []
    counts = RunCounts()
    sketches = [EMPTY] * splits
    with tempfile.TemporaryDirectory() as scratch:
        for documents in _bounded(blobs):
            path = os.path.join(scratch, "run.arrow")
            counts += write_run(path, documents, splits=splits)
            batches = open_batches(path)
            sketches = [old + sketch_of(new) for old, new in zip(sketches, batches, strict=True)]
            name = f"{number:05}-{digest_of_file(path)[:16]}.arrow"
            runs.append(name)
            for source, target in ((path, name), (dropped_path(path), dropped_path(name))):
                filesystem.put_file(source, filesystem.join(exchange.directory, target))
    sketch_lists = tuple((sketch.keys_D.tolist(), sketch.bytes_D.tolist()) for sketch in sketches)
    index = _Index(tuple(sorted(runs)), counts, sketch_lists)
    content = json.dumps(asdict(index)).encode()
    filesystem.write_bytes(filesystem.join(exchange.directory, _index_name(number)), content)
    return number


def _bounded(blobs: Iterable[bytes]) -> Iterator[pa.Table]:
    """The documents in tables of about `RUN_TOKENS` tokens."""
    waiting: list[pa.Table] = []
    tokens = 0
    for blob in blobs:
        waiting.append(pa.ipc.open_stream(blob).read_all())
        tokens += sum(len(chunk.flatten()) for chunk in waiting[-1]["token_ids"].chunks)
        if tokens >= RUN_TOKENS:
            yield pa.concat_tables(waiting)
            waiting, tokens = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _index_name(number: int) -> str:
    return f"partition-{number:05}.json"


@lru_cache(maxsize=2)
def _names(exchange: RunnerShuffle) -> tuple[str, ...]:
    path = filesystem.join(exchange.directory, FINISHED)
    return tuple(json.loads(filesystem.read_bytes(path)))


def _indexes(exchange: RunnerShuffle) -> Iterator[_Index]:
    return (_read_index(exchange.directory, name) for name in _names(exchange))


@lru_cache(maxsize=4)
def _read_index(directory: str, name: str) -> _Index:
    table = json.loads(filesystem.read_bytes(filesystem.join(directory, name)))
    return _Index(tuple(table["runs"]), RunCounts(**table["counts"]), tuple(table["sketches"]))


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
