"""What the encoder reads: sequences of any length, one after another, without padding.

In:  the examples of one micro-batch.
Out: `PackedBatch`, on any device; packed values as padded ones, `[B, S, …]`, where they are needed.

No FLOP is spent on padding; attention finds the sequences through `cu_seqlens`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from artifacts.errors import UsageError

# B sequences, T tokens of all sequences together, M masked tokens of all sequences together

NO_NEXT_SENTENCE = -1
"""`next_sentence_label` of a sequence without a second segment: not predicted."""

NOT_ASKED = -1
"""`masked_lm_ids` of a filler: nothing is predicted there."""

FILLER_ID = 0
"""The id of filler tokens, [PAD] in the released vocabularies; any id works."""

CPU_RUNGS, CPU_TOKEN_STEP, CPU_MASKED_STEP = 16, 32, 16
"""Sizes of T and M per octave on a CPU, and what they are multiples of: AMX has tiles of 16 rows,
and code for a partial tile is as large as that for all whole ones."""

GPU_STEP = 256
"""Rungs on a GPU are multiples of this many tokens: whole tiles of its products, and few rungs
below 8,192 tokens, where launching kernels costs more than extra tokens do."""


class Shape(NamedTuple):
    """Everything that the shapes of a batch's tensors and of the results depend on."""

    tokens: int
    """T."""

    sequences: int
    """B."""

    masked: int
    """M."""

    longest: int
    """Length of the longest sequence, rounded up to a power of two: what attention is given."""


def ladder(count: int, *, rungs: int = 32, step: int = 1) -> int:
    """The smallest number from `count` on that is on a ladder of `rungs` rungs per octave.

    All rungs are multiples of `step`.

    CPU libraries generate a kernel for each shape they see, up to a megabyte in milliseconds, as
    long as a step of a small encoder takes. With 16 rungs a batch grows by 6 % at most and by 2 %
    on average, and a run sees a handful of sizes instead of hundreds.
    """
    step = max(step, (1 << count.bit_length()) // (2 * rungs))
    return -(-count // step) * step


def gpu_bucket(batch: Shape, *, longest: int) -> Shape:
    """The sizes that a GPU's batch of these sizes is filled up to; `longest` is its exact maximum.

    T is a rung of the ladder, and B and M follow from it, so that batches have hardly more sizes
    together than rungs of T: B is a power of two times the sequences of full length that T holds,
    M is a 256th of T times a rung of a short ladder from 32 on. A filler sequence has one to
    `longest` tokens, so T goes up a rung where there is not a token for each.
    """
    tokens = ladder(batch.tokens, step=GPU_STEP)
    while True:
        needed = -(-(tokens - batch.tokens) // longest)
        sequences = max(1, tokens // batch.longest)
        while sequences < batch.sequences + needed:
            sequences *= 2
        if longest < 3:  # they may be one token long, all of them
            sequences = batch.sequences + needed
        if sequences - batch.sequences <= tokens - batch.tokens:
            break
        tokens = ladder(tokens + 1, step=GPU_STEP)
    share = max(32, ladder(-(-batch.masked * 256 // tokens), rungs=8)) if batch.masked else 0
    return Shape(tokens, sequences, tokens * share // 256, batch.longest)


def on(device: torch.device, tensor: Tensor) -> Tensor:
    """`tensor` on `device`; to a GPU through page-locked memory, so that the host does not wait."""
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
    """[T] int64: place within its own sequence."""

    cu_seqlens: Tensor
    """[B+1] int32: where each sequence starts; the last entry is T."""

    max_seqlen: int
    """Length of the longest sequence."""

    masked_lm_positions: Tensor
    """[M] int64: places of the predicted tokens among the T tokens."""

    masked_lm_ids: Tensor
    """[M] int64: the original ids at these places."""

    next_sentence_label: Tensor
    """[B] int64: 0 is next, 1 random, -1 not asked (`NO_NEXT_SENTENCE`)."""

    bucket: "PackedBatch | None" = None
    """On a GPU: the batch with fillers; this one's tensors are views of the beginnings of its."""

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
    def lengths(self) -> npt.NDArray[np.int64]:
        """[B] int64 on the host. Waits for the device: for CPU attention and tests."""
        starts: npt.NDArray[np.int64] = self.cu_seqlens.cpu().numpy().astype(np.int64)
        return starts[1:] - starts[:-1]

    def filled(self) -> "PackedBatch":
        """The batch with fillers at its end that nothing is predicted of, T and M on the ladder.

        No sequence attends to another and fillers have no labels, so losses and gradients are those
        of the batch itself. `next_sentence_label` stays [B]. On a GPU it is the bucket that `to`
        made.
        """
        if self.input_ids.device.type != "cpu":
            return self.bucket or self
        tokens = ladder(self.tokens, rungs=CPU_RUNGS, step=CPU_TOKEN_STEP) - self.tokens
        masked = len(self.masked_lm_ids)
        unasked = ladder(masked, rungs=CPU_RUNGS, step=CPU_MASKED_STEP) - masked
        if not tokens and not unasked:
            return self
        ends = [*range(self.max_seqlen, tokens, self.max_seqlen), tokens] if tokens else []
        return self._with_fillers(ends, unasked)

    def bucketed(self) -> "PackedBatch":
        """The batch filled up to its `gpu_bucket`; `next_sentence_label` covers the fillers too.

        T grows by 5 % at most from 8,192 tokens on, by 2 % on average.
        """
        bucket = gpu_bucket(self.shape, longest=self.max_seqlen)
        fillers, tokens = bucket.sequences - self.sequences, bucket.tokens - self.tokens
        ends = [tokens * (filler + 1) // fillers for filler in range(fillers)]
        filled = self._with_fillers(ends, bucket.masked - len(self.masked_lm_ids))
        labels = functional.pad(self.next_sentence_label, (0, fillers), value=NO_NEXT_SENTENCE)
        return replace(filled, next_sentence_label=labels)

    def _with_fillers(self, ends: list[int], unasked: int) -> "PackedBatch":
        """Append fillers that end `ends` tokens after the batch, and `unasked` masked places.

        `next_sentence_label` stays [B].
        """
        lengths = np.diff(ends, prepend=0).astype(np.int64)
        tokens = int(lengths.sum())
        places = np.arange(tokens) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        return replace(
            self,
            input_ids=functional.pad(self.input_ids, (0, tokens), value=FILLER_ID),
            token_type_ids=functional.pad(self.token_type_ids, (0, tokens)),
            position_ids=torch.cat((self.position_ids, torch.from_numpy(places))),
            cu_seqlens=torch.cat(
                (self.cu_seqlens, torch.tensor(ends, dtype=torch.int32) + self.tokens)
            ),
            masked_lm_positions=functional.pad(self.masked_lm_positions, (0, unasked)),
            masked_lm_ids=functional.pad(self.masked_lm_ids, (0, unasked), value=NOT_ASKED),
        )

    def to(self, device: torch.device | str) -> "PackedBatch":
        """The batch with all its tensors `on` the device; on a GPU, as views of a bucket."""
        there = torch.device(device)
        if there.type == self.input_ids.device.type:
            return self
        if there.type == "cpu":
            return self._mapped(lambda tensor: tensor.to(there))
        bucket = self.bucketed()._mapped(lambda tensor: on(there, tensor))
        tokens, sequences, masked, _ = self.shape
        batch = PackedBatch(
            input_ids=bucket.input_ids[:tokens],
            token_type_ids=bucket.token_type_ids[:tokens],
            position_ids=bucket.position_ids[:tokens],
            cu_seqlens=bucket.cu_seqlens[: sequences + 1],
            max_seqlen=self.max_seqlen,
            masked_lm_positions=bucket.masked_lm_positions[:masked],
            masked_lm_ids=bucket.masked_lm_ids[:masked],
            next_sentence_label=bucket.next_sentence_label[:sequences],
            bucket=bucket,
        )
        vars(batch)["lengths"] = self.lengths  # known here; there one would wait for it
        return batch

    def cloned(self) -> "PackedBatch":
        """A copy with its own tensors, without the bucket."""
        return self._mapped(torch.clone)

    def tensors(self) -> list[Tensor]:
        """All of them, in the order of the fields."""
        return [value for value in vars(self).values() if isinstance(value, Tensor)]

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        """Keep the memory of all tensors until the work now queued on `stream` is done."""
        for tensor in self.tensors():
            tensor.record_stream(stream)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "PackedBatch":
        moved = PackedBatch(
            input_ids=change(self.input_ids),
            token_type_ids=change(self.token_type_ids),
            position_ids=change(self.position_ids),
            cu_seqlens=change(self.cu_seqlens),
            max_seqlen=self.max_seqlen,
            masked_lm_positions=change(self.masked_lm_positions),
            masked_lm_ids=change(self.masked_lm_ids),
            next_sentence_label=change(self.next_sentence_label),
        )
        if "lengths" in vars(self) or self.input_ids.device.type == "cpu":
            vars(moved)["lengths"] = self.lengths  # known here; there one would wait for it
        return moved


@dataclass(frozen=True)
class Example:
    """One sequence and what is predicted of it."""

    input_ids: Sequence[int]
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], without padding."""

    segment_a_length: int | None = None
    """Tokens of type 0, the others are of type 1; None: all are of type 0."""

    masked_lm_positions: Sequence[int] = ()
    """Places in `input_ids` that are predicted."""

    masked_lm_ids: Sequence[int] = ()
    """The original ids at these places."""

    next_sentence_label: int = NO_NEXT_SENTENCE
    """0 is next, 1 random, -1 not asked."""


def pack(examples: Sequence[Example]) -> PackedBatch:
    """The examples one after another, in their order."""
    lengths = np.array([len(example.input_ids) for example in examples], np.int64)
    if not len(lengths) or lengths.min() == 0:
        raise UsageError("cannot pack: no sequence, or one without tokens; expected at least [CLS]")
    starts = np.concatenate(([0], np.cumsum(lengths)))
    position_ids = np.arange(starts[-1]) - np.repeat(starts[:-1], lengths)
    segment_a = [
        length if example.segment_a_length is None else example.segment_a_length
        for example, length in zip(examples, lengths, strict=True)
    ]
    masked = [
        start + np.asarray(example.masked_lm_positions, np.int64)
        for example, start in zip(examples, starts, strict=False)
    ]
    return PackedBatch(
        input_ids=_joined([example.input_ids for example in examples]),
        token_type_ids=torch.from_numpy(
            (position_ids >= np.repeat(segment_a, lengths)).astype(np.int64)
        ),
        position_ids=torch.from_numpy(position_ids),
        cu_seqlens=torch.from_numpy(starts.astype(np.int32)),
        max_seqlen=int(lengths.max()),
        masked_lm_positions=_joined(masked),
        masked_lm_ids=_joined([example.masked_lm_ids for example in examples]),
        next_sentence_label=torch.tensor([example.next_sentence_label for example in examples]),
    )


def padded(packed_T: Tensor, batch: PackedBatch, *, fill: float = 0.0) -> Tensor:
    """[T, …] of packed tokens as [B, S, …], S the longest length; padding holds `fill`."""
    lengths = torch.from_numpy(batch.lengths)
    shape = (batch.sequences, batch.max_seqlen, *packed_T.shape[1:])
    result = packed_T.new_full(shape, fill)
    inside = torch.arange(batch.max_seqlen)[None] < lengths[:, None]
    result[inside.to(packed_T.device)] = packed_T
    return result


def _joined(parts: Sequence[Sequence[int] | npt.NDArray[np.int64]]) -> Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(part, np.int64) for part in parts]))
