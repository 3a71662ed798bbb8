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

from model.config import EncoderConfig
from model.data.batch import PackedBatch
from model.encoder.operations.attention import BACKENDS, Attend, FlashAttention, VarlenAttention
from model.encoder.operations.block_attention import BlockAttention
from model.encoder.operations.dropout import Noise
from model.encoder.operations.grouped_attention import SHORT, GroupedAttention
from model.encoder.operations.long_attention import LongAttention, is_long
from model.encoder.operations.native_kernels import kernels, kernels_for
from model.encoder.operations.products import Context, apply, wide

# T tokens of all sequences together, A heads, K width of one head


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
    if config.positions == "learned":
        return LayerAttention(full, local)
    return LayerAttention(
        RotaryAttention(full, batch, config, config.global_rope_theta),
        RotaryAttention(local, batch, config, config.local_rope_theta),
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
        self.cosine, self.sine = angles.cos(), angles.sin()

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        return self.attend(rotated(parts_T3AK, self.cosine, self.sine), noise)


def rotated(parts_T3AK: Tensor, cosine_TK: Tensor, sine_TK: Tensor) -> Tensor:
    """Queries and keys turned by each token's angles, one for each of K / 2 pairs; [T, 3, A, K]."""
    if kernels_for(parts_T3AK) is not None:
        return apply(_Rotation, parts_T3AK, cosine_TK, sine_TK)
    first, second = wide(parts_T3AK[:, :2]).chunk(2, dim=-1)
    cosine, sine = cosine_TK[:, None, None], sine_TK[:, None, None]
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    turned_T2AK = torch.cat(turned, dim=-1).to(parts_T3AK.dtype)
    return torch.cat((turned_T2AK, parts_T3AK[:, 2:]), dim=1)


class _Rotation(torch.autograd.Function):
    """Native; the way back turns the other way."""

    @staticmethod
    def forward(ctx: Context, parts_T3AK: Tensor, cosine_TK: Tensor, sine_TK: Tensor) -> Tensor:
        ctx.save_for_backward(cosine_TK, sine_TK)
        return _turn(parts_T3AK, cosine_TK, sine_TK)

    @staticmethod
    def backward(ctx: Context, gradient_T3AK: Tensor) -> tuple[Tensor, None, None]:
        cosine_TK, sine_TK = ctx.saved_tensors
        return _turn(gradient_T3AK, cosine_TK, -sine_TK), None, None


def _turn(parts_T3AK: Tensor, cosine_TK: Tensor, sine_TK: Tensor) -> Tensor:
    native = kernels_for(parts_T3AK)
    assert native is not None
    tokens, _, heads, width = parts_T3AK.shape
    parts_T3AK = parts_T3AK.contiguous()
    result_T3AK = torch.empty_like(parts_T3AK)
    native("rotate", tokens, heads, width, parts_T3AK, cosine_TK, sine_TK, result_T3AK)
    return result_T3AK


def _flash_window(batch: PackedBatch, config: EncoderConfig) -> Attend:
    return FlashAttention(batch, config, reach=config.local_attention // 2)


def _varlen_window(batch: PackedBatch, config: EncoderConfig) -> Attend:
    return VarlenAttention(batch, config, reach=config.local_attention // 2)


def _window(batch: PackedBatch, config: EncoderConfig) -> Attend:
    width = config.hidden_size // config.num_attention_heads
    native = batch.input_ids.device.type == "cpu" and kernels() is not None
    if native and max(*batch.lengths.tolist(), width) <= SHORT:
        return GroupedAttention(batch, config, reach=config.local_attention // 2)
    return BlockAttention(batch, config)


WINDOWS: dict[str, Callable[[PackedBatch, EncoderConfig], Attend]] = {
    "grouped": _window,
    "flash": _flash_window,
    "varlen": _varlen_window,
}
"""Local attention of each backend; on CUDA the kernels have windows of their own."""
