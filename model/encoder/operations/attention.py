"""Which attention runs.

In:  a name, or `auto`; the device and type of the parameters.
Out: a backend: `attend = backend(batch, config)`; `attend(parts_T3AK, noise) -> context_TAK`.

No token sees another sequence. The backend in use is reported by name; asking for one that is not
there is an error, never a silent replacement. The two for CUDA are here: both read the packed
tokens where they are; nothing is padded. The one for CPUs is in grouped_attention.py.
"""

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor
from torch.nn import functional

from artifacts.errors import UsageError
from model.config import EncoderConfig
from model.data.batch import PackedBatch
from model.encoder.operations.dropout import Noise
from model.encoder.operations.grouped_attention import GroupedAttention

# T tokens of all sequences together, A heads, K width of one head

Attend = Callable[[Tensor, Noise | None], Tensor]
"""Query, key and value [T, 3, A, K] → context vectors [T, A, K]; dropout if there is noise."""


HEAD_MULTIPLE = 8
"""Of a head's width, K, in CUDA's kernels; other heads are filled up with zeros."""


class FlashAttention:
    """FlashAttention with dropout inside the kernel: what the paper's 0.1 needs."""

    def __init__(
        self, batch: PackedBatch, config: EncoderConfig, *, reach: int | None = None
    ) -> None:
        """`reach`: how many places away a key may be at most; None: anywhere."""
        self.dropout_prob = config.attention_probs_dropout_prob
        self.cu_seqlens = batch.cu_seqlens
        # A bound is enough for the kernel; few different ones keep compiled layers compiled.
        self.max_seqlen = 1 << (batch.max_seqlen - 1).bit_length()
        self.is_causal = config.attention_direction != "bidirectional"
        self.reversal = reversal(batch) if config.attention_direction == "right_to_left" else None
        self.reach = reach
        self.width = config.hidden_size // config.num_attention_heads

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        if self.reversal is not None:
            parts_T3AK = parts_T3AK[self.reversal]
        missing = -self.width % HEAD_MULTIPLE
        if missing:  # zeros change no score, and nothing reads what becomes of them
            parts_T3AK = functional.pad(parts_T3AK, (0, missing))
        query_TAK, key_TAK, value_TAK = parts_T3AK.unbind(1)
        dropout_prob = self.dropout_prob if noise else 0.0
        context_TAK = self.attend(query_TAK, key_TAK, value_TAK, dropout_prob)
        if missing:
            context_TAK = context_TAK[..., : self.width]
        return context_TAK if self.reversal is None else context_TAK[self.reversal]

    def attend(
        self, query_TAK: Tensor, key_TAK: Tensor, value_TAK: Tensor, dropout_prob: float
    ) -> Tensor:
        """One-sided attention looks to the left."""
        context_TAK: Tensor = torch.ops.aten._flash_attention_forward(
            query_TAK,
            key_TAK,
            value_TAK,
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            dropout_prob,
            self.is_causal,
            False,
            scale=self.width**-0.5,
            window_size_left=self.reach,
            window_size_right=self.reach,
        )[0]
        return context_TAK


class VarlenAttention(FlashAttention):
    """torch.nn.attention.varlen: public and newer kernels, but without dropout."""

    def __init__(
        self, batch: PackedBatch, config: EncoderConfig, *, reach: int | None = None
    ) -> None:
        super().__init__(batch, config, reach=reach)
        # Not above: it brings torch's compiler, which takes half of a program's start to import.
        from torch.nn.attention.varlen import varlen_attn

        self.varlen_attn = varlen_attn

    def attend(
        self, query_TAK: Tensor, key_TAK: Tensor, value_TAK: Tensor, dropout_prob: float
    ) -> Tensor:
        """One-sided attention looks to the left."""
        if dropout_prob:
            raise UsageError(
                "attention backend varlen has no dropout, but encoder.attention_probs_dropout_prob "
                f"is {dropout_prob}; use the backend flash, or set it to 0"
            )
        reach = -1 if self.reach is None else self.reach
        context_TAK = self.varlen_attn(
            query_TAK,
            key_TAK,
            value_TAK,
            self.cu_seqlens,
            self.cu_seqlens,
            self.max_seqlen,
            self.max_seqlen,
            scale=self.width**-0.5,
            window_size=(reach, 0 if self.is_causal else reach),
        )
        return cast(Tensor, context_TAK)


def reversal(batch: PackedBatch) -> Tensor:
    """[T] int64: the place that each token takes when every sequence is read backwards."""
    places = torch.arange(batch.tokens, device=batch.input_ids.device)
    starts = batch.cu_seqlens.long()
    sequence = torch.searchsorted(starts[1:], places, right=True)
    return starts[sequence] + starts[sequence + 1] - 1 - places


BACKENDS: dict[str, Callable[[PackedBatch, EncoderConfig], Attend]] = {
    "grouped": GroupedAttention,
    "flash": FlashAttention,
    "varlen": VarlenAttention,
}
"""grouped: any device and type, plain matrix products. flash: CUDA, dropout inside the kernel.
varlen: CUDA, torch.nn.attention.varlen, which has no dropout."""


def backend_name(wanted: str, *, device: torch.device, dtype: torch.dtype) -> str:
    """The backend that runs there; `auto` is what measures fastest."""
    has_kernels = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)
    if wanted == "auto":
        return "flash" if has_kernels else "grouped"
    if wanted not in BACKENDS:
        raise UsageError(f"attention backend {wanted}: unknown; known are {', '.join(BACKENDS)}")
    if wanted != "grouped" and not has_kernels:
        raise UsageError(
            f"attention backend {wanted} wants bfloat16 on a CUDA device, the encoder is {dtype} "
            f"on {device.type}; use auto or grouped"
        )
    return wanted
