"""ModernBERT's layer and prediction head (Warner et al. 2024).

In:  [T, H]; the attention function of the batch.
Out: [T, H]; the inputs of classifiers and of the vocabulary logits, [P, H].

Differences from BERT's layer: pre-norm instead of post-norm, and no norm before the first
attention, since the embeddings are already normalised; no biases; rotary positions; global
attention in every third layer only; a gated feed-forward layer (GeGLU; Shazeer 2020); dropout on
the attention output only.

On a CPU, LN(x) W, GeGLU, and x + dropout(y V) are one autograd function each: the backward pass of
a norm also adds the gradient of the residual, which would otherwise be a pass of its own, and
nothing is saved twice.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.config import EncoderConfig
from cloze.model.encoder.operations.activation import APPROXIMATION, activation, gated_gelu
from cloze.model.encoder.operations.autograd import Context, apply
from cloze.model.encoder.operations.dropout import Draws, Noise, dropout, dropout_draws, dropped
from cloze.model.encoder.operations.grouped_attention import Attend
from cloze.model.encoder.operations.products import product, weight_gradient
from cloze.model.encoder.operations.residual import (
    LayerNorm,
    layer_norm,
    norm,
    norm_gradients,
)

# T tokens of all sequences, P positions among them, H width, A heads, K width of a head, O outputs
# of a product, I intermediate width


class ModernLayer(nn.Module):
    """x + attention(LN(x)), then the same with the feed-forward layer; [T, H] to [T, H]."""

    def __init__(self, config: EncoderConfig, *, is_first: bool) -> None:
        """The first layer's attention needs no norm before it."""
        super().__init__()
        self.attention = PreNormAttention(config, has_norm=not is_first)
        self.feed_forward = GatedFeedForward(config)

    def forward(self, hidden_TH: Tensor, attend: Attend, noise: Noise | None) -> Tensor:
        """[T, H]."""
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
        # The residual is handed through this function, so that its gradient arrives together with
        # the product's and both are added in one pass.
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
    """x + (GELU(LN(x) U) · (LN(x) V)) W, with U and V combined in one product.

    Without `gated`: x + GELU(LN(x) U) W.
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
            active_TI = activation(inner_T2I, self.activation)
        return residual_product(residual_TH, active_TI, self.output_weight)


class PredictionHead(nn.Sequential):
    """Dense layer without bias, GELU, norm: before the word embeddings and before classifiers."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.dense = nn.Linear(width, width, bias=False)
        self.activation = nn.GELU(APPROXIMATION[config.hidden_act])
        self.layer_norm = LayerNorm(width, eps=config.layer_norm_eps, bias=False)


def norm_product(
    hidden_TH: Tensor, norm_weight_H: Tensor | None, weight_OH: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """LN(x) W, [T, O], and x for the residual; without a norm weight there is no norm."""
    if hidden_TH.device.type == "cpu":
        product_TO, residual_TH = _NormProduct.apply(hidden_TH, norm_weight_H, weight_OH, eps)  # type: ignore[no-untyped-call]  # torch has no types here
        return product_TO, residual_TH
    read_TH = hidden_TH
    if norm_weight_H is not None:
        read_TH = layer_norm(hidden_TH, norm_weight_H, None, eps)
    return functional.linear(read_TH, weight_OH), hidden_TH


def residual_product(
    residual_TH: Tensor,
    x_TI: Tensor,
    weight_HI: Tensor,
    *,
    probability: float = 0.0,
    noise: Noise | None = None,
) -> Tensor:
    """Residual + dropout(x W), [T, H]: the residual [T, H], x [T, I] and the weight [H, I]."""
    if residual_TH.device.type == "cpu":
        draws = dropout_draws(noise, residual_TH.numel(), probability=probability)
        return apply(_ResidualProduct, residual_TH, x_TI, weight_HI, draws)
    return residual_TH + dropout(functional.linear(x_TI, weight_HI), probability, noise)


class _NormProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context,
        hidden_TH: Tensor,
        norm_weight_H: Tensor | None,
        weight_OH: Tensor,
        eps: float,
    ) -> tuple[Tensor, Tensor]:
        if norm_weight_H is None:
            ctx.save_for_backward(hidden_TH, weight_OH)
            return product(hidden_TH, weight_OH.mT), hidden_TH
        read_TH, kept = norm(hidden_TH, norm_weight_H, None, eps)
        ctx.save_for_backward(read_TH, weight_OH, norm_weight_H, *kept)
        return product(read_TH, weight_OH.mT), hidden_TH

    @staticmethod
    def backward(
        ctx: Context, gradient_TO: Tensor, residual_TH: Tensor
    ) -> tuple[Tensor | None, ...]:
        read_TH, weight_OH, *of_norm = ctx.saved_tensors
        dweight_OH = weight_gradient(read_TH, gradient_TO)
        if not of_norm:
            return (
                # A copy, because the product is added in place and the incoming gradient is not
                # ours.
                product(gradient_TO, weight_OH, added_to_MN=residual_TH.clone()),
                None,
                dweight_OH,
                None,
            )
        norm_weight_H, *kept = of_norm
        dhidden_TH, dnorm_weight_H, _ = norm_gradients(
            product(gradient_TO, weight_OH), kept, norm_weight_H, residual_TH
        )
        return dhidden_TH, dnorm_weight_H, dweight_OH, None


class _ResidualContext(Context):
    draws: Draws | None


class _ResidualProduct(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _ResidualContext,
        residual_TH: Tensor,
        x_TI: Tensor,
        weight_HI: Tensor,
        draws: Draws | None,
    ) -> Tensor:
        ctx.save_for_backward(x_TI, weight_HI)
        ctx.draws = draws
        if draws is None:
            # a copy, since the product is added in place
            return product(x_TI, weight_HI.mT, added_to_MN=residual_TH.clone())
        return dropped(product(x_TI, weight_HI.mT), draws).add_(residual_TH)

    @staticmethod
    def backward(ctx: _ResidualContext, gradient_TH: Tensor) -> tuple[Tensor | None, ...]:
        x_TI, weight_HI = ctx.saved_tensors
        # Dropout is linear: its gradient passes through the same mask and scale. The residual's
        # passes as it is.
        dense_TH = gradient_TH if ctx.draws is None else dropped(gradient_TH, ctx.draws)
        return gradient_TH, product(dense_TH, weight_HI), weight_gradient(x_TI, dense_TH), None
