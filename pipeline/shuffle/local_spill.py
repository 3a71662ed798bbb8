"""The shuffle backend of one machine: sorted runs in files that all workers share.

In:  input shards.
Out: an index file per shard, which names its runs and is written last, so that finished shards are
     kept; then the buckets (buckets.py), a group of adjacent ones per task.

Each run is one Arrow file with a record batch per split, and next to it a list of the documents
dropped so far. Buckets are ranges of digests, so a bucket's part of a run is one slice, found by
bisection and read through the page cache. The number of buckets need not be known before all runs
are written.

Only names pass through Beam, whose local runner holds everything that does in memory, up to 2 GiB.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial

import numpy as np
import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.filesystem import naming_full_disk, older_than_this_start, temporary_beside
from cloze.pipeline.readers.input_shards import InputShard
from cloze.pipeline.runner.graph import Collection, WorkQueue, gather, share_out, spread
from cloze.pipeline.shuffle.buckets import (
    MINIMUM_VALUES,
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
    ROWS_SCHEMA,
    DocumentCounts,
    deduplicate,
    sort_run,
)
from cloze.pipeline.text.splits import stronger_splits
from cloze.pipeline.tokenizer.tokenized_documents import IDENTITY, KEY, ShardTokenizer


@dataclass(frozen=True)
class LocalSpill:
    """Sorted runs of input shards in a local directory."""

    job: TokensJob
    directory: str
    shards: tuple[str, ...]
    """Names of all shards."""

    def unfinished(self, shards: Sequence[InputShard]) -> list[InputShard]:
        """The shards without an index.

        Files written before the last boot may be damaged by a crash, so they are made again.
        """
        return [
            shard
            for shard in shards
            if _read_index(self.directory, shard.name) is None
            or older_than_this_start(_index_path(self.directory, shard.name))
        ]

    def graph(self, shards: list[InputShard], queue: WorkQueue) -> Collection[str]:
        """Write the runs of `shards`, then the unfinished groups of buckets."""
        write = partial(write_group, spill=self, queue=queue)
        # All runs exist: only buckets are left.
        if not shards:
            groups = unfinished_groups(bucket_groups(self.smallest(), self.job), self.job)
            return spread(groups, queue).map("WriteBuckets", write)
        write_each = partial(write_runs, spill=self, queue=queue)
        setup = partial(ShardTokenizer, self.job.stage, self.job.vocabulary)
        written = spread(shards, queue).flat_map("WriteRuns", write_each, setup=setup)
        # The number of buckets is known only when all runs are.
        runs = gather(written, label="Runs")
        every: Collection[Sequence[Buckets]] = runs.map(
            "Groups", lambda _: bucket_groups(self.smallest(), self.job)
        )
        return share_out(every, queue, label="Groups").map("WriteBuckets", write)

    def counts(self) -> DocumentCounts:
        """Counts over all shards."""
        return _runs(self)[1]

    def smallest(self) -> tuple[Cardinality, ...]:
        """The documents with the smallest digests, by split, from all runs."""
        runs = (
            # A run is sorted by digest, so its first k rows have its smallest digests.
            [Cardinality.of(batch.slice(0, MINIMUM_VALUES)) for batch in open_run(path)]
            for path in _runs(self)[0]
        )
        return smallest_of(runs, splits=self.job.splits)

    def dropped(self, _: str) -> Iterator[str]:
        """The lists written next to the runs."""
        return map(_dropped_path, _runs(self)[0])


def write_runs(
    tokenizer: ShardTokenizer, shard: InputShard, *, spill: LocalSpill, queue: WorkQueue
) -> list[str]:
    """Write the runs and the index of an input shard; returns the names of the runs."""
    runs: list[str] = []
    counts = DocumentCounts()
    with naming_full_disk(spill.directory):
        for table in tokenizer.tables(shard):
            run = sort_run(table, splits=spill.job.splits)
            runs.append(f"{shard.name}-{len(runs)}.arrow")
            path = os.path.join(spill.directory, runs[-1])
            _write_arrow(path, run.by_split[0].schema, run.by_split)
            _write_arrow(_dropped_path(path), ROWS_SCHEMA, [run.dropped])
            counts += run.counts
        write_index(_index_path(spill.directory, shard.name), runs, counts)
    queue.report(MB=shard.megabytes, documents=counts.documents)
    return runs


def write_group(group: Buckets, *, spill: LocalSpill, queue: WorkQueue) -> str:
    """Write the buckets of a group with its list of dropped documents and its counts."""
    job, (runs, _), accounts = spill.job, _runs(spill), []
    drop_list = job.stage.cleaning.drop_list
    for number in group.numbers:
        bounds = group.bounds(number)
        own = _rows(runs, bounds, group.sources)
        stronger = [
            _rows(runs, bounds, (split,)).select(IDENTITY)
            for split in stronger_splits(group.sources[0], count=job.splits)
        ]
        rows, lost = deduplicate(own, stronger, drop_list=drop_list)
        accounts.append(write_bucket(rows, lost, group=group, number=number, job=job))
        queue.report(buckets=1)
    return put_account(group, accounts, job=job)


def write_index(path: str, runs: list[str], counts: DocumentCounts) -> None:
    """Write the index of a shard, which marks it finished."""
    content = json.dumps({"runs": runs, "counts": asdict(counts)}).encode()
    # Not flushed to the disk, which would cost more than the write: `unfinished` distrusts whatever
    # is older than the last boot, so only the end of a program has to be survived.
    filesystem.write_bytes(path, content, durable=False)


def open_run(path: str) -> list[pa.RecordBatch]:
    """The memory-mapped record batches of a run, one per split."""
    reader = pa.ipc.open_file(pa.memory_map(path))
    return [reader.get_batch(index) for index in range(reader.num_record_batches)]


# A worker maps every run once for all of its buckets; what is kept are maps, not contents.
_open_once = lru_cache(maxsize=4096)(open_run)


def _rows(runs: Sequence[str], bounds: tuple[int, int], splits: Sequence[int]) -> pa.Table:
    """The rows of these splits in a range of keys, from all runs."""
    low, high = bounds
    slices = []
    for batch in (_open_once(run)[split] for run in runs for split in splits):
        # A batch is sorted by key, so a range of keys is one slice.
        keys_D = batch[KEY].to_numpy()
        start = int(np.searchsorted(keys_D, np.uint64(low)))
        # an end of 2^64 does not fit into 64 bits
        stop = len(keys_D) if high >> 64 else int(np.searchsorted(keys_D, np.uint64(high)))
        slices.append(batch.slice(start, stop - start))
    return pa.Table.from_batches(slices).combine_chunks()


@lru_cache(maxsize=2)
def _runs(spill: LocalSpill) -> tuple[list[str], DocumentCounts]:
    """Paths of all runs and counts over all shards, cached because every bucket needs them."""
    found = [(name, _read_index(spill.directory, name)) for name in spill.shards]
    missing = [name for name, index in found if index is None]
    if missing:
        raise IntegrityError(
            f"{_index_path(spill.directory, missing[0])}: missing after the job; "
            "run the stage again, and change nothing in the workspace meanwhile"
        )
    indexes = [index for _, index in found if index]
    paths = [os.path.join(spill.directory, name) for names, _ in indexes for name in names]
    return paths, sum((counts for _, counts in indexes), DocumentCounts())


def _read_index(directory: str, name: str) -> tuple[list[str], DocumentCounts] | None:
    try:
        with open(_index_path(directory, name), "rb") as file:
            table = json.load(file)
    except (FileNotFoundError, ValueError):
        return None
    return table["runs"], DocumentCounts(**table["counts"])


def _index_path(directory: str, name: str) -> str:
    return os.path.join(directory, f"{name}.json")


def _dropped_path(path: str) -> str:
    """Path of the list of documents dropped from a run."""
    return path.removesuffix(".arrow") + ".dropped.arrow"


def _write_arrow(path: str, schema: pa.Schema, tables: Sequence[pa.Table]) -> None:
    """Write one record batch per table, even if empty, atomically."""
    empty = pa.RecordBatch.from_pylist([], schema=schema)
    with temporary_beside(path) as temporary:
        with pa.OSFile(temporary, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            # An empty table has no batches at all, but readers find a split by the position of its
            # batch.
            for table in tables:
                writer.write_batch(next(iter(table.combine_chunks().to_batches()), empty))
        os.replace(temporary, path)
