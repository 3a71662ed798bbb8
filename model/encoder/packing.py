"""From single sequences to a packed batch, and from packed tokens to a padded tensor.

In:  lists of ids; hidden states of packed tokens.
Out: `PackedBatch`; `[B, S, …]` with padding.

For inference, tasks and tests. Training builds its batches straight from Arrow columns.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from artifacts.errors import UsageError
from model.encoder.batch import NO_NEXT_SENTENCE, PackedBatch


@dataclass(frozen=True)
class Example:
    """One sequence and what is asked of it."""

    input_ids: Sequence[int]
    """[CLS] A [SEP] or [CLS] A [SEP] B [SEP], without padding."""

    segment_a_length: int | None = None
    """Tokens of type 0, the others are of type 1; None: all are of type 0."""

    masked_lm_positions: Sequence[int] = ()
    """Places in `input_ids` that are predicted."""

    masked_lm_ids: Sequence[int] = ()
    """The ids that belong there."""

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
