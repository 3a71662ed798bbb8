"""Examples shards, memory-mapped, and rows of them as flat NumPy arrays.

In:  an examples artifact, a split and a length; (shard, row) addresses.
Out: `Examples`: ragged columns, every row's values behind one another.

A shard is opened, and its sha256 checked, when a batch first wants it: the first batch of a run
does not wait for the whole artifact. Nothing is copied but the rows asked for.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artifacts.errors import IntegrityError, UsageError
from artifacts.manifest import FileEntry
from artifacts.store import Artifact
from artifacts.tables import examples_schema

Int64 = NDArray[np.int64]
Array = NDArray[Any]


@dataclass(frozen=True)
class Examples:
    """N examples, ragged: T tokens, M masked tokens in all."""

    lengths: Int64  # [N] tokens of each example
    input_ids: Array  # [T]
    segment_a_lengths: Int64  # [N]
    masked_counts: Int64  # [N]
    masked_lm_positions: Int64  # [M] places within their example
    masked_lm_ids: Array  # [M]
    next_sentence_labels: Int64  # [N]; -1: not asked

    def __len__(self) -> int:
        return len(self.lengths)


@dataclass(frozen=True)
class Sizes:
    """What the cutting of a batch needs to know of N examples, without reading their tokens."""

    lengths: Int64  # [N]
    masked_counts: Int64  # [N]
    next_sentence_labels: Int64  # [N]


@dataclass(frozen=True)
class _Columns:
    """One copy of one shard, as views into the mapped file."""

    id_offsets: Array
    ids: Array
    segment_a_lengths: Array
    masked_offsets: Array
    masked_positions: Array
    masked_ids: Array
    next_sentence_labels: Array


class ExampleShards:
    """All shards of one split and length."""

    def __init__(
        self, artifact: Artifact, *, split: str, max_seq_length: int, cache: str = ""
    ) -> None:
        self.entries = _entries(artifact, split=split, max_seq_length=max_seq_length)
        self.max_seq_length = max_seq_length
        self._artifact = artifact
        self._cache = cache
        self._schema = examples_schema(int(artifact.manifest.statistics["vocabulary_size"]))
        self._open: dict[tuple[int, int], _Columns] = {}

    @property
    def rows(self) -> tuple[tuple[int, ...], ...]:
        """`rows[c][i]`: rows of copy c in shard i."""
        counts = [entry.statistics["copies"] for entry in self.entries]
        return tuple(zip(*counts, strict=True))

    def name(self, shard: int) -> str:
        """File name of a shard, for messages."""
        return self.entries[shard].name

    def sizes(self, copy: int, shards: Int64, rows: Int64) -> Sizes:
        """Lengths, mask counts and labels of the rows addressed, in that order; each `[N]`."""

        def read(columns: _Columns, at: Int64) -> tuple[Int64, ...]:
            return (
                _extent(columns.id_offsets, at)[1],
                _extent(columns.masked_offsets, at)[1],
                columns.next_sentence_labels[at].astype(np.int64),
            )

        return Sizes(*self._scatter(copy, shards, rows, read=read))

    def gather(self, copy: int, shards: Int64, rows: Int64) -> Examples:
        """The rows addressed, in that order."""
        groups = _by_shard(shards)
        parts = [self._take(self._columns(copy, shard), rows[at]) for shard, at in groups]
        together = _concatenate(parts) if len(parts) != 1 else parts[0]
        order = np.argsort(np.concatenate([at for _, at in groups]), kind="stable")
        return together if len(parts) == 1 else select(together, order)

    def _scatter(
        self,
        copy: int,
        shards: Int64,
        rows: Int64,
        *,
        read: Callable[[_Columns, Int64], tuple[Int64, ...]],
    ) -> list[Int64]:
        result = [np.empty(len(rows), np.int64) for _ in range(3)]
        for shard, at in _by_shard(shards):
            for column, values in zip(
                result, read(self._columns(copy, shard), rows[at]), strict=True
            ):
                column[at] = values
        return result

    def _take(self, columns: _Columns, rows: Int64) -> Examples:
        starts, lengths = _extent(columns.id_offsets, rows)
        masked_starts, masked_counts = _extent(columns.masked_offsets, rows)
        tokens = ragged_indices(starts, lengths)
        masked = ragged_indices(masked_starts, masked_counts)
        return Examples(
            lengths=lengths,
            input_ids=columns.ids[tokens],
            segment_a_lengths=columns.segment_a_lengths[rows].astype(np.int64),
            masked_counts=masked_counts,
            masked_lm_positions=columns.masked_positions[masked].astype(np.int64),
            masked_lm_ids=columns.masked_ids[masked],
            next_sentence_labels=columns.next_sentence_labels[rows].astype(np.int64),
        )

    def _columns(self, copy: int, shard: int) -> _Columns:
        if (copy, shard) not in self._open:
            self._open[copy, shard] = self._map(copy, shard)
        return self._open[copy, shard]

    def _map(self, copy: int, shard: int) -> _Columns:
        entry = self.entries[shard]
        staged = self._artifact.stage_files(self._cache, [entry.name])
        path = staged.path(entry.name)
        with pa.ipc.open_file(pa.memory_map(path)) as reader:
            if not reader.schema.equals(self._schema):
                raise IntegrityError(
                    f"{path}: columns are {reader.schema.to_string(show_field_metadata=False)!r}, "
                    "not those of an examples file; run the examples stage again"
                )
            batch = reader.get_batch(copy)
        if batch.num_rows != entry.statistics["copies"][copy]:
            raise IntegrityError(
                f"{path}: copy {copy} has {batch.num_rows} rows, the manifest says "
                f"{entry.statistics['copies'][copy]}; run the examples stage again"
            )
        return _views(batch)


def select(examples: Examples, order: Int64) -> Examples:
    """The examples at `order`, in that order."""
    lengths, masked_counts = examples.lengths[order], examples.masked_counts[order]
    starts = np.cumsum(examples.lengths)[order] - lengths
    masked_starts = np.cumsum(examples.masked_counts)[order] - masked_counts
    masked = ragged_indices(masked_starts, masked_counts)
    return replace(
        examples,
        lengths=lengths,
        input_ids=examples.input_ids[ragged_indices(starts, lengths)],
        segment_a_lengths=examples.segment_a_lengths[order],
        masked_counts=masked_counts,
        masked_lm_positions=examples.masked_lm_positions[masked],
        masked_lm_ids=examples.masked_lm_ids[masked],
        next_sentence_labels=examples.next_sentence_labels[order],
    )


def ragged_indices(starts: Int64, lengths: Int64) -> Int64:
    """`start, start + 1, …` for each row, one row behind the other; `[sum of lengths]`."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def _entries(artifact: Artifact, *, split: str, max_seq_length: int) -> tuple[FileEntry, ...]:
    wanted = ("split", split), ("max_seq_length", max_seq_length)
    found = tuple(
        entry
        for entry in artifact.manifest.files
        if all(entry.statistics.get(name) == value for name, value in wanted)
    )
    if not found:
        known = sorted(
            {
                (entry.statistics["split"], entry.statistics["max_seq_length"])
                for entry in artifact.manifest.files
                if "max_seq_length" in entry.statistics
            }
        )
        raise UsageError(
            f"{artifact.directory}: no {split} examples of length {max_seq_length}; it holds "
            f"{', '.join(f'{name} {length}' for name, length in known) or 'none'}: "
            "change pretrain.phases or examples.max_seq_lengths"
        )
    return found


def _views(batch: pa.RecordBatch) -> _Columns:
    ids, positions, masked = (
        batch.column(name) for name in ("input_ids", "masked_lm_positions", "masked_lm_ids")
    )
    return _Columns(
        id_offsets=ids.offsets.to_numpy(),
        ids=ids.values.to_numpy(),
        segment_a_lengths=batch.column("segment_a_length").to_numpy(),
        masked_offsets=positions.offsets.to_numpy(),
        masked_positions=positions.values.to_numpy(),
        masked_ids=masked.values.to_numpy(),
        next_sentence_labels=batch.column("next_sentence_label").to_numpy(),
    )


def _extent(offsets: Array, rows: Int64) -> tuple[Int64, Int64]:
    starts = offsets[rows].astype(np.int64)
    return starts, offsets[rows + 1].astype(np.int64) - starts


def _by_shard(shards: Int64) -> list[tuple[int, Int64]]:
    """Each shard named, with the places in the batch that want it."""
    return [(int(shard), np.flatnonzero(shards == shard)) for shard in np.unique(shards)]


def _concatenate(parts: list[Examples]) -> Examples:
    names = Examples.__dataclass_fields__
    return Examples(*(np.concatenate([getattr(part, name) for part in parts]) for name in names))
