"""Typed helpers for functions with a hand-written backward pass.

In:  a `torch.autograd.Function`, its arguments.
Out: its output.
"""

from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import FunctionCtx


class Context(FunctionCtx):
    """What torch carries from a function's forward pass to its backward pass."""

    saved_tensors: tuple[Tensor, ...]
    """The tensors given to `save_for_backward`."""

    needs_input_grad: tuple[bool, ...]
    """Whether each argument of the forward pass needs a gradient."""


def apply(function: type[Function], *arguments: object) -> Tensor:
    """The output of a function with a single output."""
    output: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]  # torch has no types here
    return output
