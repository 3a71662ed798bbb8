"""What the encoder reads: sequences of any length, one after another, without padding.

In:  arrays of the examples of one micro-batch.
Out: `PackedBatch`, on any device.

No FLOP is spent on padding; attention finds the sequences through `cu_seqlens`.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# B sequences, T tokens of all sequences together, M masked tokens of all sequences together

NO_NEXT_SENTENCE = -1
"""`next_sentence_label` of a sequence that is not asked: it has no second segment."""


@dataclass(frozen=True)
class PackedBatch:
    """One micro-batch. Tensors that a task does not need may be empty (`masked_lm_positions` …)."""

    input_ids: Tensor
    """[T] int64: word-piece ids."""

    token_type_ids: Tensor
    """[T] int64: 0 for the first segment, 1 for the second."""

    position_ids: Tensor
    """[T] int64: place inside the own sequence."""

    cu_seqlens: Tensor
    """[B+1] int32: where each sequence starts; the last entry is T."""

    max_seqlen: int
    """Length of the longest sequence."""

    masked_lm_positions: Tensor
    """[M] int64: places of the predicted tokens in the T tokens."""

    masked_lm_ids: Tensor
    """[M] int64: the ids that stood there."""

    next_sentence_label: Tensor
    """[B] int64: 0 is next, 1 random, -1 not asked (`NO_NEXT_SENTENCE`)."""

    @property
    def sequences(self) -> int:
        """B."""
        return self.cu_seqlens.shape[0] - 1

    @property
    def tokens(self) -> int:
        """T."""
        return self.input_ids.shape[0]

    @cached_property
    def lengths(self) -> npt.NDArray[np.int64]:
        """[B] int64 on the host. Waits for the device: for CPU attention and tests."""
        starts: npt.NDArray[np.int64] = self.cu_seqlens.cpu().numpy().astype(np.int64)
        return starts[1:] - starts[:-1]

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "PackedBatch":
        """The batch with all its tensors on `device`."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "PackedBatch":
        """The batch in page-locked memory, from where copies to a GPU can overlap with compute."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "PackedBatch":
        tensors: dict[str, Any] = {
            field.name: change(value)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, **tensors)
