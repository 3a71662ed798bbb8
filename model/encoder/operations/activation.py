"""GELU and gated GELU, in torch or with the native kernels.

In:  the outputs of a dense layer, and the form of GELU.
Out: activations; for layers with their own backward pass, also the gradients.
"""

import torch
from torch import Tensor
from torch.nn import functional

from cloze.model.encoder.operations.autograd import Context, apply
from cloze.model.encoder.operations.native_kernels import kernels_for

# T tokens of all sequences, I intermediate width

APPROXIMATION = {"gelu_tanh": "tanh", "gelu": "none"}
"""torch's name for each form of GELU."""


def activation(values: Tensor, name: str) -> Tensor:
    """GELU in the reference's tanh form (`gelu_tanh`, modeling.py:264-277) or the exact one."""
    return functional.gelu(values, approximate=APPROXIMATION[name])


def activate_(values_TI: Tensor, name: str, *, is_kept: bool = True) -> tuple[Tensor, Tensor]:
    """`activation` without autograd, [T, I], and, if kept, the input of `activation_gradients`.

    The native kernel returns the slopes, which come almost for free with the values; it overwrites
    `values_TI` with the result.
    """
    native = kernels_for(values_TI)
    if native is None:
        return activation(values_TI, name), values_TI
    # [T, I]; without a gradient to come, the kernel skips the slopes (a null pointer)
    slopes_TI = torch.empty_like(values_TI) if is_kept else None
    native("gelu_forward", values_TI.numel(), values_TI, slopes_TI, int(name == "gelu_tanh"))
    return values_TI, values_TI if slopes_TI is None else slopes_TI


def activation_gradients(gradient_TI: Tensor, kept_TI: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Gradient of the values, [T, I], and its column sums, [I]. May overwrite `gradient_TI`."""
    native = kernels_for(gradient_TI, kept_TI)
    if native is None:
        through_TI = torch.ops.aten.gelu_backward(
            gradient_TI, kept_TI, approximate=APPROXIMATION[name]
        )
        return through_TI, through_TI.sum(0)
    sums_I = gradient_TI.new_empty(gradient_TI.shape[1])
    native("gelu_backward", *gradient_TI.shape, gradient_TI, kept_TI, sums_I)
    return gradient_TI, sums_I


def gated_gelu(inner_T2I: Tensor, name: str) -> Tensor:
    """GELU of the first half times the second half, [T, I]."""
    if kernels_for(inner_T2I) is not None:
        is_kept = torch.is_grad_enabled() and inner_T2I.requires_grad
        return apply(_GatedGelu, inner_T2I, name, is_kept)
    inner_TI, gate_TI = inner_T2I.chunk(2, dim=-1)
    return activation(inner_TI, name) * gate_TI


class _GatedGelu(torch.autograd.Function):
    """Native kernels; if the input is saved, it is overwritten with the factors of the gradient."""

    @staticmethod
    def forward(ctx: Context, inner_T2I: Tensor, name: str, is_kept: bool) -> Tensor:
        # The kernel then overwrites this input with the gradient's factors, so that nothing else is
        # saved.
        # torch does not notice that: the kernel writes by address, so the version of the saved
        # tensor stays.
        ctx.save_for_backward(inner_T2I)
        tokens, width = inner_T2I.shape
        gated_TI = inner_T2I.new_empty(tokens, width // 2)
        native = kernels_for(inner_T2I)
        assert native is not None
        flags = (name == "gelu_tanh", is_kept)
        native("geglu_forward", *gated_TI.shape, inner_T2I, gated_TI, *flags)
        return gated_TI

    @staticmethod
    def backward(ctx: Context, gradient_TI: Tensor) -> tuple[Tensor, None, None]:
        (factors_T2I,) = ctx.saved_tensors
        dinner_T2I = torch.empty_like(factors_T2I)
        native = kernels_for(gradient_TI)
        assert native is not None
        gradient_TI = gradient_TI.contiguous()
        native("geglu_backward", *gradient_TI.shape, gradient_TI, factors_T2I, dinner_T2I)
        return dinner_T2I, None, None
