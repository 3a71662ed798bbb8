"""ModernBERT's layer and prediction head (Warner et al. 2024).

In:  [T, H]; the attentions of the batch.
Out: [T, H]; what classifiers and the vocabulary's logits read, [P, H].

Where it is not BERT's layer: the norm is before each sub-layer instead of after the sum, and the
first layer has none before its attention, since the embeddings are normalised already; no biases;
positions are in the attention; one token sees the whole sequence in every third layer only; the
feed-forward layer is gated (GeGLU; Shazeer 2020); dropout is on the attention's output alone.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import EncoderConfig
from model.encoder.layers.feed_forward import APPROXIMATION
from model.encoder.layers.pre_norm import gated_gelu, norm_product, residual_product
from model.encoder.operations.attention import Attend
from model.encoder.operations.dropout import Noise
from model.encoder.operations.residual import layer_norm
from model.encoder.operations.rotary_attention import LayerAttention

# T tokens of all sequences together, P places of them, H width, A heads, K width of one head


class ModernLayer(nn.Module):
    """x + attention(LN(x)), then the same with the feed-forward layer; [T, H] to [T, H]."""

    def __init__(self, config: EncoderConfig, number: int) -> None:
        """`number`: from 0; it decides whether attention is local and has a norm before it."""
        super().__init__()
        self.is_local = number % config.global_attn_every_n_layers != 0
        self.attention = PreNormAttention(config, has_norm=number > 0)
        self.feed_forward = GatedFeedForward(config)

    def forward(self, hidden_TH: Tensor, attention: LayerAttention, noise: Noise | None) -> Tensor:
        """[T, H]."""
        attend = attention.local if self.is_local else attention.full
        attended_TH = self.attention(hidden_TH, attend, noise)
        output_TH: Tensor = self.feed_forward(attended_TH)
        return output_TH


class PreNormAttention(nn.Module):
    """x + dropout(attention(LN(x)) W)."""

    def __init__(self, config: EncoderConfig, *, has_norm: bool) -> None:
        super().__init__()
        width = config.hidden_size
        self.layer_norm_weight = nn.Parameter(torch.empty(width)) if has_norm else None
        self.projection_weight = nn.Parameter(torch.empty(3 * width, width))
        self.output_weight = nn.Parameter(torch.empty(width, width))
        self.heads = config.num_attention_heads
        self.eps = config.layer_norm_eps
        self.dropout_prob = config.hidden_dropout_prob

    def forward(self, hidden_TH: Tensor, attend: Attend, noise: Noise | None) -> Tensor:
        """[T, H]."""
        tokens, width = hidden_TH.shape
        parts_T3H, residual_TH = norm_product(
            hidden_TH, self.layer_norm_weight, self.projection_weight, self.eps
        )
        context_TAK = attend(parts_T3H.view(tokens, 3, self.heads, -1), None)
        return residual_product(
            residual_TH,
            context_TAK.reshape(tokens, width),
            self.output_weight,
            probability=self.dropout_prob,
            noise=noise,
        )


class GatedFeedForward(nn.Module):
    """x + (GELU(LN(x) U) · (LN(x) V)) W, with U and V side by side in one product.

    Without `gated` x + GELU(LN(x) U) W.
    """

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.layer_norm_weight = nn.Parameter(torch.empty(width))
        self.input_weight = nn.Parameter(torch.empty(2 * inner if config.gated else inner, width))
        self.output_weight = nn.Parameter(torch.empty(width, inner))
        self.activation = config.hidden_act
        self.gated = config.gated
        self.eps = config.layer_norm_eps

    def forward(self, hidden_TH: Tensor) -> Tensor:
        """[T, H]."""
        inner_T2I, residual_TH = norm_product(
            hidden_TH, self.layer_norm_weight, self.input_weight, self.eps
        )
        if self.gated:
            active_TI = gated_gelu(inner_T2I, self.activation)
        else:
            active_TI = functional.gelu(inner_T2I, approximate=APPROXIMATION[self.activation])
        return residual_product(residual_TH, active_TI, self.output_weight)


class PredictionHead(nn.Module):
    """Dense layer without bias, GELU, norm: before the word embeddings and before classifiers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.dense = nn.Linear(width, width, bias=False)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=False)
        self.approximate = APPROXIMATION[config.hidden_act]

    def forward(self, hidden_PH: Tensor) -> Tensor:
        """[P, H]."""
        active_PH = functional.gelu(self.dense(hidden_PH), approximate=self.approximate)
        return layer_norm(active_PH, self.layer_norm.weight, None, self.layer_norm.eps)
