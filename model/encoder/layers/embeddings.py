"""The embeddings of both families.

In:  the ids of a packed batch.
Out: [T, H].

The gradient of an embedding row is summed over all tokens that use it; in bfloat16 such a sum stops
growing after a few hundred terms (every token uses a segment row). On a CPU it is therefore
computed in float32, and only for the rows in use; it stays sparse if the table is a rounded copy of
a parameter (precision.py), since the optimizers of leaves expect dense gradients.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import EncoderConfig
from model.data.batch import PackedBatch
from model.encoder.operations.autograd import Context, apply
from model.encoder.operations.dropout import Noise, dropout
from model.encoder.operations.products import wide
from model.encoder.operations.residual import layer_norm

# T tokens of all sequences, H width, N rows of a table, U of them in use


class Embeddings(nn.Module):
    """Sum of word, segment and position embeddings, with layer norm and dropout."""

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(vocabulary_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout_prob = config.hidden_dropout_prob

    def forward(self, batch: PackedBatch, noise: Noise | None) -> Tensor:
        """[T, H]."""
        embedded_TH = (
            look_up(self.word_embeddings.weight, batch.input_ids)
            + look_up(self.position_embeddings.weight, batch.position_ids)
            + look_up(self.token_type_embeddings.weight, batch.token_type_ids)
        )
        norm = self.layer_norm
        normalised_TH = layer_norm(embedded_TH, norm.weight, norm.bias, norm.eps)
        return dropout(normalised_TH, self.dropout_prob, noise)


class TokenEmbeddings(nn.Module):
    """Embeddings of the modern family: words only, with layer norm without bias.

    With `positions = "learned"`, position embeddings are added.
    """

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(vocabulary_size, width)
        self.position_embeddings: nn.Embedding | None = None
        if config.positions == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=False)

    def forward(self, batch: PackedBatch, noise: Noise | None) -> Tensor:
        """[T, H]; no dropout."""
        embedded_TH = look_up(self.word_embeddings.weight, batch.input_ids)
        if self.position_embeddings is not None:
            embedded_TH = embedded_TH + look_up(self.position_embeddings.weight, batch.position_ids)
        return layer_norm(embedded_TH, self.layer_norm.weight, None, self.layer_norm.eps)


def look_up(table_NH: Tensor, ids_T: Tensor) -> Tensor:
    """The rows `ids_T` of a table, [T, H]."""
    if table_NH.device.type == "cpu":
        return apply(_LookUp, table_NH, ids_T)
    return functional.embedding(ids_T, table_NH)


class _LookUpContext(Context):
    shape: torch.Size
    is_leaf: bool


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _LookUpContext, table_NH: Tensor, ids_T: Tensor) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.shape, ctx.is_leaf = table_NH.shape, table_NH.is_leaf
        return functional.embedding(ids_T, table_NH)

    @staticmethod
    def backward(ctx: _LookUpContext, gradient_TH: Tensor) -> tuple[Tensor, None]:
        (ids_T,) = ctx.saved_tensors
        used_U, place_T = torch.unique(ids_T, return_inverse=True)
        sums_UH = torch.ops.aten.embedding_dense_backward(
            wide(gradient_TH), place_T, len(used_U), -1, False
        )
        table_gradient_NH = torch.sparse_coo_tensor(
            *(used_U[None], sums_UH.to(gradient_TH.dtype), ctx.shape),
            is_coalesced=True,
            check_invariants=False,
        )
        return table_gradient_NH.to_dense() if ctx.is_leaf else table_gradient_NH, None
