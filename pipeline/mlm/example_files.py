"""One bucket of tokens becomes its files of examples, one per sequence length.

In:  a tokens file, and the recipe all buckets share.
Out: files put into the unfinished artifact, with their statistics. This is what a worker runs.

Every copy has chance of its own and is shuffled by it; nothing depends on who does it or when.
"""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artifacts.errors import UsageError
from artifacts.filesystem import naming_full_disk
from artifacts.manifest import FileEntry, Manifest
from artifacts.rng import draw, stream_seed
from artifacts.store import Artifact, put_file
from artifacts.tables import examples_name, examples_schema
from pipeline.config import ExamplesConfig
from pipeline.mlm.documents import Documents, read_documents
from pipeline.mlm.masking import MaskingRule
from pipeline.mlm.packing_batches import SpecialIds, assemble, framed
from pipeline.mlm.pairing import ORDER, PairingRule, Pairs, pair_segments
from pipeline.mlm.statistics import Statistics, total
from pipeline.runner.work_queue import Crew
from pipeline.shuffle.input_shards import MEGABYTE


@dataclass(frozen=True)
class Recipe:
    """What decides the examples of every bucket."""

    seed: int
    """The run's seed."""
    config: ExamplesConfig
    """Form of the examples."""
    special: SpecialIds
    """Ids of [CLS] and [SEP]."""
    mask_id: int
    """Id of [MASK]."""
    vocabulary_size: int
    """Number of word-pieces."""
    continuation_V: NDArray[np.bool_]
    """Which of them go on with a word."""


@dataclass(frozen=True)
class Bucket:
    """One tokens file, and which of its examples files are wanted."""

    tokens: str
    """Directory of the tokens artifact."""
    entry: FileEntry
    """The tokens file, as its manifest has it."""
    split: str
    """`train` or the name of a held-out split."""
    number: int
    """The bucket's number within the split."""
    max_seq_lengths: tuple[int, ...]
    """Lengths that are still to be made."""
    copies: int
    """Copies of each."""


@dataclass(frozen=True)
class Destination:
    """Where the files go."""

    output: str
    """The unfinished artifact."""
    scratch: str
    """Local scratch directory shared with the launcher; empty: one of the worker's own."""


def write_bucket(bucket: Bucket, *, recipe: Recipe, destination: Destination, crew: Crew) -> str:
    """Make and put the bucket's files; returns the bucket's name, for the graph to count."""
    scratch_here = tempfile.TemporaryDirectory(dir=destination.scratch or None)
    with scratch_here as scratch, naming_full_disk(scratch):
        documents = read_documents(_local_path(bucket, scratch))
        for max_seq_length in bucket.max_seq_lengths:
            name = examples_name(bucket.split, max_seq_length, bucket.number)
            path = os.path.join(scratch, name)
            copies = write_copies(
                path, documents, recipe=recipe, max_seq_length=max_seq_length, copies=bucket.copies
            )
            put_file(
                destination.output,
                path,
                name=name,
                rows=sum(copy.rows for copy in copies),
                statistics=_entry_statistics(bucket, max_seq_length, copies),
            )
    crew.report(MB=bucket.entry.size / MEGABYTE, documents=documents.count)
    return bucket.entry.name


def write_copies(
    path: str, documents: Documents, *, recipe: Recipe, max_seq_length: int, copies: int
) -> list[Statistics]:
    """Write one examples file, a record batch for each copy, and count."""
    schema = examples_schema(recipe.vocabulary_size)
    found = []
    with pa.OSFile(path, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch, statistics in copies_of(
            documents, recipe, max_seq_length=max_seq_length, copies=copies
        ):
            writer.write_batch(batch)
            found.append(statistics)
    return found


def statistics_of_entry(entry: FileEntry) -> Statistics:
    """The counts in an examples file's manifest entry."""
    return Statistics(**{field.name: entry.statistics[field.name] for field in fields(Statistics)})


def copies_of(
    documents: Documents, recipe: Recipe, *, max_seq_length: int, copies: int
) -> Iterator[tuple[pa.RecordBatch, Statistics]]:
    """The record batches of one examples file, one per copy, and their counts."""
    framed_ids = framed(documents.token_ids_T, recipe.special)
    masking = MaskingRule(
        config=recipe.config.masking,
        max_seq_length=max_seq_length,
        mask_id=recipe.mask_id,
        vocabulary_size=recipe.vocabulary_size,
        continuation_V=recipe.continuation_V,
    )
    schema = examples_schema(recipe.vocabulary_size)
    for copy in range(copies):
        pairs = shuffled_pairs(documents, recipe, max_seq_length=max_seq_length, copy=copy)
        yield assemble(pairs, framed_ids, rule=masking, schema=schema)


def shuffled_pairs(
    documents: Documents, recipe: Recipe, *, max_seq_length: int, copy: int
) -> Pairs:
    """The pairs of one copy in their final order."""
    rule = PairingRule(max_seq_length, recipe.config.short_seq_prob, recipe.config.second_segment)
    start = stream_seed(recipe.seed, "examples", max_seq_length, copy)
    pairs = pair_segments(documents, rule=rule, start=start)
    if int((pairs.a_length_N + pairs.b_length_N + 3).sum()) >= 1 << 31:
        raise UsageError(
            f"a bucket gives more than {1 << 31:,} tokens, more than an Arrow list can hold; "
            "raise the number of buckets of the tokens stage"
        )
    return pairs.rows(np.argsort(draw(pairs.stream_N, ORDER), kind="stable"))


def _local_path(bucket: Bucket, scratch: str) -> str:
    """The tokens file on local disk, verified; a manifest of one file travels faster than all."""
    manifest = Manifest(
        stage="tokens", key="", format_version=1, config={}, inputs={}, files=(bucket.entry,)
    )
    local = Artifact(bucket.tokens, manifest).stage_files(scratch)
    return local.path(bucket.entry.name)


def _entry_statistics(
    bucket: Bucket, max_seq_length: int, copies: list[Statistics]
) -> dict[str, Any]:
    return {
        "split": bucket.split,
        "max_seq_length": max_seq_length,
        "bucket": bucket.number,
        "copies": [copy.rows for copy in copies],
        **asdict(total(copies)),
    }
