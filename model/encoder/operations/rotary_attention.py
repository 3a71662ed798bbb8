"""The attentions of a modern encoder's layers: rotary positions, whole sequences or windows.

In:  query, key, value of all tokens, [T, 3, A, K].
Out: context vectors, [T, A, K].

A rotated query and key know how far apart they are (RoPE; Su et al. 2021), so there is no table of
positions. The packed tokens are one row here: attention in windows is made of blocks of it, without
looking where the sequences begin, and a mask keeps them apart. Its work grows with the tokens and
not with their square, and nothing is padded but the last block.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model.config import EncoderConfig
from model.data.batch import PackedBatch, on
from model.encoder.operations.attention import BACKENDS, Attend, FlashAttention, VarlenAttention
from model.encoder.operations.dropout import Noise
from model.encoder.operations.products import wide

# T tokens of all sequences together, A heads, K width of one head, N blocks of Q queries and S keys

BLOCK = 128
"""Queries that share their keys: with a reach of 64 half of the 256 keys are each one's own."""


class LayerAttention(NamedTuple):
    """The attentions of one batch."""

    full: Attend
    """Every token sees its whole sequence."""

    local: Attend
    """Every token sees its neighbours, `local_attention / 2` to each side."""


def layer_attention(batch: PackedBatch, config: EncoderConfig, *, backend: str) -> LayerAttention:
    """Both kinds for one batch, with the rotations of each."""
    return LayerAttention(
        RotaryAttention(BACKENDS[backend](batch, config), batch, config, config.global_rope_theta),
        RotaryAttention(WINDOWS[backend](batch, config), batch, config, config.local_rope_theta),
    )


class RotaryAttention:
    """An attention whose queries and keys are rotated by their places in their sequences."""

    def __init__(
        self, attend: Attend, batch: PackedBatch, config: EncoderConfig, theta: float
    ) -> None:
        self.attend = attend
        width = config.hidden_size // config.num_attention_heads
        pairs = torch.arange(0, width, 2, dtype=torch.float, device=batch.position_ids.device)
        angles = batch.position_ids.float()[:, None] * (1.0 / theta ** (pairs / width))
        self.cosine, self.sine = angles.cos()[:, None, None], angles.sin()[:, None, None]

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        first, second = wide(parts_T3AK[:, :2]).chunk(2, dim=-1)
        turned = (
            first * self.cosine - second * self.sine,
            second * self.cosine + first * self.sine,
        )
        turned_T2AK = torch.cat(turned, dim=-1).to(parts_T3AK.dtype)
        return self.attend(torch.cat((turned_T2AK, parts_T3AK[:, 2:]), dim=1), noise)


class BlockAttention:
    """Windows as blocks of queries, each against the keys that any of them may see."""

    def __init__(self, batch: PackedBatch, config: EncoderConfig) -> None:
        self.reach = config.local_attention // 2
        self.blocks = -(-batch.tokens // BLOCK)
        # Fillers of the last block are a sequence of their own; before and behind is none.
        missing = self.blocks * BLOCK - batch.tokens
        sequence = np.repeat(np.arange(batch.sequences), batch.lengths)
        sequence = np.pad(sequence, (0, missing), constant_values=-1)
        around = torch.from_numpy(np.pad(sequence, self.reach, constant_values=-2))
        of_keys_NS = around.unfold(0, BLOCK + 2 * self.reach, BLOCK)
        of_queries_NQ = torch.from_numpy(sequence).view(self.blocks, BLOCK)
        distance_QS = torch.arange(BLOCK + 2 * self.reach) - torch.arange(BLOCK)[:, None]
        near_QS = (distance_QS >= 0) & (distance_QS <= 2 * self.reach)
        visible_NQS = near_QS & (of_queries_NQ[:, :, None] == of_keys_NS[:, None, :])
        self.visible_N1QS = on(batch.input_ids.device, visible_NQS[:, None])

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]; without dropout."""
        tokens, _, heads, width = parts_T3AK.shape
        missing = self.blocks * BLOCK - tokens
        query, key, value = functional.pad(
            parts_T3AK, (0, 0, 0, 0, 0, 0, self.reach, missing + self.reach)
        ).unbind(1)
        query_NQAK = query[self.reach : -self.reach].view(self.blocks, BLOCK, heads, width)
        key_NASK, value_NASK = (
            part.unfold(0, BLOCK + 2 * self.reach, BLOCK).mT for part in (key, value)
        )
        context_NAQK = functional.scaled_dot_product_attention(
            query_NQAK.transpose(1, 2), key_NASK, value_NASK, attn_mask=self.visible_N1QS
        )
        return context_NAQK.transpose(1, 2).reshape(-1, heads, width)[:tokens]


def _flash_window(batch: PackedBatch, config: EncoderConfig) -> Attend:
    return FlashAttention(batch, config, reach=config.local_attention // 2)


def _varlen_window(batch: PackedBatch, config: EncoderConfig) -> Attend:
    return VarlenAttention(batch, config, reach=config.local_attention // 2)


WINDOWS: dict[str, Callable[[PackedBatch, EncoderConfig], Attend]] = {
    "grouped": BlockAttention,
    "flash": _flash_window,
    "varlen": _varlen_window,
}
"""Local attention of each backend; on CUDA the kernels have windows of their own."""
