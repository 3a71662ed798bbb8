"""Memory-mapped shards of examples, read as flat NumPy arrays.

In:  an examples artifact, a split and a length; (shard, row) addresses.
Out: `Examples`: ragged columns with the rows' values concatenated.

A shard is opened, and its sha256 verified, when a batch first needs it, so the first batch does not
wait for the whole artifact. Only the requested rows are copied.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloze.artifacts.arrays import starts_of
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.store import Artifact
from cloze.artifacts.tables import DOCUMENT_LENGTHS_FIELD, examples_schema
from cloze.model.data.batch import ragged_indices

Int64 = NDArray[np.int64]
Ids = NDArray[np.integer]
"""Word-piece ids in the files' dtype, uint16 or uint32."""


@dataclass(frozen=True)
class Sizes:
    """The sizes of N examples, which suffice to distribute them over ranks."""

    lengths: Int64  # [N] tokens
    masked_counts: Int64  # [N] masked tokens
    next_sentence_labels: Int64  # [N]; -1: not predicted
    document_counts: Int64  # [N] documents, which do not attend to one another; usually 1
    document_lengths: Int64  # [D] tokens of each document

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def squared_lengths(self) -> Int64:
        """[N] sum of the squared document lengths of each example: the work of attention."""
        # Sums from each example's first document to the next one's. `reduceat` relies on every
        # example having at least one: for an empty range it would return the next example's value.
        first_N = starts_of(self.document_counts)
        squared_N: Int64 = np.add.reduceat(self.document_lengths**2, first_N)
        return squared_N


@dataclass(frozen=True)
class Examples(Sizes):
    """N examples, ragged: T tokens, M masked tokens in all."""

    input_ids: Ids  # [T]
    segment_a_lengths: Int64  # [N]
    masked_lm_positions: Int64  # [M] positions within their example
    masked_lm_ids: Ids  # [M]

    @property
    def masked_places(self) -> Int64:
        """[M] positions of the masked tokens among the T tokens."""
        starts = starts_of(self.lengths)
        return np.repeat(starts, self.masked_counts) + self.masked_lm_positions


Counts = tuple[tuple[int, ...], ...]
"""Rows by copy and shard."""


class _Lists:
    """A column of lists, as views into the mapped file."""

    def __init__(self, column: pa.ListArray) -> None:
        # Views: no row is read before it is copied.
        self._offsets: Int64 = column.offsets.to_numpy()
        self._values: Ids = column.values.to_numpy()

    def lengths(self, rows: Int64) -> Int64:
        """Length of the lists of `rows`."""
        lengths: Int64 = self._offsets[rows + 1].astype(np.int64) - self._offsets[rows]
        return lengths

    def copy(self, rows: Int64, into: NDArray[np.integer], *, starts: Int64) -> None:
        """Copy the lists of `rows` into a flat array, each to its start."""
        lengths = self.lengths(rows)
        source = ragged_indices(self._offsets[rows].astype(np.int64), lengths)
        into[ragged_indices(starts, lengths)] = self._values[source]


class _Shard(NamedTuple):
    """One copy of one shard; fields have the names of its columns."""

    input_ids: _Lists
    segment_a_length: Ids
    masked_lm_positions: _Lists
    masked_lm_ids: _Lists
    next_sentence_label: Ids
    document_lengths: _Lists | None = None
    """None if each example is one document."""


class ExampleShards:
    """All shards of one split and length."""

    def __init__(self, artifact: Artifact, *, split: str, max_seq_length: int) -> None:
        files = [
            (entry, (entry.statistics["split"], entry.statistics["max_seq_length"]))
            for entry in artifact.manifest.files
            if "max_seq_length" in entry.statistics
        ]
        self.entries = tuple(entry for entry, kind in files if kind == (split, max_seq_length))
        if not self.entries:
            known = [f"{name} {length}" for name, length in sorted({kind for _, kind in files})]
            raise UsageError(
                f"{artifact.directory}: no {split} examples of length {max_seq_length}; it holds "
                f"{', '.join(known) or 'none'}: "
                "change pretrain.phases or examples.max_seq_lengths"
            )
        self._artifact = artifact
        vocabulary_size = int(artifact.manifest.statistics["vocabulary_size"])
        packed = bool(artifact.manifest.config["examples"].get("pack_documents"))
        self._schema = examples_schema(vocabulary_size, packed=packed)
        # Opened at first use: a rank reads only the shards of its batches.
        self._mapped: dict[tuple[int, int], _Shard] = {}

    @property
    def rows(self) -> Counts:
        """`rows[c][i]`: rows of copy c in shard i."""
        counts = [entry.statistics["copies"] for entry in self.entries]
        return tuple(zip(*counts, strict=True))

    def name(self, shard: int) -> str:
        """File name of a shard, for messages."""
        return self.entries[shard].name

    @property
    def source_names(self) -> tuple[str, ...]:
        """The names of the sources by which the rows are grouped; empty if they are not."""
        return tuple(self._artifact.manifest.statistics.get("sources", ()))

    def of_source(self, name: str) -> tuple[Counts, Counts]:
        """The rows of one source, as in `rows`, and those before them in their copy and shard."""
        place = self.source_names.index(name)
        # by shard, copy and source
        counts = [entry.statistics["source_rows"] for entry in self.entries]
        rows = [[copy[place] for copy in shard] for shard in counts]
        # Rows of a copy are grouped by source, so a source's are a range, behind those of the
        # sources before.
        begins = [[sum(copy[:place]) for copy in shard] for shard in counts]
        return tuple(zip(*rows, strict=True)), tuple(zip(*begins, strict=True))

    @property
    def source_tokens(self) -> dict[str, int]:
        """Tokens of each source, in all copies."""
        counts = [entry.statistics["source_tokens"] for entry in self.entries]
        return {name: sum(tokens) for name, *tokens in zip(self.source_names, *counts, strict=True)}

    def sizes(self, copies: Int64 | int, shards: Int64, rows: Int64) -> Sizes:
        """Lengths, mask counts and labels of the given rows, in that order."""
        lengths, masked_counts, labels = (np.empty(len(rows), np.int64) for _ in range(3))
        # one each, unless the file has packed several into an example
        documents = np.ones(len(rows), np.int64)
        for at, shard in self._by_shard(copies, shards):
            lengths[at] = shard.input_ids.lengths(rows[at])
            masked_counts[at] = shard.masked_lm_positions.lengths(rows[at])
            labels[at] = shard.next_sentence_label[rows[at]]
            if shard.document_lengths is not None:
                documents[at] = shard.document_lengths.lengths(rows[at])
        document_lengths = lengths
        if DOCUMENT_LENGTHS_FIELD in self._schema:
            # Another pass, as a row's place here depends on the counts of all rows before it,
            # whatever their shards.
            document_lengths = np.empty(int(documents.sum()), np.int64)
            first = starts_of(documents)
            for at, shard in self._by_shard(copies, shards):
                assert shard.document_lengths is not None
                shard.document_lengths.copy(rows[at], document_lengths, starts=first[at])
        return Sizes(lengths, masked_counts, labels, documents, document_lengths)

    def gather(self, copies: Int64 | int, shards: Int64, rows: Int64) -> Examples:
        """The given rows, in that order."""
        # Rows come from shards in random order. The lengths alone, read first, say where the values
        # of every row go in the result, so each array is allocated once, and the rows of a shard
        # go straight to their places: nothing is joined or sorted back.
        sizes = self.sizes(copies, shards, rows)
        starts = starts_of(sizes.lengths)
        masked_starts = starts_of(sizes.masked_counts)
        # By its name: to_pandas_dtype() imports pandas, which nothing of ours depends on.
        id_type = np.dtype(str(self._schema.field("input_ids").type.value_type))
        input_ids = np.empty(int(sizes.lengths.sum()), id_type)
        positions = np.empty(int(sizes.masked_counts.sum()), np.int64)
        masked_ids = np.empty(len(positions), id_type)
        segment_a_lengths = np.empty(len(rows), np.int64)
        for at, shard in self._by_shard(copies, shards):
            shard.input_ids.copy(rows[at], input_ids, starts=starts[at])
            shard.masked_lm_positions.copy(rows[at], positions, starts=masked_starts[at])
            shard.masked_lm_ids.copy(rows[at], masked_ids, starts=masked_starts[at])
            segment_a_lengths[at] = shard.segment_a_length[rows[at]]
        return Examples(
            **vars(sizes),
            input_ids=input_ids,
            segment_a_lengths=segment_a_lengths,
            masked_lm_positions=positions,
            masked_lm_ids=masked_ids,
        )

    def _by_shard(self, copies: Int64 | int, shards: Int64) -> Iterator[tuple[Int64, _Shard]]:
        """For each copy of a shard: the batch positions that read from it, and its content."""
        number = copies * len(self.entries) + shards
        for copy, shard in (divmod(n, len(self.entries)) for n in np.unique(number).tolist()):
            if (copy, shard) not in self._mapped:
                self._mapped[copy, shard] = self._map(copy, shard)
            at = np.flatnonzero((shards == shard) & (copies == copy))
            yield at, self._mapped[copy, shard]

    def _map(self, copy: int, shard: int) -> _Shard:
        """Map a shard after checking it against the manifest."""
        entry = self.entries[shard]
        path = self._artifact.path(entry.name)
        # The copies of a shard are the record batches of its file. The columns are views that keep
        # the mapping alive after the reader is closed.
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
        columns: dict[str, Any] = {
            name: _Lists(column) if pa.types.is_list(column.type) else column.to_numpy()
            for name, column in zip(batch.schema.names, batch.columns, strict=True)
        }
        return _Shard(**columns)


def select(examples: Examples, order: Int64) -> Examples:
    """The examples at `order`, in that order."""
    lengths, masked_counts = examples.lengths[order], examples.masked_counts[order]
    # Where the tokens, the masked tokens and the documents of each chosen example begin.
    starts = starts_of(examples.lengths)[order]
    masked_starts = starts_of(examples.masked_counts)[order]
    masked = ragged_indices(masked_starts, masked_counts)
    document_counts = examples.document_counts[order]
    first = starts_of(examples.document_counts)[order]
    return Examples(
        lengths=lengths,
        masked_counts=masked_counts,
        next_sentence_labels=examples.next_sentence_labels[order],
        document_counts=document_counts,
        document_lengths=examples.document_lengths[ragged_indices(first, document_counts)],
        input_ids=examples.input_ids[ragged_indices(starts, lengths)],
        segment_a_lengths=examples.segment_a_lengths[order],
        masked_lm_positions=examples.masked_lm_positions[masked],
        masked_lm_ids=examples.masked_lm_ids[masked],
    )
