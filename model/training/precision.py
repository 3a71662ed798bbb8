"""A model of fp32 parameters that computes in bf16.

In:  a module with fp32 parameters, its usual arguments.
Out: its usual result, computed with copies of the parameters rounded to bf16.

The parameters themselves are the masters: gradients reach them in fp32 and add up there over the
micro-batches. Rounding is one autograd node for all parameters; with `autocast` it would be one for
each use of each.
"""

import copy
from collections.abc import Iterator
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.function import FunctionCtx

from artifacts.errors import UsageError
from model.encoder.products import apply

M = TypeVar("M", bound=nn.Module)

FP8_CAPABILITY = (8, 9)
"""Ada, Hopper and what came after them have FP8 products."""


def require_fp8(device: torch.device) -> None:
    """Refuse `pretrain.precision = "fp8"` where it would be computed by detours, or not at all."""
    found = device.type
    if device.type == "cuda":
        capability = torch.cuda.get_device_capability(device)
        if capability >= FP8_CAPABILITY:
            return
        found = f"{torch.cuda.get_device_name(device)} of {capability[0]}.{capability[1]}"
    raise UsageError(
        f'pretrain.precision = "fp8" on {found}: FP8 products want an NVIDIA GPU of compute '
        'capability 8.9 or higher; use "bf16", or "auto"'
    )


def rounded(module: M) -> M:
    """A copy of `module` with bf16 parameters, for computing without gradients."""
    return copy.deepcopy(module).to(torch.bfloat16)


class Rounded(nn.Module):
    """`module` with every parameter rounded to bf16 for each forward pass."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module
        self._places = [(owner._parameters, name) for owner, name in _parameter_places(module)]

    def forward(self, *arguments: object) -> object:
        """What `module` returns."""
        # As torch.func.functional_call, which takes a millisecond to find its way by names.
        parameters = [held[name] for held, name in self._places]
        try:
            for (held, name), copy_ in zip(self._places, apply(_Round, *parameters), strict=True):
                held[name] = copy_  # a tensor in a parameter's place
            return self.module(*arguments)
        finally:
            for (held, name), parameter in zip(self._places, parameters, strict=True):
                held[name] = parameter


def _parameter_places(module: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Where every parameter of `module` is kept, in the order of `parameters()`."""
    for owner in module.modules():
        yield from ((owner, name) for name, _ in owner.named_parameters(recurse=False))


class _Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, *parameters: Tensor) -> tuple[Tensor, ...]:
        copies = [torch.empty_like(p, dtype=torch.bfloat16) for p in parameters]
        torch._foreach_copy_(copies, list(parameters))
        return tuple(copies)

    @staticmethod
    def backward(ctx: FunctionCtx, *gradients: Tensor) -> tuple[Tensor, ...]:
        exact = [torch.empty_like(g, dtype=torch.float32) for g in gradients]
        torch._foreach_copy_(exact, list(gradients))
        return tuple(exact)
