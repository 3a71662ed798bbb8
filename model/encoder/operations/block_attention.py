"""Attention in windows on a CPU: blocks of queries, each against the keys any of them may see.

In:  query, key, value of all tokens, [T, 3, A, K].
Out: context vectors, [T, A, K]; on the way back the gradient of the first from that of the second.

The packed tokens are one row, cut without looking where the sequences begin: what a query sees is a
range of its block's keys, and softmax has no other. So the work grows with the tokens and not with
their square, and nothing is padded but the ends. All heads lie one behind the other, so that blocks
of keys, which overlap, are one view with one stride; a few blocks between two heads are wasted.
The compiled kernel needs none of this.
"""

import math
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from model.config import EncoderConfig
from model.data.batch import PackedBatch, on
from model.encoder.operations.dropout import Noise
from model.encoder.operations.products import through

# T tokens of all sequences together, A heads, K width of one head, M blocks of a head, N of all
# heads, Q queries and S keys of a block, R rows of all heads

BLOCK = 128
"""Q: with a reach of 64 half of a block's 256 keys are each query's own."""


class BlockAttention:
    """The attention in windows of one batch, for all local layers; without dropout."""

    def __init__(self, batch: PackedBatch, config: EncoderConfig) -> None:
        self.reach = config.local_attention // 2
        self.behind = -(-2 * self.reach // BLOCK)
        self.blocks = -(-batch.tokens // BLOCK) + self.behind
        self.lengths = batch.lengths

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        return through(self, parts_T3AK)

    @cached_property
    def seen_2MQ(self) -> Tensor:
        """[2, M, Q]: the first of its block's keys that a query sees, and the first after these."""
        ends = np.cumsum(self.lengths)
        starts = np.repeat(ends - self.lengths, self.lengths)
        place = np.arange(ends[-1])
        # A token's row is `reach` behind its place, a block's keys begin where its queries would.
        first = self.reach - place // BLOCK * BLOCK
        stop = np.minimum(place + self.reach + 1, np.repeat(ends, self.lengths))
        seen = (np.maximum(place - self.reach, starts), stop)
        fillers = self.blocks * BLOCK - len(place)
        return torch.from_numpy(np.stack([np.pad(at + first, (0, fillers)) for at in seen]))

    def forward(self, parts_T3AK: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Context vectors, [T, A, K]; rows [3, R, K] and probabilities [N, Q, S] to keep."""
        tokens, _, heads, width = parts_T3AK.shape
        count = heads * self.blocks
        rows_3RK = parts_T3AK.new_zeros(3, (count + self.behind) * BLOCK, width)
        of_heads = rows_3RK[:, : count * BLOCK].view(3, heads, -1, width)
        of_heads[:, :, self.reach : self.reach + tokens] = parts_T3AK.permute(1, 2, 0, 3)
        query_NQK, key_NSK, value_NSK = self._blocks(rows_3RK)
        scores_NQS = _product(query_NQK, key_NSK.mT, 1 / math.sqrt(width))
        weights_NQS = self._softmax(scores_NQS, heads)
        context_AMK = torch.bmm(weights_NQS, value_NSK).view(heads, -1, width)
        context_TAK = context_AMK[:, :tokens].transpose(0, 1).contiguous()
        return context_TAK, rows_3RK, weights_NQS

    def backward(self, gradient_TAK: Tensor, *kept: Tensor) -> Tensor:
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
        for part, rows_RK in enumerate(
            (
                _product(dscores_NQS, key_NSK, factor).view(-1, width),
                self._added(_product(dscores_NQS.mT, query_NQK, factor)),
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
        end = len(query_RK) - self.behind * BLOCK + self.reach
        query_NQK = query_RK[self.reach : end].view(-1, BLOCK, query_RK.shape[1])
        keys = (self.behind + 1) * BLOCK
        key_NSK, value_NSK = (part.unfold(0, keys, BLOCK).mT for part in (key_RK, value_RK))
        return query_NQK, key_NSK, value_NSK

    def _added(self, blocks_NSK: Tensor) -> Tensor:
        """[R, K]: what overlapping blocks say of the same rows, added."""
        count, _, width = blocks_NSK.shape
        parts = blocks_NSK.view(count, -1, BLOCK, width).unbind(1)
        rows = blocks_NSK.new_zeros(count + self.behind, BLOCK, width)
        for shift, part in enumerate(parts):
            rows[shift : shift + count] += part
        return rows.view(-1, width)

    def _softmax(self, scores_NQS: Tensor, heads: int) -> Tensor:
        """Probabilities over the keys that each query sees."""
        keys = scores_NQS.shape[2]
        device = scores_NQS.device
        places = torch.arange(keys, device=device)
        first, stop = on(device, self.seen_2MQ[:, :, None])
        hidden = ((places < first) | (places >= stop)).view(1, -1, BLOCK, keys)
        by_head = scores_NQS.view(heads, -1, BLOCK, keys)
        weights = by_head.masked_fill(hidden, -torch.inf).softmax(-1)
        return weights.masked_fill(hidden, 0.0).view_as(scores_NQS)  # fillers see no key


def _product(left: Tensor, right: Tensor, factor: float) -> Tensor:
    """Batched product times `factor`."""
    empty = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    return torch.baddbmm(empty, left, right, beta=0, alpha=factor, out=empty)
