"""Attention over whole long sequences on a CPU: some queries of one head at a time.

In:  query, key, value of all tokens, [T, 3, A, K].
Out: context vectors, [T, A, K]; on the way back the gradient of the first from that of the second.

The scores of 4,096 tokens are 32 MB a head. What is computed from them is computed while they are
in the cache; of all that only the probabilities go to memory, once, and come back once. Longer
sequences compute theirs again on the way back, to the same bits, in the memory of one head: at
8,192 tokens that takes no longer than fetching them. Without a way back none are kept.
"""

import math
from itertools import product

import torch
from torch import Tensor

from model.config import EncoderConfig
from model.data.batch import PackedBatch
from model.encoder.operations.dropout import Noise
from model.encoder.operations.native_kernels import kernels_for
from model.encoder.operations.products import through

# T tokens of all sequences together, A heads, K width of one head, S tokens of one sequence, Q
# queries at a time

SCORES = 1 << 20
"""Q S: 2 MB of bfloat16."""


LONG = 1024
"""Tokens from which on a sequence is worth a loop over its heads."""


def is_long(batch: PackedBatch) -> bool:
    """Whether most of attention's work is in long sequences, and these are on a CPU."""
    squares = batch.lengths**2
    on_cpu = batch.input_ids.device.type == "cpu"
    return on_cpu and bool(2 * squares[batch.lengths >= LONG].sum() > squares.sum())


KEPT = 4096
"""Tokens up to which a sequence's probabilities are kept for the way back."""


class LongAttention:
    """The attention of one batch, for all layers that see whole sequences; without dropout."""

    def __init__(self, batch: PackedBatch, config: EncoderConfig) -> None:
        self.lengths: list[int] = batch.lengths.tolist()

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        if torch.is_grad_enabled() and parts_T3AK.requires_grad:
            return through(self, parts_T3AK)
        return self.forward(parts_T3AK, keep=False)[0]

    def forward(self, parts_T3AK: Tensor, /, *, keep: bool = True) -> tuple[Tensor, ...]:
        """Context vectors, [T, A, K]; rows [3, A, T, K] and probabilities [A, S, S].

        These are left out where they are not to be kept, and of sequences longer than `KEPT`: each
        piece has the memory of the last.
        """
        rows_3ATK = parts_T3AK.permute(1, 2, 0, 3).contiguous()
        query_ATK, key_ATK, value_ATK = rows_3ATK
        heads, factor = len(query_ATK), 1 / math.sqrt(parts_T3AK.shape[-1])
        context_ATK = torch.empty_like(query_ATK)
        kept: list[Tensor] = []
        first = 0
        for length in self.lengths:
            own = slice(first, first + length)
            is_kept = keep and length <= KEPT
            weights_ASS = rows_3ATK.new_empty(heads, length, length) if is_kept else None
            for head, some in product(range(heads), pieces(length)):
                query_QK = query_ATK[head, own][some]
                scores_QS = (
                    query_QK.new_empty(len(query_QK), length)
                    if weights_ASS is None
                    else weights_ASS[head, some]
                )
                _multiply(query_QK, key_ATK[head, own].mT, factor, out=scores_QS)
                softmax_(scores_QS)
                torch.mm(scores_QS, value_ATK[head, own], out=context_ATK[head, own][some])
            kept += [] if weights_ASS is None else [weights_ASS]
            first += length
        return context_ATK.transpose(0, 1).contiguous(), rows_3ATK, *kept

    def backward(self, gradient_TAK: Tensor, *kept: Tensor) -> Tensor:
        """Gradient of query, key and value, [T, 3, A, K]."""
        rows_3ATK, *weights = kept
        of_kept = iter(weights)
        gradient_ATK = gradient_TAK.transpose(0, 1).contiguous()
        drows_3ATK = torch.empty_like(rows_3ATK)
        first = 0
        for length in self.lengths:
            own, dscores_SS = slice(first, first + length), rows_3ATK.new_empty(length, length)
            is_kept = length <= KEPT
            weights_ASS = next(of_kept) if is_kept else torch.empty_like(dscores_SS)[None]
            for head in range(rows_3ATK.shape[1]):
                _head_gradient(
                    rows_3ATK[:, head, own],
                    gradient_ATK[head, own],
                    weights_ASS[head if is_kept else 0],
                    is_kept=is_kept,
                    dscores_SS=dscores_SS,
                    out=drows_3ATK[:, head, own],
                )
            first += length
        return drows_3ATK.permute(2, 0, 1, 3).contiguous()


def _head_gradient(
    rows_3SK: Tensor,
    gradient_SK: Tensor,
    weights_SS: Tensor,
    *,
    is_kept: bool,
    dscores_SS: Tensor,
    out: Tensor,
) -> None:
    """Gradient of one head's query, key and value into `out`, [3, S, K].

    Probabilities that are not kept are made again in `weights_SS`.
    """
    query_SK, key_SK, value_SK = rows_3SK
    dquery_SK, dkey_SK, dvalue_SK = out
    length, width = query_SK.shape
    factor = 1 / math.sqrt(width)
    for some in pieces(length):
        weights_QS, dscores_QS = weights_SS[some], dscores_SS[some]
        if not is_kept:
            _multiply(query_SK[some], key_SK.mT, factor, out=weights_QS)
            softmax_(weights_QS)
        torch.mm(gradient_SK[some], value_SK.mT, out=dscores_QS)
        softmax_gradient_(dscores_QS, weights_QS)
        _multiply(dscores_QS, key_SK, factor, out=dquery_SK[some])
    # Sums over all queries at once: piece by piece they would be rounded each time.
    _multiply(dscores_SS.mT, query_SK, factor, out=dkey_SK)
    torch.mm(weights_SS.mT, gradient_SK, out=dvalue_SK)


def pieces(length: int) -> list[slice]:
    """Queries of a sequence, some at a time."""
    step = max(1, SCORES // length)
    return [slice(first, min(first + step, length)) for first in range(0, length, step)]


def softmax_(scores_QS: Tensor) -> None:
    """Probabilities in the scores' place."""
    native = kernels_for(scores_QS)
    if native is None:
        torch.softmax(scores_QS, -1, out=scores_QS)
        return
    queries, keys = scores_QS.shape
    ends = torch.zeros(2, queries, dtype=torch.int64)
    ends[1] = keys
    native("softmax_in_ranges", 1, queries, keys, *ends, scores_QS)


def softmax_gradient_(gradient: Tensor, weights: Tensor) -> None:
    """Gradient of the scores, [..., S], in the place of that of the probabilities."""
    native = kernels_for(gradient)
    if native is None:
        gradient.copy_(torch._softmax_backward_data(gradient, weights, -1, weights.dtype))
        return
    keys = gradient.shape[-1]
    native("softmax_backward", gradient.numel() // keys, keys, gradient, weights, 0, 0, 0)


def _multiply(left: Tensor, right: Tensor, factor: float, *, out: Tensor) -> None:
    torch.addmm(out, left, right, beta=0, alpha=factor, out=out)
