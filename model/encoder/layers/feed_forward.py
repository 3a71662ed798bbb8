"""The second half of a layer: LN(x + dropout(GELU(x W + b) V + c)).

In:  [T, H].
Out: [T, H].

On a CPU this is a single autograd function: the last product of the backward pass adds the gradient
of the residual, and bias gradients are computed in passes that are needed anyway.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import EncoderConfig
from model.encoder.operations.autograd import Context, apply
from model.encoder.operations.dropout import Draws, Noise, draw, dropout
from model.encoder.operations.fp8_products import fp8_affine
from model.encoder.operations.native_kernels import kernels_for
from model.encoder.operations.products import affine, product, weight_gradient
from model.encoder.operations.residual import (
    ResidualNorm,
    layer_norm,
    residual_norm,
    residual_norm_gradients,
)

# T tokens of all sequences, H width, I intermediate width

APPROXIMATION = {"gelu_tanh": "tanh", "gelu": "none"}
"""torch's name for each form of GELU."""


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
        draws = draw(noise, hidden_TH.numel(), probability=self.dropout_prob)
        parameters = self.parameters()
        return apply(_FeedForward, hidden_TH, draws, self.activation, self.eps, *parameters)

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


class _Context(Context):
    draws: Draws | None
    gelu: str


class _FeedForward(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden_TH: Tensor,
        draws: Draws | None,
        gelu: str,
        eps: float,
        *parameters: Tensor,
    ) -> Tensor:
        in_weight_HI, in_bias_I, out_weight_HI, out_bias_H, norm_weight_H, norm_bias_H = parameters
        inner_TI = affine(hidden_TH, in_weight_HI, in_bias_I, input_first=True)
        active_TI, kept_TI = activate_(inner_TI, gelu)
        dense_TH = affine(active_TI, out_weight_HI, out_bias_H)
        output_TH, kept = residual_norm(
            dense_TH, hidden_TH, (norm_weight_H, norm_bias_H, eps), draws
        )
        ctx.save_for_backward(
            *(hidden_TH, in_weight_HI, out_weight_HI, norm_weight_H, kept_TI, active_TI),
            *(kept.sum_TH, kept.mean_T, kept.deviation_T),
        )
        ctx.draws, ctx.gelu = draws, gelu
        return output_TH

    @staticmethod
    def backward(ctx: _Context, gradient_TH: Tensor) -> tuple[Tensor | None, ...]:
        hidden_TH, in_weight_HI, out_weight_HI, norm_weight_H, kept_TI, active_TI, *kept = (
            ctx.saved_tensors
        )
        end = residual_norm_gradients(gradient_TH, ResidualNorm(*kept), norm_weight_H, ctx.draws)
        dout_weight_HI = product(end.dense_transposed_HT, active_TI)
        dinner_TI, din_bias_I = activation_gradients(
            product(end.dense_TH, out_weight_HI), kept_TI, ctx.gelu
        )
        return (
            product(dinner_TI, in_weight_HI.mT, added_to_MN=end.residual_TH),
            None,
            None,
            None,
            weight_gradient(hidden_TH, dinner_TI, input_first=True),
            din_bias_I,
            dout_weight_HI,
            end.dense_bias_H,
            end.norm_weight_H,
            end.norm_bias_H,
        )


def activation(values: Tensor, name: str) -> Tensor:
    """GELU in the reference's tanh form (`gelu_tanh`, modeling.py:264-277) or the exact one."""
    return functional.gelu(values, approximate=APPROXIMATION[name])


def activate_(values_TI: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """`activation` without autograd, [T, I], and the input of `activation_gradients`, [T, I].

    The native kernel returns the slopes, which come almost for free with the values; it overwrites
    `values_TI` with the result.
    """
    native = kernels_for(values_TI)
    if native is None:
        return activation(values_TI, name), values_TI
    slopes_TI = torch.empty_like(values_TI)
    native("gelu_forward", values_TI.numel(), values_TI, slopes_TI, int(name == "gelu_tanh"))
    return values_TI, slopes_TI


def activation_gradients(gradient_TI: Tensor, kept_TI: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Gradient of the values, [T, I], and its column sums, [I]. May overwrite `gradient_TI`."""
    native = kernels_for(gradient_TI, kept_TI)
    if native is None:
        through_TI = torch.ops.aten.gelu_backward(
            gradient_TI, kept_TI, approximate=APPROXIMATION[name]
        )
        return through_TI, through_TI.sum(0)
    tokens, width = gradient_TI.shape
    threads = torch.get_num_threads()
    sums = torch.empty(threads, width)
    native("gelu_backward", tokens, width, gradient_TI, kept_TI, sums, threads)
    return gradient_TI, sums.sum(0).to(gradient_TI.dtype)
