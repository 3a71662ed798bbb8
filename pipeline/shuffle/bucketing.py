"""The second job of stage `tokens`: runs become buckets.

In:  a group of neighbouring buckets, and all runs.
Out: the buckets' tokens files, put into the artifact; for the group, a list of the documents
     dropped as duplicates, and how often each id occurs.
"""

import os
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.filesystem import naming_full_disk
from artifacts.store import finished_file, put_bytes, put_file
from artifacts.tables import tokens_name
from pipeline.duplicates.drop_list import read_drop_list
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.backend import Exchange
from pipeline.shuffle.buckets import BucketRange, read_bucket, tokens_table
from pipeline.shuffle.cardinality import bucket_bits
from pipeline.shuffle.splits import split_names
from pipeline.shuffle.token_statistics import statistics_of
from pipeline.shuffle.tokenise import WORK, Job

MOST_GROUPS = 1024


@dataclass(frozen=True)
class BucketGroup:
    """Neighbouring buckets of one split: one piece of work."""

    split: str
    number: int
    buckets: tuple[BucketRange, ...]

    @property
    def range(self) -> BucketRange:
        """All its buckets as one: a power of two of them, so that they share their first bits."""
        first, merged = self.buckets[0], len(self.buckets).bit_length() - 1
        return BucketRange(first.split, first.number >> merged, first.bits - merged)

    @property
    def counts_name(self) -> str:
        """The file that says how often each id occurs in these buckets."""
        return f"{WORK}/counts-{self.split}-{self.number:05}.npy"

    @property
    def dropped_name(self) -> str:
        """The file that lists the documents dropped here."""
        return f"{WORK}/dropped-{self.split}-{self.number:05}.arrow"

    @property
    def names(self) -> list[str]:
        """The tokens files of the group."""
        return [tokens_name(self.split, bucket.number) for bucket in self.buckets]


def bucket_groups(exchange: Exchange, job: Job) -> list[BucketGroup]:
    """All buckets of all splits, in groups; splits without documents have none."""
    groups = []
    for split, name in enumerate(split_names(job.stage.corpus)):
        bits = bucket_bits(exchange.sketch(split))
        if bits is None:
            continue
        size = max(1, (1 << bits) // MOST_GROUPS)
        for first in range(0, 1 << bits, size):
            buckets = tuple(BucketRange(split, n, bits) for n in range(first, first + size))
            groups.append(BucketGroup(name, first // size, buckets))
    return groups


def write_group(group: BucketGroup, *, job: Job, exchange: Exchange, crew: Crew) -> str:
    """Write the buckets of a group, and the lists and counts that belong to it."""
    counts = np.zeros(job.vocabulary_size, dtype=np.int64)
    dropped = []
    with exchange.runs(group.range) as runs:  # once for all: they may have to be fetched
        for bucket in group.buckets:
            occurring, lost = _write_bucket(bucket, runs, split=group.split, job=job)
            counts += occurring
            dropped.append(lost)
            crew.report(buckets=1)
    _put_dropped(pa.concat_tables(dropped), job, name=group.dropped_name)
    put_bytes(job.output, counts.tobytes(), name=group.counts_name)
    return group.counts_name


def _write_bucket(
    bucket: BucketRange, runs: Sequence[str], *, split: str, job: Job
) -> tuple[npt.NDArray[np.int64], pa.Table]:
    """Put the tokens file, unless it is finished; returns the counts of ids and the dropped."""
    drop_list = read_drop_list(job.stage.cleaning.drop_list)
    content = read_bucket(runs, bucket, splits=job.splits, drop_list=drop_list)
    weights = [source.weight for source in job.stage.corpus.sources]
    table = tokens_table(content.rows, weights=weights, vocabulary_size=job.vocabulary_size)
    counts = _occurrences(table, job.vocabulary_size)
    name = tokens_name(split, bucket.number)
    if finished_file(job.output, name) is None:
        text_bytes = int(content.rows["text_bytes"].to_numpy().sum())
        statistics = statistics_of(
            table, text_bytes=text_bytes, token_counts=counts, unk_id=job.unk_id
        )
        facts = {"split": split, "bucket": bucket.number, **asdict(statistics)}
        _put_table(table, job, name=name, statistics=facts)
    return counts, content.dropped


def _occurrences(table: pa.Table, vocabulary_size: int) -> npt.NDArray[np.int64]:
    """How often each id occurs."""
    counts = np.zeros(vocabulary_size, dtype=np.int64)
    for chunk in table["token_ids"].chunks:
        counts += np.bincount(chunk.flatten().to_numpy(), minlength=vocabulary_size)
    return counts


def _put_table(table: pa.Table, job: Job, *, name: str, statistics: dict[str, object]) -> None:
    scratch_here = tempfile.TemporaryDirectory(dir=job.scratch or None, prefix="bucket-")
    with scratch_here as scratch, naming_full_disk(scratch):
        path = os.path.join(scratch, name)
        with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        put_file(job.output, path, name=name, rows=len(table), statistics=statistics)


def _put_dropped(dropped: pa.Table, job: Job, *, name: str) -> None:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, dropped.schema) as writer:
        writer.write_table(dropped)
    put_bytes(job.output, sink.getvalue().to_pybytes(), name=name, rows=len(dropped))
