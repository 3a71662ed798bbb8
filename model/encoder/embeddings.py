"""The embeddings of both families.

In:  the ids of a packed batch.
Out: [T, H].

The gradient of an embedding row is summed over all tokens that use it; in bfloat16 such a sum stops
growing after a few hundred terms (every token uses a segment row). On a CPU it is therefore
computed in float32, and only for the rows in use; it stays sparse if the table is a rounded copy of
a parameter (precision.py), since the optimizers of leaves expect dense gradients.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.config import EncoderConfig
from cloze.model.data.batch import PackedBatch
from cloze.model.encoder.operations.autograd import Context, apply
from cloze.model.encoder.operations.dropout import Noise, dropout
from cloze.model.encoder.operations.products import wide
from cloze.model.encoder.operations.residual import LayerNorm

# T tokens of all sequences, H width, N rows of a table, U of them in use


class Embeddings(nn.Module):
    """Sum of word, position and segment embeddings, with layer norm and dropout.

    The modern family's have no segments, neither bias nor dropout, and positions only if learned.
    """

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        width, is_bert = config.hidden_size, config.family == "bert"
        self.word_embeddings = nn.Embedding(vocabulary_size, width)
        self.position_embeddings: nn.Embedding | None = None
        if config.has_position_table:
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings: nn.Embedding | None = None
        if is_bert:
            self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.layer_norm = LayerNorm(width, eps=config.layer_norm_eps, bias=is_bert)
        self.dropout_prob = config.hidden_dropout_prob if is_bert else 0.0

    def forward(self, batch: PackedBatch, noise: Noise | None) -> Tensor:
        """[T, H]."""
        tables = [(self.word_embeddings.weight, batch.input_ids)]
        if self.position_embeddings is not None:
            tables.append((self.position_embeddings.weight, batch.position_ids))
        if self.token_type_embeddings is not None:
            tables.append((self.token_type_embeddings.weight, batch.token_type_ids))
        return dropout(self.layer_norm(embedding_sum(*tables)), self.dropout_prob, noise)


def embedding_sum(*tables: tuple[Tensor, Tensor]) -> Tensor:
    """The sum of rows of several tables, each [N, H] and given with the ids of its rows, [T, H]."""
    # Without gradients, a function with a backward pass of its own costs more than short texts do.
    if tables[0][0].device.type == "cpu" and torch.is_grad_enabled():
        return apply(_LookUp, *(tensor for pair in tables for tensor in pair))
    return _sum_of_rows(tables)


def _sum_of_rows(tables: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    first, *others = (functional.embedding(ids_T, table_NH) for table_NH, ids_T in tables)
    for rows_TH in others:
        first = first + rows_TH
    return first


class _LookUpContext(Context):
    tables: list[tuple[torch.Size, bool]]
    """The shape of each table, and whether it is a leaf."""


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _LookUpContext, *tensors: Tensor) -> Tensor:
        tables, ids = tensors[::2], tensors[1::2]
        ctx.save_for_backward(*ids)
        ctx.tables = [(table_NH.shape, table_NH.is_leaf) for table_NH in tables]
        return _sum_of_rows(zip(tables, ids, strict=True))

    @staticmethod
    def backward(ctx: _LookUpContext, gradient_TH: Tensor) -> tuple[Tensor | None, ...]:
        wide_TH = wide(gradient_TH)
        found: list[Tensor | None] = []
        for (shape, is_leaf), ids_T in zip(ctx.tables, ctx.saved_tensors, strict=True):
            gradient_NH = _table_gradient(wide_TH, ids_T, shape, gradient_TH.dtype)
            # See above: leaves need dense gradients, copies in bfloat16 get sparse ones.
            found += [gradient_NH.to_dense() if is_leaf else gradient_NH, None]
        return tuple(found)


def _table_gradient(
    gradient_TH: Tensor, ids_T: Tensor, shape: torch.Size, dtype: torch.dtype
) -> Tensor:
    """The gradient of a table; sparse if it has more rows than there are tokens."""
    sum_rows = torch.ops.aten.embedding_dense_backward
    # No padding row (-1), no scaling by frequency (False).
    if shape[0] <= len(ids_T):
        dense_NH: Tensor = sum_rows(gradient_TH, ids_T, shape[0], -1, False).to(dtype)
        return dense_NH
    # Sum into U rows, numbered by rank among the used ids, instead of a table of N rows.
    used_U, place_T = torch.unique(ids_T, return_inverse=True)
    sums_UH = sum_rows(gradient_TH, place_T, len(used_U), -1, False).to(dtype)
    return torch.sparse_coo_tensor(
        used_U[None], sums_UH, shape, is_coalesced=True, check_invariants=False
    )
