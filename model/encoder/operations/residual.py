"""The end of every sub-layer: LN(residual + dropout(dense)) (reference: modeling.py:862, 882).

In:  the dense layer's output [T, H], the residual [T, H], scale and shift of the layer norm.
Out: [T, H]; in the backward pass, the gradients of all of them.

Layer norm statistics are at least float32. torch's kernel gets scale and shift in that dtype, or it
would round mean and deviation to bfloat16.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from cloze.model.encoder.operations.autograd import Context, apply
from cloze.model.encoder.operations.dropout import Draws, dropping, keep_
from cloze.model.encoder.operations.native_kernels import kernels_for
from cloze.model.encoder.operations.products import wide

# T tokens, H width

Saved = Sequence[Tensor]
"""What a norm saves for its backward pass: its input, [T, H]; the mean of each token and the
reciprocal of its standard deviation, [T]."""


def layer_norm(x_TH: Tensor, weight_H: Tensor, bias_H: Tensor | None, eps: float) -> Tensor:
    """Layer norm with float32 statistics for any dtype of x; the bias is optional."""
    if x_TH.device.type == "cpu" and x_TH.dtype == torch.bfloat16:
        return apply(_LayerNorm, x_TH, weight_H, bias_H, eps)
    # CUDA's kernel needs a common dtype; its statistics are always float32.
    weight_H = weight_H.to(x_TH.dtype)
    bias_H = None if bias_H is None else bias_H.to(x_TH.dtype)
    return functional.layer_norm(x_TH, weight_H.shape, weight_H, bias_H, eps)


class LayerNorm(nn.LayerNorm):
    """`layer_norm` as a module."""

    def forward(self, x_TH: Tensor) -> Tensor:
        """[T, H]."""
        return layer_norm(x_TH, self.weight, self.bias, self.eps)


def norm(x_TH: Tensor, weight_H: Tensor, bias_H: Tensor | None, eps: float) -> tuple[Tensor, Saved]:
    """Layer norm and the tensors to save; no autograd."""
    native = kernels_for(x_TH)
    if native is None:
        weight_H, bias_H = wide(weight_H), None if bias_H is None else wide(bias_H)
        output_TH, mean_T, deviation_T = torch.native_layer_norm(
            x_TH, weight_H.shape, weight_H, bias_H, eps
        )
        return output_TH, (x_TH, mean_T, deviation_T)
    weight_H, bias_H = weight_H.to(x_TH.dtype), None if bias_H is None else bias_H.to(x_TH.dtype)
    x_TH, output_TH = x_TH.contiguous(), torch.empty_like(x_TH)
    mean_T, deviation_T = torch.empty(2, len(x_TH))
    native("norm_forward", *x_TH.shape, x_TH, weight_H, bias_H, eps, output_TH, mean_T, deviation_T)
    return output_TH, (x_TH, mean_T, deviation_T)


def norm_gradients(
    gradient_TH: Tensor, kept: Saved, weight_H: Tensor, residual_TH: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `norm`: of x, with `residual_TH` added if given, of its weight and its bias."""
    gradient_TH = gradient_TH.contiguous()
    sum_TH, mean_T, deviation_T = kept
    native = kernels_for(gradient_TH, sum_TH)
    if native is None:
        weight_H = wide(weight_H)
        dx_TH = torch.ops.aten.native_layer_norm_backward(
            *(gradient_TH, sum_TH, weight_H.shape, mean_T, deviation_T),
            # only x's gradient: the weight's and bias's follow below
            *(weight_H, weight_H, [True, False, False]),
        )[0]
        return (
            dx_TH if residual_TH is None else dx_TH + residual_TH,
            _norm_weight_gradient(gradient_TH, kept),
            gradient_TH.sum(0),
        )
    residual_TH = None if residual_TH is None else residual_TH.contiguous()
    dx_TH = torch.empty_like(gradient_TH)
    # Rows of one buffer, which the kernel fills.
    dweight_H, dbias_H = sums_2H = gradient_TH.new_empty(2, gradient_TH.shape[1])
    native(
        "norm_backward",
        *(*gradient_TH.shape, gradient_TH, sum_TH, weight_H.to(gradient_TH.dtype)),
        *(mean_T, deviation_T, residual_TH, dx_TH, sums_2H),
    )
    return dx_TH, dweight_H, dbias_H


def residual_norm(
    dense_TH: Tensor,
    residual_TH: Tensor,
    parameters: tuple[Tensor, Tensor, float],
    draws: Draws | None,
) -> tuple[Tensor, Saved]:
    """The output, and the tensors to save. Overwrites `dense_TH`.

    `parameters` of the norm: weight, bias, epsilon.
    """
    weight_H, bias_H, eps = parameters
    native = kernels_for(dense_TH, residual_TH)
    if native is None:
        if draws is not None:
            # In place, the kept values still unscaled: the addition below scales them.
            keep_(dense_TH, draws.mask())
        torch.add(residual_TH, dense_TH, alpha=draws.scale if draws else 1.0, out=dense_TH)
        return norm(dense_TH, weight_H, bias_H, eps)
    output = torch.empty_like(dense_TH)
    mean_T, deviation_T = torch.empty(2, len(dense_TH))
    native(
        "residual_norm_forward",
        *(*dense_TH.shape, dense_TH, residual_TH.contiguous(), *dropping(draws)),
        *(weight_H.to(dense_TH.dtype), bias_H.to(dense_TH.dtype), eps),
        *(output, mean_T, deviation_T),
    )
    return output, (dense_TH, mean_T, deviation_T)


def residual_norm_gradients(
    gradient_TH: Tensor, kept: Saved, norm_weight_H: Tensor, draws: Draws | None
) -> tuple[Tensor, ...]:
    """Gradients of the residual, the dense output, its bias, the norm's weight and its bias.

    The first two may share memory; the third is the column sums of the second.
    """
    gradient_TH = gradient_TH.contiguous()
    sum_TH, mean_T, deviation_T = kept
    native = kernels_for(gradient_TH, sum_TH)
    if native is None:
        residual_TH, weight_H, bias_H = norm_gradients(gradient_TH, kept, norm_weight_H)
        dense_TH = residual_TH
        if draws is not None:
            dense_TH = keep_(residual_TH * draws.scale, draws.mask())
        return residual_TH, dense_TH, dense_TH.sum(0), weight_H, bias_H
    residual_TH, dense_TH = torch.empty_like(gradient_TH), torch.empty_like(gradient_TH)
    weight_H, bias_H, dense_H = sums_3H = gradient_TH.new_empty(3, gradient_TH.shape[1])
    native(
        "residual_norm_backward",
        *(*gradient_TH.shape, gradient_TH, sum_TH, *dropping(draws)),
        *(norm_weight_H.to(gradient_TH.dtype), mean_T, deviation_T),
        *(residual_TH, dense_TH, sums_3H),
    )
    return residual_TH, dense_TH, dense_H, weight_H, bias_H


def _norm_weight_gradient(gradient_TH: Tensor, kept: Saved) -> Tensor:
    """The column sums of gradient * (sum - mean) * deviation.

    Products accumulate in float32; torch's own backward pass accumulates in bfloat16, which is 4 %
    off after 3,000 tokens.
    """
    sum_TH, mean_T, deviation_T = kept
    # As products with a row vector, which accumulate in float32: sum(g d x) - sum(g d mean).
    deviation_1T = deviation_T.view(1, -1).to(gradient_TH.dtype)
    shift_1T = (mean_T * deviation_T).view(1, -1).to(gradient_TH.dtype)
    return (deviation_1T @ (gradient_TH * sum_TH) - shift_1T @ gradient_TH)[0]


class _LayerNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Context, x_TH: Tensor, weight_H: Tensor, bias_H: Tensor | None, eps: float
    ) -> Tensor:
        output_TH, kept = norm(x_TH, weight_H, bias_H, eps)
        ctx.save_for_backward(weight_H, *kept)
        return output_TH

    @staticmethod
    def backward(ctx: Context, gradient_TH: Tensor) -> tuple[Tensor | None, ...]:
        weight_H, *kept = ctx.saved_tensors
        dx_TH, dweight_H, dbias_H = norm_gradients(gradient_TH, kept, weight_H)
        return dx_TH, dweight_H, dbias_H if ctx.needs_input_grad[2] else None, None
