"""The attentions of a modern encoder's layers: rotary positions, whole sequences or windows.

In:  query, key, value of all tokens, [T, 3, A, K].
Out: context vectors, [T, A, K].

A rotated query and key know how far apart they are (RoPE; Su et al. 2021), so there is no table of
positions.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from model.config import EncoderConfig
from model.data.batch import PackedBatch
from model.encoder.operations.attention import BACKENDS, Attend, FlashAttention, VarlenAttention
from model.encoder.operations.block_attention import BlockAttention
from model.encoder.operations.dropout import Noise
from model.encoder.operations.grouped_attention import GroupedAttention
from model.encoder.operations.products import wide

# T tokens of all sequences together, A heads, K width of one head

LONG = 1024
"""Tokens from which on a sequence is worth operations of its own."""


class LayerAttention(NamedTuple):
    """The attentions of one batch."""

    full: Attend
    """Every token sees its whole sequence."""

    local: Attend
    """Every token sees its neighbours, `local_attention / 2` to each side."""


def layer_attention(batch: PackedBatch, config: EncoderConfig, *, backend: str) -> LayerAttention:
    """Both kinds for one batch, with the rotations of each where positions are rotations."""
    full, local = BACKENDS[backend](batch, config), WINDOWS[backend](batch, config)
    if backend == "grouped" and is_long(batch):
        full = LongAttention(batch, config)
    if config.positions != "learned":
        full = RotaryAttention(full, batch, config, config.global_rope_theta)
        local = RotaryAttention(local, batch, config, config.local_rope_theta)
    if backend == "grouped" and batch.input_ids.device.type == "cpu":
        full = FusedAttention(full, batch, config)
        local = FusedAttention(local, batch, config, reach=config.local_attention // 2)
    return LayerAttention(full, local)


class FusedAttention:
    """An attention by the kernel, rotations included; without dropout."""

    def __init__(
        self,
        otherwise: Attend,
        batch: PackedBatch,
        config: EncoderConfig,
        *,
        reach: int | None = None,
    ) -> None:
        """`otherwise`: the same for vectors that the kernel does not take."""
        self.otherwise = otherwise
        rotation = None
        if isinstance(otherwise, RotaryAttention):
            rotation = (otherwise.cosine, otherwise.sine)
        self.grouped = GroupedAttention(batch, config, reach=reach, rotation=rotation)

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        if self.grouped.kernel(parts_T3AK) is None:
            return self.otherwise(parts_T3AK, noise)
        return self.grouped(parts_T3AK, None)


class RotaryAttention:
    """An attention whose queries and keys are rotated by their places in their sequences."""

    def __init__(
        self, attend: Attend, batch: PackedBatch, config: EncoderConfig, theta: float
    ) -> None:
        self.attend = attend
        width = config.hidden_size // config.num_attention_heads
        pairs = torch.arange(0, width, 2, dtype=torch.float, device=batch.position_ids.device)
        angles = batch.position_ids.float()[:, None] * (1.0 / theta ** (pairs / width))
        self.cosine, self.sine = angles.cos(), angles.sin()

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        return self.attend(rotated(parts_T3AK, self.cosine, self.sine), noise)


def rotated(parts_T3AK: Tensor, cosine_TK: Tensor, sine_TK: Tensor) -> Tensor:
    """Queries and keys turned by each token's angles, one for each of K / 2 pairs; [T, 3, A, K]."""
    first, second = wide(parts_T3AK[:, :2]).chunk(2, dim=-1)
    cosine, sine = cosine_TK[:, None, None], sine_TK[:, None, None]
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    turned_T2AK = torch.cat(turned, dim=-1).to(parts_T3AK.dtype)
    return torch.cat((turned_T2AK, parts_T3AK[:, 2:]), dim=1)


def is_long(batch: PackedBatch) -> bool:
    """Whether most of attention's work is in long sequences, and these are on a CPU."""
    squares = batch.lengths**2
    on_cpu = batch.input_ids.device.type == "cpu"
    return on_cpu and bool(2 * squares[batch.lengths >= LONG].sum() > squares.sum())


class LongAttention:
    """Whole long sequences on a CPU, one at a time; without dropout.

    The scores of 8,192 tokens are 256 MB a head in float32. Neither the compiled kernel nor torch's
    own fused attention, which takes its place without a compiler, has them in memory.
    """

    def __init__(self, batch: PackedBatch, config: EncoderConfig) -> None:
        self.lengths: list[int] = batch.lengths.tolist()

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        contexts = []
        for parts_S3AK in torch.split(parts_T3AK, self.lengths):
            parts_31ASK = parts_S3AK.permute(1, 2, 0, 3).unsqueeze(1)
            context_1ASK = functional.scaled_dot_product_attention(*parts_31ASK)
            contexts.append(context_1ASK[0].transpose(0, 1))
        return torch.cat(contexts)


WINDOWS: dict[str, Callable[[PackedBatch, EncoderConfig], Attend]] = {
    "grouped": BlockAttention,
    "flash": lambda batch, config: FlashAttention(batch, config, reach=config.local_attention // 2),
    "varlen": lambda batch, config: VarlenAttention(
        batch, config, reach=config.local_attention // 2
    ),
}
"""Local attention of each backend; on CUDA the kernels have windows of their own."""
