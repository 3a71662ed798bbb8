"""BERT's layer (Devlin et al. 2019).

In:  [T, H]; the attention function of the batch.
Out: [T, H]: LN(x + dropout(attention(x) W + b)), then LN(x + dropout(GELU(x W + b) V + c)).

On a CPU each half of a layer is a single autograd function: the last product of the backward pass
adds the gradient of the residual, and bias gradients are computed in passes that are needed anyway.
"""

import torch
from torch import Tensor, nn

from cloze.model.config import EncoderConfig
from cloze.model.encoder.operations.activation import activate_, activation, activation_gradients
from cloze.model.encoder.operations.autograd import Context, apply
from cloze.model.encoder.operations.dropout import Draws, Noise, dropout, dropout_draws
from cloze.model.encoder.operations.grouped_attention import Attend, GroupedAttention
from cloze.model.encoder.operations.products import (
    affine,
    bias_gradient,
    fp8_affine,
    product,
    transposed_products,
    weight_gradient,
)
from cloze.model.encoder.operations.residual import (
    layer_norm,
    residual_norm,
    residual_norm_gradients,
)

# T tokens of all sequences, H width, I intermediate width, A heads, K width of a head

SITE_ATTENTION, SITE_FEED_FORWARD = range(2)
SITE_PROBABILITIES, SITE_OUTPUT = range(2)
"""Addresses of dropout: the halves of a layer, and the sites within its attention."""


class Layer(nn.Module):
    """One transformer layer, post-LN: attention, then feed-forward; [T, H] to [T, H]."""

    def __init__(self, config: EncoderConfig, *, fp8: bool = False) -> None:
        super().__init__()
        self.attention = SelfAttention(config, fp8=fp8)
        self.feed_forward = FeedForward(config, fp8=fp8)

    def forward(self, hidden_TH: Tensor, attend: Attend, noise: Noise | None) -> Tensor:
        """[T, H]."""
        attended_TH = self.attention(hidden_TH, attend, noise and noise.at(SITE_ATTENTION))
        output_TH: Tensor = self.feed_forward(attended_TH, noise and noise.at(SITE_FEED_FORWARD))
        return output_TH


class SelfAttention(nn.Module):
    """Multi-head self-attention, residual, layer norm.

    A single product computes query, key and value of all heads. Their matrices, each [in, out],
    remain separate parameters, as in LAMB's trust ratios and the released models.
    """

    def __init__(self, config: EncoderConfig, *, fp8: bool = False) -> None:
        super().__init__()
        width = config.hidden_size
        self.query_weight = nn.Parameter(torch.empty(width, width))
        self.key_weight = nn.Parameter(torch.empty(width, width))
        self.value_weight = nn.Parameter(torch.empty(width, width))
        self.query_bias = nn.Parameter(torch.empty(width))
        self.key_bias = nn.Parameter(torch.empty(width))
        self.value_bias = nn.Parameter(torch.empty(width))
        self.output_weight = nn.Parameter(torch.empty(width, width))
        self.output_bias = nn.Parameter(torch.empty(width))
        self.layer_norm_weight = nn.Parameter(torch.empty(width))
        self.layer_norm_bias = nn.Parameter(torch.empty(width))
        self.heads = config.num_attention_heads
        self.eps = config.layer_norm_eps
        self.dropout_prob = config.hidden_dropout_prob
        self.fp8 = fp8

    def forward(self, hidden_TH: Tensor, attend: Attend, noise: Noise | None) -> Tensor:
        """[T, H]."""
        tokens, width = hidden_TH.shape
        inside, outside = noise and noise.at(SITE_PROBABILITIES), noise and noise.at(SITE_OUTPUT)
        # On a CPU this half of the layer is one autograd function; on a GPU and in FP8, plain
        # operations. It takes the parameters in the order in which they are registered above.
        fused = hidden_TH.device.type == "cpu" and not self.fp8
        if fused and isinstance(attend, GroupedAttention):
            return apply(
                _SelfAttention,
                hidden_TH,
                attend,
                (
                    attend.draw(inside),
                    dropout_draws(outside, tokens * width, probability=self.dropout_prob),
                ),
                self.eps,
                *self._parameters.values(),
            )
        return self.composed(hidden_TH, attend, inside, outside)

    def composed(
        self, hidden_TH: Tensor, attend: Attend, inside: Noise | None, outside: Noise | None
    ) -> Tensor:
        """`forward` in plain torch operations, which torch can compile for a GPU."""
        tokens, width = hidden_TH.shape
        dense = fp8_affine if self.fp8 else affine
        # The first six parameters are those of query, key and value.
        weight, bias = side_by_side(*self.parameters())
        parts_T3AK = dense(hidden_TH, weight, bias, input_first=True).view(
            tokens, 3, self.heads, -1
        )
        context_TH = attend(parts_T3AK, inside).reshape(tokens, width)
        dense_TH = dense(context_TH, self.output_weight, self.output_bias)
        sum_TH = hidden_TH + dropout(dense_TH, self.dropout_prob, outside)
        return layer_norm(sum_TH, self.layer_norm_weight, self.layer_norm_bias, self.eps)


def side_by_side(*parameters: Tensor) -> tuple[Tensor, Tensor]:
    """Combined weight [H, 3 H] and bias [3 H] of the three projections."""
    return torch.cat(parameters[:3], dim=1), torch.cat(parameters[3:6])


class FeedForward(nn.Module):
    """Two dense layers with GELU in between, residual, layer norm."""

    def __init__(self, config: EncoderConfig, *, fp8: bool = False) -> None:
        super().__init__()
        width, inner = config.hidden_size, config.intermediate_size
        self.intermediate_weight = nn.Parameter(torch.empty(width, inner))
        self.intermediate_bias = nn.Parameter(torch.empty(inner))
        self.output_weight = nn.Parameter(torch.empty(width, inner))
        self.output_bias = nn.Parameter(torch.empty(width))
        self.layer_norm_weight = nn.Parameter(torch.empty(width))
        self.layer_norm_bias = nn.Parameter(torch.empty(width))
        self.activation = config.hidden_act
        self.eps = config.layer_norm_eps
        self.dropout_prob = config.hidden_dropout_prob
        self.fp8 = fp8

    def forward(self, hidden_TH: Tensor, noise: Noise | None) -> Tensor:
        """[T, H]."""
        if hidden_TH.device.type != "cpu" or self.fp8:
            return self.composed(hidden_TH, noise)
        draws = dropout_draws(noise, hidden_TH.numel(), probability=self.dropout_prob)
        parameters = self._parameters.values()
        # Within an autograd function gradients are always disabled, so it is passed whether any
        # will be needed; if not, the slopes of GELU are not saved.
        return apply(
            _FeedForward,
            hidden_TH,
            draws,
            self.activation,
            self.eps,
            torch.is_grad_enabled(),
            *parameters,
        )

    def composed(self, hidden_TH: Tensor, noise: Noise | None) -> Tensor:
        """`forward` in plain torch operations, which torch can compile for a GPU."""
        dense = fp8_affine if self.fp8 else affine
        inner_TI = dense(
            hidden_TH, self.intermediate_weight, self.intermediate_bias, input_first=True
        )
        dense_TH = dense(
            activation(inner_TI, self.activation), self.output_weight, self.output_bias
        )
        sum_TH = hidden_TH + dropout(dense_TH, self.dropout_prob, noise)
        return layer_norm(sum_TH, self.layer_norm_weight, self.layer_norm_bias, self.eps)


class _AttentionContext(Context):
    attend: GroupedAttention
    draws: tuple[Draws | None, Draws | None]


class _SelfAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _AttentionContext,
        hidden_TH: Tensor,
        attend: GroupedAttention,
        draws: tuple[Draws | None, Draws | None],
        eps: float,
        *parameters: Tensor,
    ) -> Tensor:
        tokens, width = hidden_TH.shape
        output_weight_HH, output_bias_H, norm_weight_H, norm_bias_H = parameters[6:]
        # One product for query, key and value: [T, 3 H], in memory the same as [T, 3, A, K].
        weight, bias = side_by_side(*parameters)
        parts = affine(hidden_TH, weight, bias, input_first=True)
        context_TAK, kept_inside = attend.forward(parts.view(tokens, 3, attend.heads, -1), draws[0])
        context_TH = context_TAK.view(tokens, width)
        dense_TH = affine(context_TH, output_weight_HH, output_bias_H)
        output_TH, kept = residual_norm(
            dense_TH, hidden_TH, (norm_weight_H, norm_bias_H, eps), draws[1]
        )
        ctx.save_for_backward(
            hidden_TH, weight, output_weight_HH, norm_weight_H, context_TH, *kept_inside, *kept
        )
        ctx.attend, ctx.draws = attend, draws
        return output_TH

    @staticmethod
    def backward(ctx: _AttentionContext, gradient_TH: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, weight, output_weight_HH, norm_weight_H, context_TH, *kept = ctx.saved_tensors
        # Attention saves three tensors, with the kernel and without (`Kept`); the norm's follow
        # them.
        attend, inside, outside = ctx.attend, tuple(kept[:3]), kept[3:]
        # From the output back to the input: norm and dropout, output product, attention,
        # projections.
        dresidual_TH, ddense_TH, *dbias_and_norm = residual_norm_gradients(
            gradient_TH, outside, norm_weight_H, ctx.draws[1]
        )
        doutput_weight_HH = weight_gradient(context_TH, ddense_TH)
        dcontext_TH = product(ddense_TH, output_weight_HH)
        dparts = attend.backward(
            dcontext_TH.view(len(hidden_TH), attend.heads, -1), inside, ctx.draws[0]
        ).view(len(hidden_TH), -1)
        # One gradient per projection, as they are separate parameters.
        dweights_3HH = transposed_products(hidden_TH, dparts, count=3)
        return (
            # The last product adds the residual's gradient to the one through the layer.
            product(dparts, weight.mT, added_to_MN=dresidual_TH),
            None,
            None,
            None,
            *dweights_3HH,
            *bias_gradient(dparts).chunk(3),
            doutput_weight_HH,
            *dbias_and_norm,
        )


class _FeedForwardContext(Context):
    draws: Draws | None
    gelu: str


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _FeedForwardContext,
        hidden_TH: Tensor,
        draws: Draws | None,
        gelu: str,
        eps: float,
        is_kept: bool,
        *parameters: Tensor,
    ) -> Tensor:
        in_weight_HI, in_bias_I, out_weight_HI, out_bias_H, norm_weight_H, norm_bias_H = parameters
        inner_TI = affine(hidden_TH, in_weight_HI, in_bias_I, input_first=True)
        active_TI, kept_TI = activate_(inner_TI, gelu, is_kept=is_kept)
        dense_TH = affine(active_TI, out_weight_HI, out_bias_H)
        output_TH, kept = residual_norm(
            dense_TH, hidden_TH, (norm_weight_H, norm_bias_H, eps), draws
        )
        ctx.save_for_backward(
            hidden_TH, in_weight_HI, out_weight_HI, norm_weight_H, kept_TI, active_TI, *kept
        )
        ctx.draws, ctx.gelu = draws, gelu
        return output_TH

    @staticmethod
    def backward(ctx: _FeedForwardContext, gradient_TH: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, in_weight_HI, out_weight_HI, norm_weight_H, kept_TI, active_TI, *kept = (
            ctx.saved_tensors
        )
        # From the output back to the input: norm and dropout, second product, GELU, first product.
        dresidual_TH, ddense_TH, *dbias_and_norm = residual_norm_gradients(
            gradient_TH, kept, norm_weight_H, ctx.draws
        )
        dout_weight_HI = weight_gradient(active_TI, ddense_TH)
        dinner_TI, din_bias_I = activation_gradients(
            product(ddense_TH, out_weight_HI), kept_TI, ctx.gelu
        )
        return (
            # the last product adds the residual's gradient
            product(dinner_TI, in_weight_HI.mT, added_to_MN=dresidual_TH),
            None,
            None,
            None,
            None,
            weight_gradient(hidden_TH, dinner_TI, input_first=True),
            din_bias_I,
            dout_weight_HI,
            *dbias_and_norm,
        )
