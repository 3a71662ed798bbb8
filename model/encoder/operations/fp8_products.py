"""Matrix products in FP8, for the hidden layers of pre-training on GPUs that have them.

In:  x, a weight, a bias, in bfloat16, as `products.affine` takes them.
Out: x W + b in bfloat16; in the backward pass the three gradients.

Activations and weights are rounded to E4M3, gradients to E5M2 for its range (Micikevicius et al.
2022, arXiv 2209.05433). Every tensor has one scale, taken from its largest value at that moment:
nothing is carried from step to step, so checkpoints know nothing of FP8. Sums are float32.

On a CPU the same rounded values are multiplied in float32 (`product_in_float32`). That is slower
than bfloat16; it is what tests and `benchmarks/gpu/fp8_loss.py` compare with it.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from model.config import FP8_MULTIPLE
from model.encoder.operations.products import Context, apply

# T tokens, I inputs of a product, O outputs


class Scaled(NamedTuple):
    """A tensor in FP8: `values` times `scale` is about what it was."""

    values: Tensor
    scale: Tensor
    """A scalar, float32."""


def scaled(tensor: Tensor, dtype: torch.dtype) -> Scaled:
    """`tensor` in an FP8 type, scaled so that its largest value is the type's largest.

    A tensor that is not finite stays so: its scale is NaN or infinite.
    """
    most = torch.finfo(dtype).max
    # A tensor of zeros has no largest value. No float of the module here: torch.compile makes it an
    # input of the graph, which a function with its own backward pass cannot take.
    smallest = torch.finfo(torch.float32).tiny
    scale = (tensor.abs().amax().float() / most).clamp_min(smallest)
    values = (tensor.float() / scale).clamp(-most, most).to(dtype)
    return Scaled(values.contiguous(), scale)


def fp8_affine(
    x_TI: Tensor, weight: Tensor, bias_O: Tensor, *, input_first: bool = False
) -> Tensor:
    """`products.affine` in FP8: [T, O]; I and O must be multiples of 16."""
    return apply(_Fp8Affine, x_TI, weight.mT if input_first else weight, bias_O)


class _Fp8Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
        x, weight = scaled(x_TI, torch.float8_e4m3fn), scaled(weight_OI, torch.float8_e4m3fn)
        ctx.save_for_backward(*x, *weight)
        # Sums of 128 products in registers, the faster way, are exact enough for what comes out.
        return _product(x, weight, bias=bias_O, fast=True)

    @staticmethod
    def backward(ctx: Context, gradient_TO: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = Scaled(*ctx.saved_tensors[:2]), Scaled(*ctx.saved_tensors[2:])
        gradient = scaled(gradient_TO, torch.float8_e5m2)
        return (
            _product(gradient, _turned(weight)),
            _product(_turned(gradient), _turned(x)),
            gradient_TO.sum(0),
        )


def _product(
    left_MK: Scaled, right_NK: Scaled, *, bias: Tensor | None = None, fast: bool = False
) -> Tensor:
    """Left times right^T plus bias, [M, N] bfloat16.

    Both operands have K in their rows: Hopper has kernels for no other layout.
    """
    if left_MK.values.device.type == "cpu":
        return product_in_float32(
            left_MK.values, right_NK.values.mT, left_MK.scale, right_NK.scale, bias
        )
    product_MN: Tensor = torch._scaled_mm(
        left_MK.values,
        right_NK.values.mT,
        left_MK.scale,
        right_NK.scale,
        bias=bias,
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )
    return product_MN


def product_in_float32(
    left_MK: Tensor,
    right_KN: Tensor,
    left_scale: Tensor,
    right_scale: Tensor,
    bias_N: Tensor | None = None,
) -> Tensor:
    """What `torch._scaled_mm` computes, [M, N] bfloat16.

    torch's own form for CPUs hands FP8 values to oneDNN, which on a processor with AMX has no
    kernel for them but its reference, a hundred times slower.
    """
    product_MN = left_MK.float() @ right_KN.float() * (left_scale * right_scale)
    return (product_MN if bias_N is None else product_MN + bias_N.float()).bfloat16()


def _turned(tensor_MN: Scaled) -> Scaled:
    """The transposed tensor as a copy, [N, M], M filled with zeros up to a multiple."""
    values_MN = tensor_MN.values
    missing = -len(values_MN) % FP8_MULTIPLE
    if missing:
        bytes_MN = functional.pad(values_MN.view(torch.uint8), (0, 0, 0, missing))
        values_MN = bytes_MN.view(values_MN.dtype)
    return Scaled(values_MN.mT.contiguous(), tensor_MN.scale)
