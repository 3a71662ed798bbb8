"""FP8 matrix products for the hidden layers in pre-training, on GPUs that support them.

In:  x, a weight and a bias in bfloat16, as for `products.affine`.
Out: x W + b in bfloat16; in the backward pass, the three gradients.

Activations and weights are rounded to E4M3, gradients to E5M2 for its range (Micikevicius et al.
2022, arXiv 2209.05433). Every tensor has one scale, computed from its current maximum: no scaling
state is carried across steps or checkpoints. Sums are float32.

On a CPU the same rounded values are multiplied in float32 (`product_in_float32`), which is slower
than bfloat16 and serves tests and `benchmarks/gpu/fp8_loss.py` as a reference.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from model.config import FP8_MULTIPLE
from model.encoder.operations.autograd import Context, apply

# T tokens, I inputs of a product, O outputs


class Scaled(NamedTuple):
    """A tensor in FP8, approximately `values` times `scale`."""

    values: Tensor
    scale: Tensor
    """A scalar, float32."""


def scaled(tensor: Tensor, dtype: torch.dtype) -> Scaled:
    """`tensor` in an FP8 type, scaled so that its maximum is the largest value of the type.

    The result of a non-finite tensor is non-finite: its scale is NaN or infinite.
    """
    most = torch.finfo(dtype).max
    # Avoids division by zero for a tensor of zeros. Not a module-level float: torch.compile would
    # turn it into a graph input, which an autograd function cannot take.
    smallest = torch.finfo(torch.float32).tiny
    scale = (tensor.abs().amax().float() / most).clamp_min(smallest)
    values = (tensor.float() / scale).clamp(-most, most).to(dtype)
    return Scaled(values.contiguous(), scale)


def fp8_affine(
    x_TI: Tensor, weight: Tensor, bias_O: Tensor, *, input_first: bool = False
) -> Tensor:
    """`products.affine` in FP8, [T, O]; I and O must be multiples of 16."""
    return apply(_Fp8Affine, x_TI, weight.mT if input_first else weight, bias_O)


class _Fp8Affine(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Context, x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor) -> Tensor:
        x, weight = scaled(x_TI, torch.float8_e4m3fn), scaled(weight_OI, torch.float8_e4m3fn)
        ctx.save_for_backward(*x, *weight)
        # Fast accumulation (128 products at a time in registers) is accurate enough for bfloat16
        # output.
        return _product(x, weight, bias=bias_O, fast=True)

    @staticmethod
    def backward(ctx: Context, gradient_TO: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        saved = ctx.saved_tensors  # read once: a checkpoint recomputes them only once
        x, weight = Scaled(*saved[:2]), Scaled(*saved[2:])
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

    K is the last dimension of both operands: Hopper supports no other layout.
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
    """The result of `torch._scaled_mm`, computed in float32, [M, N] bfloat16.

    torch's CPU version passes FP8 values to oneDNN, whose reference kernel is a hundred times
    slower on CPUs with AMX.
    """
    product_MN = left_MK.float() @ right_KN.float() * (left_scale * right_scale)
    return (product_MN if bias_N is None else product_MN + bias_N.float()).bfloat16()


def _turned(tensor_MN: Scaled) -> Scaled:
    """A transposed copy, [N, M], with M zero-padded to a multiple of 16."""
    values_MN = tensor_MN.values
    missing = -len(values_MN) % FP8_MULTIPLE
    if missing:
        bytes_MN = functional.pad(values_MN.view(torch.uint8), (0, 0, 0, missing))
        values_MN = bytes_MN.view(values_MN.dtype)
    return Scaled(values_MN.mT.contiguous(), tensor_MN.scale)
