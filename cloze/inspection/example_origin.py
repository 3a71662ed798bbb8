"""The document that an example was made from.

In:  an examples artifact, the tokens artifact it was made of, and a row.
Out: the row's file, copy and text, and its document's digest: found by the ids themselves, because
     an example keeps no name.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.errors import UsageError
from artifacts.manifest import FileEntry
from artifacts.store import Artifact
from artifacts.tables import tokens_name

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Example:
    """One row of an examples artifact."""

    file: FileEntry
    row: int
    """In its file."""
    copy: int
    """Which masking of the corpus."""
    values: dict[str, Any]


@dataclass(frozen=True)
class Origin:
    """Where an example's first segment stands."""

    file: FileEntry
    row: int
    """Of the document in its file."""
    values: dict[str, Any]
    """The document's row."""


def find_example(examples: Artifact, *, split: str, row: int) -> Example:
    """Row `row` of `split`, counted over its files in order."""
    before = 0
    for entry in examples.manifest.files:
        if entry.statistics.get("split") != split:
            continue
        if row < before + (entry.rows or 0):
            return _read_example(examples, entry, row - before)
        before += entry.rows or 0
    raise UsageError(f"{split} has {before} examples; choose --row from 0 to {max(before - 1, 0)}")


def find_origin(example: Example, tokens: Artifact) -> Origin:
    """The document in which the example's first segment stands."""
    facts = example.file.statistics
    entry = tokens.manifest.file(tokens_name(facts["split"], facts["bucket"]))
    wanted = first_segment(example.values)
    with pa.memory_map(tokens.path(entry.name)) as source:
        table = pa.ipc.open_file(source).read_all()
    ids = table.column("token_ids").combine_chunks()
    places = places_of(wanted, ids.values.to_numpy().astype(np.int64))
    if not len(places):
        raise UsageError(f"{entry.name}: no document holds the segment; these tokens are others")
    ends = ids.offsets.to_numpy()[1:] - ids.offsets.to_numpy()[0]
    row = int(np.searchsorted(ends, places[0], side="right"))
    return Origin(entry, row, table.slice(row, 1).to_pylist()[0])


def first_segment(row: dict[str, Any]) -> Ids:
    """The ids of segment A as they were before masking, without [CLS] and [SEP]."""
    ids = np.array(row["input_ids"], dtype=np.int64)
    ids[np.array(row["masked_lm_positions"], dtype=np.int64)] = row["masked_lm_ids"]
    return ids[1 : row["segment_a_length"] - 1]


def places_of(wanted: Ids, ids: Ids) -> Ids:
    """Where `wanted` begins in `ids`, all places."""
    places: Ids = np.arange(max(len(ids) - len(wanted) + 1, 0), dtype=np.int64)
    for offset, value in enumerate(wanted):
        places = places[ids[places + offset] == value]
    return places


def _read_example(examples: Artifact, entry: FileEntry, row: int) -> Example:
    with pa.memory_map(examples.path(entry.name)) as source:
        file = pa.ipc.open_file(source)
        before = 0
        for copy in range(file.num_record_batches):
            batch = file.get_batch(copy)
            if row < before + batch.num_rows:
                return Example(entry, row, copy, batch.slice(row - before, 1).to_pylist()[0])
            before += batch.num_rows
    raise UsageError(f"{entry.name}: has no row {row}")
