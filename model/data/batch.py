"""The encoder's input: packed sequences of any length, without padding.

In:  the examples of one micro-batch.
Out: `PackedBatch`, on any device; packed values as padded ones, `[B, S, …]`, where needed.

No FLOP is spent on padding; attention finds the sequences through `cu_seqlens`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.arrays import offsets_of, starts_of
from cloze.artifacts.errors import UsageError

# B sequences, T tokens of all sequences, M masked tokens of all sequences

NO_NEXT_SENTENCE = -1
"""`next_sentence_label` of a sequence without a second segment: not predicted."""

NOT_PREDICTED = -1
"""`masked_lm_ids` of padding: not predicted."""

PADDING_ID = 0
"""Token id of padding sequences, [PAD] in the released vocabularies; any id works."""

CPU_RUNGS, CPU_TOKEN_STEP, CPU_MASKED_STEP = 16, 32, 16
"""Values of T and M per octave on a CPU, and the numbers that they are multiples of: AMX tiles have
16 rows, and code for a partial tile is as large as that for all whole ones."""

GPU_STEP = 256
"""T is a multiple of this on a GPU: whole tiles in its products, and few distinct values below
8,192 tokens, where launching kernels costs more than additional tokens."""


class Shape(NamedTuple):
    """The sizes that determine the shapes of a batch's tensors and of the results."""

    tokens: int
    sequences: int
    masked: int
    longest: int
    """Length of the longest sequence, rounded up to a power of two, as passed to attention."""


def ladder(count: int, *, rungs: int = 32, step: int = 1) -> int:
    """Round `count` up to a ladder of `rungs` values per octave, all multiples of `step`.

    CPU libraries generate a kernel for every shape, up to a megabyte, in milliseconds, which is as
    long as a step of a small encoder. With 16 rungs a batch grows by at most 6 % and by 2 % on
    average, and a run has a handful of sizes instead of hundreds.
    """
    # 1 << bit_length is where the count's octave ends, so half of it is the octave's width, which
    # the rungs divide evenly.
    step = max(step, (1 << count.bit_length()) // (2 * rungs))
    return -(-count // step) * step


def gpu_bucket(batch: Shape, *, longest: int) -> Shape:
    """The sizes that a GPU batch is padded to; `longest` is the exact maximum length.

    T is a rung of the ladder, and B and M follow from it, so there are hardly more combinations
    than rungs of T: B is a power of two times the number of full-length sequences in T, and M is T
    / 256 times a rung of a short ladder from 32. Padding sequences have 1 to `longest` tokens; T
    moves up a rung if there are not enough tokens for all of them.
    """
    tokens = ladder(batch.tokens, step=GPU_STEP)
    while True:
        # The padding tokens fill at least `needed` sequences, none longer than `longest`, and at
        # most as many as there are padding tokens, since a sequence has at least one.
        needed = -(-(tokens - batch.tokens) // longest)
        sequences = max(1, tokens // batch.longest)
        while sequences < batch.sequences + needed:
            sequences *= 2
        if longest < 3:  # all of them may have a single token
            sequences = batch.sequences + needed
        if sequences - batch.sequences <= tokens - batch.tokens:
            break
        tokens = ladder(tokens + 1, step=GPU_STEP)
    # M in units of T / 256, so that it takes few values for each T: with 15 % masked, 38.4 → 40.
    share = max(32, ladder(-(-batch.masked * 256 // tokens), rungs=8)) if batch.masked else 0
    return Shape(tokens, sequences, tokens * share // 256, batch.longest)


def on(device: torch.device, tensor: Tensor) -> Tensor:
    """`tensor` on `device`; to a GPU via page-locked memory, so that the host does not wait."""
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch. Tensors that a task does not need may be empty (`masked_lm_positions` …)."""

    input_ids: Tensor
    """[T] int64: word-piece ids."""

    token_type_ids: Tensor
    """[T] int64: 0 for the first segment, 1 for the second."""

    position_ids: Tensor
    """[T] int64: position within the sequence."""

    cu_seqlens: Tensor
    """[B+1] int32: start of each sequence; the last entry is T."""

    max_seqlen: int
    masked_lm_positions: Tensor
    """[M] int64: positions of the masked tokens among the T tokens."""

    masked_lm_ids: Tensor
    """[M] int64: the original ids at these positions."""

    next_sentence_label: Tensor
    """[B] int64: 0 is next, 1 random, -1 not predicted (`NO_NEXT_SENTENCE`)."""

    bucket: "PackedBatch | None" = None
    """On a GPU: the padded batch, of whose tensors this batch's are prefixes."""

    @property
    def sequences(self) -> int:
        """B."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def tokens(self) -> int:
        """T."""
        return self.input_ids.shape[0]

    @property
    def shape(self) -> Shape:
        """Its sizes."""
        longest = 1 << (self.max_seqlen - 1).bit_length()
        return Shape(self.tokens, self.sequences, len(self.masked_lm_ids), longest)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """[B] int64 on the host. Waits for the device: for CPU attention and tests."""
        starts: NDArray[np.int64] = self.cu_seqlens.cpu().numpy().astype(np.int64)
        return starts[1:] - starts[:-1]

    def reversal(self) -> Tensor:
        """[T] int64: the position of each token when every sequence is reversed."""
        places = torch.arange(self.tokens, device=self.input_ids.device)
        starts = self.cu_seqlens.long()
        # Counting a token at a boundary to the sequence that begins there; then reflect each place
        # within its sequence: first + last - place.
        sequence = torch.searchsorted(starts[1:], places, right=True)
        return starts[sequence] + starts[sequence + 1] - 1 - places

    def filled(self) -> "PackedBatch":
        """The batch with padding sequences at its end, so that T and M are on the ladder.

        Sequences do not attend to one another and padding has no labels, so losses and gradients do
        not change. `next_sentence_label` stays [B]. On a GPU, this is the bucket that `to` created.
        """
        if self.input_ids.device.type != "cpu":
            return self.bucket or self
        tokens = ladder(self.tokens, rungs=CPU_RUNGS, step=CPU_TOKEN_STEP) - self.tokens
        masked = len(self.masked_lm_ids)
        unpredicted = ladder(masked, rungs=CPU_RUNGS, step=CPU_MASKED_STEP) - masked
        if not tokens and not unpredicted:
            return self
        # Padding sequences are as long as the longest one, the last of them shorter, so
        # `max_seqlen` still holds for attention.
        ends = [*range(self.max_seqlen, tokens, self.max_seqlen), tokens] if tokens else []
        return self._with_padding(ends, unpredicted)

    def bucketed(self) -> "PackedBatch":
        """The batch padded to its `gpu_bucket`, `next_sentence_label` included.

        T grows by at most 5 % from 8,192 tokens, by 2 % on average.
        """
        bucket = gpu_bucket(self.shape, longest=self.max_seqlen)
        padding, tokens = bucket.sequences - self.sequences, bucket.tokens - self.tokens
        # Spread evenly, so that every padding sequence has between 1 and `longest` tokens
        # (`gpu_bucket`).
        ends = [tokens * (number + 1) // padding for number in range(padding)]
        filled = self._with_padding(ends, bucket.masked - len(self.masked_lm_ids))
        labels = functional.pad(self.next_sentence_label, (0, padding), value=NO_NEXT_SENTENCE)
        return replace(filled, next_sentence_label=labels)

    def _with_padding(self, ends: list[int], unpredicted: int) -> "PackedBatch":
        """Append padding that ends `ends` tokens after the batch, and `unpredicted` positions.

        `next_sentence_label` stays [B].
        """
        places = ragged_indices(0, np.diff(ends, prepend=0).astype(np.int64))
        tokens = len(places)
        return replace(
            self,
            input_ids=functional.pad(self.input_ids, (0, tokens), value=PADDING_ID),
            token_type_ids=functional.pad(self.token_type_ids, (0, tokens)),
            position_ids=torch.cat((self.position_ids, torch.from_numpy(places))),
            cu_seqlens=torch.cat(
                (self.cu_seqlens, torch.tensor(ends, dtype=torch.int32) + self.tokens)
            ),
            masked_lm_positions=functional.pad(self.masked_lm_positions, (0, unpredicted)),
            masked_lm_ids=functional.pad(self.masked_lm_ids, (0, unpredicted), value=NOT_PREDICTED),
        )

    def to(self, device: torch.device | str) -> "PackedBatch":
        """The batch with all tensors on the device; on a GPU, as views of a bucket."""
        there = torch.device(device)
        if there.type == self.input_ids.device.type:
            return self
        if there.type == "cpu":
            return self.mapped(lambda tensor: tensor.to(there))
        # Only the bucket is copied. The batch is then a prefix of each of its tensors, so kernels
        # for the bucket's few shapes read the same memory.
        bucket = self.bucketed().mapped(lambda tensor: on(there, tensor))
        views = {name: getattr(bucket, name)[: len(own)] for name, own in self.tensors().items()}
        batch: PackedBatch = replace(self, bucket=bucket, **views)
        vars(batch)["lengths"] = self.lengths  # known here; reading it on the device would wait
        return batch

    def tensors(self) -> dict[str, Tensor]:
        """All tensors by name, in the order of the fields."""
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "PackedBatch":
        """A batch of the changed tensors, without the bucket."""
        tensors = {name: change(each) for name, each in self.tensors().items()}
        moved: PackedBatch = replace(self, bucket=None, **tensors)  # type: ignore[arg-type]  # by field
        if "lengths" in vars(self) or self.input_ids.device.type == "cpu":
            vars(moved)["lengths"] = self.lengths  # known here; reading it on the device would wait
        return moved


@dataclass(frozen=True)
class Example:
    """One sequence and its labels."""

    input_ids: Sequence[int]
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], without padding."""

    segment_a_length: int | None = None
    """Number of tokens of type 0, the others being of type 1; None: all are of type 0."""

    masked_lm_positions: Sequence[int] = ()
    """Positions of the predicted tokens in `input_ids`."""

    masked_lm_ids: Sequence[int] = ()
    """The original ids at these positions."""

    next_sentence_label: int = NO_NEXT_SENTENCE
    """0 is next, 1 random, -1 not predicted."""


def pack_sequences(examples: Sequence[Example]) -> PackedBatch:
    """Concatenate the examples, in order."""
    lengths = np.array([len(example.input_ids) for example in examples], np.int64)
    if not len(lengths) or lengths.min() == 0:
        raise UsageError("cannot pack: no sequences, or an empty one; each needs at least [CLS]")
    starts = starts_of(lengths)
    segment_a = [
        length if example.segment_a_length is None else example.segment_a_length
        for example, length in zip(examples, lengths, strict=True)
    ]
    # Positions within an example become positions among all T tokens. The empty list is for
    # batches without any: of a single short text, each small array counts.
    masked = [
        start + np.asarray(example.masked_lm_positions, np.int64)
        for example, start in zip(examples, starts, strict=True)
        if len(example.masked_lm_positions)
    ] or [np.empty(0, np.int64)]
    return Concatenated(
        _joined([example.input_ids for example in examples]),
        lengths,
        segment_a_lengths=np.array(segment_a),
        masked_lm_positions=_joined(masked),
        masked_lm_ids=_joined([example.masked_lm_ids for example in examples]),
        next_sentence_labels=np.array([example.next_sentence_label for example in examples]),
    ).packed()


class Concatenated(NamedTuple):
    """B sequences one behind the other, of T tokens, M of them predicted."""

    input_ids: NDArray[np.integer]
    """[T]"""
    lengths: NDArray[np.int64]
    """[B]"""
    segment_a_lengths: NDArray[np.integer]
    """[B] tokens of type 0, which come first."""
    masked_lm_positions: NDArray[np.int64]
    """[M] among all T tokens."""
    masked_lm_ids: NDArray[np.integer]
    """[M] the original ids."""
    next_sentence_labels: NDArray[np.integer]
    """[B]"""

    def packed(self) -> PackedBatch:
        """The batch of these sequences."""
        # Positions begin anew in each sequence.
        position_ids = ragged_indices(0, self.lengths)

        def tensor(values: NDArray[np.generic]) -> Tensor:
            return torch.from_numpy(values.astype(np.int64))

        return PackedBatch(
            input_ids=tensor(self.input_ids),
            # type 1 from the end of segment A on
            token_type_ids=tensor(position_ids >= np.repeat(self.segment_a_lengths, self.lengths)),
            position_ids=tensor(position_ids),
            cu_seqlens=torch.from_numpy(offsets_of(self.lengths).astype(np.int32)),
            max_seqlen=int(self.lengths.max()),
            masked_lm_positions=tensor(self.masked_lm_positions),
            masked_lm_ids=tensor(self.masked_lm_ids),
            next_sentence_label=tensor(self.next_sentence_labels),
        )


def empty_micro_batch(cls_id: int, sep_id: int) -> PackedBatch:
    """One [CLS] [SEP] without predictions, for a rank without examples: its losses are 0."""
    return pack_sequences([Example([cls_id, sep_id])])


def ragged_indices(
    starts: NDArray[np.int64] | int, lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """`start, start + 1, …` for each row, concatenated; [sum of lengths]."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    # A running count over all rows, shifted for each row by its start less its offset in the
    # result.
    return np.repeat(starts - (ends - lengths), lengths) + np.arange(total)


def padded(packed_T: Tensor, batch: PackedBatch, *, fill: float = 0.0) -> Tensor:
    """[T, …] of packed tokens as [B, S, …], S the longest length; padding is set to `fill`."""
    lengths = torch.from_numpy(batch.lengths)
    shape = (batch.sequences, batch.max_seqlen, *packed_T.shape[1:])
    result = packed_T.new_full(shape, fill)
    inside = torch.arange(batch.max_seqlen)[None] < lengths[:, None]
    result[inside.to(packed_T.device)] = packed_T
    return result


def _joined(parts: Sequence[Sequence[int] | NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([np.asarray(part, np.int64) for part in parts])
