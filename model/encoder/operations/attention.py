"""The attention backends, and the attention of each layer of a modern encoder.

In:  a backend's name, or `auto`; the device and dtype of the parameters; a packed batch.
Out: attention functions of the batch: `attend(parts_T3AK, noise) -> context_TAK`.

Sequences never attend to one another. The log names the backend in use; requesting one that is not
available is an error, never a silent fallback. The two CUDA backends are here; they read the packed
tokens in place, without padding. The CPU backend is in grouped_attention.py; its forms for windows
and for long sequences, which differ from it where there is no compiled kernel, are here.
"""

import math
from collections.abc import Callable
from functools import cached_property
from typing import Literal, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.errors import UsageError
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import PackedBatch, on
from cloze.model.encoder.operations.dropout import Draws, Noise
from cloze.model.encoder.operations.grouped_attention import (
    Attend,
    GroupedAttention,
    Kept,
    angles,
    rotated,
    scaled_product,
)

# T tokens of all sequences, A heads, K width of a head. Block attention: M blocks per head, N over
# all heads, Q queries and S keys of a block, R rows of all heads

HEAD_MULTIPLE = 8
"""CUDA kernels need head widths that are multiples of this; other heads are zero-padded."""

BLOCK = 128
"""Q: with a window of 64 to each side, half of a block's 256 keys are visible to each query."""

Attention = Literal["auto", "grouped", "flash", "varlen"]
"""Names of the backends, see `BACKENDS`."""

LONG = 1024
"""Length from which a sequence is processed on its own."""


def layer_attention(batch: PackedBatch, config: EncoderConfig, *, backend: str) -> list[Attend]:
    """The attention of each layer of a modern encoder over one batch.

    In every `global_attn_every_n_layers`-th layer, from the first, every token sees its whole
    sequence; in the others `local_attention / 2` neighbours to each side. Positions are rotary
    unless they are learned.
    """
    # Only on a CPU without the kernel do layers need other forms; CUDA's kernels do both.
    full_kind = local_kind = BACKENDS[backend]
    if backend == "grouped":
        local_kind = BlockAttention
        full_kind = LongAttention if is_long(batch) else full_kind
    full = full_kind(batch, config, theta=config.global_rope_theta)
    reach = config.local_attention // 2
    local = local_kind(batch, config, reach=reach, theta=config.local_rope_theta)
    every = config.global_attn_every_n_layers
    return [local if number % every else full for number in range(config.num_hidden_layers)]


class FlashAttention:
    """FlashAttention, with dropout inside the kernel."""

    def __init__(
        self,
        batch: PackedBatch,
        config: EncoderConfig,
        *,
        reach: int | None = None,
        theta: float | None = None,
    ) -> None:
        """`reach`: maximum distance between a query and its keys; `theta`: as in `angles`."""
        self.dropout_prob = config.attention_probs_dropout_prob
        self.cu_seqlens = batch.cu_seqlens
        # An upper bound is enough; rounding it up avoids recompiling the layers.
        self.max_seqlen = 1 << (batch.max_seqlen - 1).bit_length()
        self.is_causal = config.attention_direction != "bidirectional"
        self.reversal = batch.reversal() if config.attention_direction == "right_to_left" else None
        self.reach = reach
        self.cosine, self.sine = angles(batch, config, theta)
        self.width = config.hidden_size // config.num_attention_heads

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        parts_T3AK = rotated(parts_T3AK, self.cosine, self.sine)
        # Right to left is left to right over reversed sequences. The permutation is its own
        # inverse, so it also turns the result back.
        if self.reversal is not None:
            parts_T3AK = parts_T3AK[self.reversal]
        missing = -self.width % HEAD_MULTIPLE
        if missing:  # zeros leave the scores unchanged; the extra outputs are dropped
            parts_T3AK = functional.pad(parts_T3AK, (0, missing))
        context_TAK = self.attend(parts_T3AK, self.dropout_prob if noise else 0.0)
        if missing:
            context_TAK = context_TAK[..., : self.width]
        return context_TAK if self.reversal is None else context_TAK[self.reversal]

    def attend(self, parts_T3AK: Tensor, dropout_prob: float) -> Tensor:
        """Context vectors, [T, A, K]; one-sided attention sees the tokens to the left."""
        context_TAK: Tensor = torch.ops.aten._flash_attention_forward(
            *parts_T3AK.unbind(1),
            *(self.cu_seqlens, self.cu_seqlens, self.max_seqlen, self.max_seqlen),
            *(dropout_prob, self.is_causal, False),
            scale=self.width**-0.5,
            # None stands for no limit here, -1 in the public function below.
            window_size_left=self.reach,
            window_size_right=self.reach,
        )[0]
        return context_TAK


class VarlenAttention(FlashAttention):
    """torch.nn.attention.varlen: a public API with newer kernels, but without dropout."""

    def __init__(
        self,
        batch: PackedBatch,
        config: EncoderConfig,
        *,
        reach: int | None = None,
        theta: float | None = None,
    ) -> None:
        super().__init__(batch, config, reach=reach, theta=theta)
        # Imported here: it pulls in torch's compiler, half of the start-up time of a program, which
        # must not meet an import in a function that it compiles.
        from torch.nn.attention.varlen import varlen_attn

        self.varlen_attn = varlen_attn

    def attend(self, parts_T3AK: Tensor, dropout_prob: float) -> Tensor:
        """Context vectors, [T, A, K]; one-sided attention sees the tokens to the left."""
        if dropout_prob:
            raise UsageError(
                "attention backend varlen does not support dropout, but "
                f"encoder.attention_probs_dropout_prob is {dropout_prob}; use the backend flash, "
                "or set it to 0"
            )
        # -1 is no limit; the second number is how far to the right.
        reach = -1 if self.reach is None else self.reach
        query_TAK, key_TAK, value_TAK = parts_T3AK.unbind(1)
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


class BlockAttention(GroupedAttention):
    """Local attention. Without the kernel, blocks of queries meet the keys they may see.

    The packed tokens form one row, cut into blocks regardless of sequence boundaries; the softmax
    of a query covers its own range of its block's keys. The work thus grows linearly with the
    tokens, and only the ends are padded. The heads are laid end to end, so that the overlapping
    blocks of keys are a single strided view; a few blocks between two heads are wasted. No dropout.
    """

    def __init__(
        self, batch: PackedBatch, config: EncoderConfig, *, reach: int, theta: float | None = None
    ) -> None:
        super().__init__(batch, config, reach=reach, theta=theta)
        self.reach = reach
        # A block's queries see the tokens from `reach` before its first to `reach` after its last,
        # Q + 2 reach: that many blocks of keys more than its own. As many empty ones separate the
        # heads.
        self.behind = -(-2 * reach // BLOCK)
        self.blocks = -(-batch.tokens // BLOCK) + self.behind

    @cached_property
    def seen_2MQ(self) -> Tensor:
        """[2, M, Q]: the range of its block's keys that each query sees, as start and stop."""
        ends = np.cumsum(self.lengths)
        starts = np.repeat(ends - self.lengths, self.lengths)
        place = np.arange(ends[-1])
        # The rows of the tokens are shifted by `reach`, so a block's keys start before its queries.
        first = self.reach - place // BLOCK * BLOCK
        stop = np.minimum(place + self.reach + 1, np.repeat(ends, self.lengths))
        seen = (np.maximum(place - self.reach, starts), stop)
        padding = self.blocks * BLOCK - len(place)
        return torch.from_numpy(np.stack([np.pad(at + first, (0, padding)) for at in seen]))

    def torch_forward(self, parts_T3AK: Tensor, draws: Draws | None) -> tuple[Tensor, Kept]:
        """Context vectors, [T, A, K]; saved: rows [3, R, K] and probabilities [N, Q, S]."""
        tokens, _, heads, width = parts_T3AK.shape
        count = heads * self.blocks
        # Row r of a head holds token r - reach, so that the keys of block m begin at row m Q.
        rows_3RK = parts_T3AK.new_zeros(3, (count + self.behind) * BLOCK, width)
        of_heads = rows_3RK[:, : count * BLOCK].view(3, heads, -1, width)
        of_heads[:, :, self.reach : self.reach + tokens] = parts_T3AK.permute(1, 2, 0, 3)
        query_NQK, key_NSK, value_NSK = self._blocks(rows_3RK)
        scores_NQS = scaled_product(query_NQK, key_NSK.mT, 1 / math.sqrt(width))
        keys, device = key_NSK.shape[1], parts_T3AK.device
        places = torch.arange(keys, device=device)
        first, stop = on(device, self.seen_2MQ[:, :, None])
        # [1, M, Q, S], the same for all heads: True where the key is out of the query's range
        hidden = ((places < first) | (places >= stop)).view(1, -1, BLOCK, keys)
        by_head = scores_NQS.view(heads, -1, BLOCK, keys)
        weights = by_head.masked_fill(hidden, -torch.inf).softmax(-1)
        weights_NQS = weights.masked_fill(hidden, 0.0).view_as(scores_NQS)  # padding sees no key
        context_AMK = torch.bmm(weights_NQS, value_NSK).view(heads, -1, width)
        context_TAK = context_AMK[:, :tokens].transpose(0, 1).contiguous()
        return context_TAK, (rows_3RK, weights_NQS)

    def torch_backward(self, gradient_TAK: Tensor, kept: Kept, draws: Draws | None) -> Tensor:
        """Gradient of query, key and value, [T, 3, A, K]."""
        rows_3RK, weights_NQS = kept
        tokens, heads, width = gradient_TAK.shape
        gradient_AMK = gradient_TAK.new_zeros(heads, self.blocks * BLOCK, width)
        gradient_AMK[:, :tokens] = gradient_TAK.transpose(0, 1)
        gradient_NQK = gradient_AMK.view(-1, BLOCK, width)
        query_NQK, key_NSK, value_NSK = self._blocks(rows_3RK)
        dscores_NQS = torch.bmm(gradient_NQK, value_NSK.mT)
        dscores_NQS = torch._softmax_backward_data(dscores_NQS, weights_NQS, -1, weights_NQS.dtype)
        factor = 1 / math.sqrt(width)
        dparts_T3AK = gradient_TAK.new_empty(tokens, 3, heads, width)
        # Part 0 is the query's gradient, whose rows start at token 0. Keys and values are seen from
        # several blocks, whose contributions are added up, and start `reach` rows later.
        for part, rows_RK in enumerate(
            (
                scaled_product(dscores_NQS, key_NSK, factor).view(-1, width),
                self._added(scaled_product(dscores_NQS.mT, query_NQK, factor)),
                self._added(torch.bmm(weights_NQS.mT, gradient_NQK)),
            )
        ):
            of_heads = rows_RK[: heads * self.blocks * BLOCK].view(heads, -1, width)
            first = self.reach if part else 0
            dparts_T3AK[:, part] = of_heads[:, first : first + tokens].transpose(0, 1)
        return dparts_T3AK

    def _blocks(self, rows_3RK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries [N, Q, K], keys and values [N, S, K], without a copy."""
        query_RK, key_RK, value_RK = rows_3RK
        # Queries begin `reach` rows into their head, keys at its first row; the end is cut off so
        # that a whole number of blocks remains. `unfold` puts the keys of a window last, hence the
        # transposition.
        end = len(query_RK) - self.behind * BLOCK + self.reach
        query_NQK = query_RK[self.reach : end].view(-1, BLOCK, query_RK.shape[1])
        keys = (self.behind + 1) * BLOCK
        key_NSK, value_NSK = (part.unfold(0, keys, BLOCK).mT for part in (key_RK, value_RK))
        return query_NQK, key_NSK, value_NSK

    def _added(self, blocks_NSK: Tensor) -> Tensor:
        """[R, K]: the sum of the overlapping blocks."""
        count, _, width = blocks_NSK.shape
        # Block n covers rows n, n + 1, … of blocks, so its p-th part is added to row n + p.
        parts = blocks_NSK.view(count, -1, BLOCK, width).unbind(1)
        rows = blocks_NSK.new_zeros(count + self.behind, BLOCK, width)
        for shift, part in enumerate(parts):
            rows[shift : shift + count] += part
        return rows.view(-1, width)


def is_long(batch: PackedBatch) -> bool:
    """Whether the batch is on a CPU and long sequences account for most of its attention work."""
    squares = batch.lengths**2
    on_cpu = batch.input_ids.device.type == "cpu"
    return on_cpu and bool(2 * squares[batch.lengths >= LONG].sum() > squares.sum())


class LongAttention(GroupedAttention):
    """Attention over whole sequences. Without the kernel, one at a time and without dropout.

    The scores of 8,192 tokens would take 256 MB per head in float32; torch's fused attention never
    stores them.
    """

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        if self.kernel(parts_T3AK) is not None:
            return super().__call__(parts_T3AK, noise)
        parts_T3AK = rotated(parts_T3AK, self.cosine, self.sine)
        contexts = []
        for parts_S3AK in torch.split(parts_T3AK, self.lengths.tolist()):
            # [3, 1, A, S, K], as torch's attention expects: a batch of one
            parts_31ASK = parts_S3AK.permute(1, 2, 0, 3).unsqueeze(1)
            context_1ASK = functional.scaled_dot_product_attention(*parts_31ASK)
            contexts.append(context_1ASK[0].transpose(0, 1))
        return torch.cat(contexts)


BACKENDS: dict[str, Callable[..., Attend]] = {
    "grouped": GroupedAttention,
    "flash": FlashAttention,
    "varlen": VarlenAttention,
}
"""Attention of a batch, optionally limited to a `reach`. grouped: any device and dtype. flash:
CUDA, with dropout. varlen: CUDA, without dropout."""


def backend_name(wanted: str, *, device: torch.device, dtype: torch.dtype) -> str:
    """The backend to use; `auto` is the one that measures fastest."""
    has_kernels = device.type == "cuda" and dtype in (torch.float16, torch.bfloat16)
    if wanted == "auto":
        return "flash" if has_kernels else "grouped"
    if wanted not in BACKENDS:
        raise UsageError(f"attention backend {wanted}: unknown; known are {', '.join(BACKENDS)}")
    if wanted != "grouped" and not has_kernels:
        raise UsageError(
            f"attention backend {wanted} requires bfloat16 on a CUDA device, but the encoder is "
            f"{dtype} on {device.type}; use auto or grouped"
        )
    return wanted
