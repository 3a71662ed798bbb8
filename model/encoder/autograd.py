"""What all functions with a backward pass of their own need from torch."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function


def wide(tensor: Tensor) -> Tensor:
    """`tensor` in a type fit for statistics and sums: float32 at least."""
    return tensor.float() if tensor.dtype in (torch.bfloat16, torch.float16) else tensor


def apply(function: type[Function], *arguments: Any) -> Tensor:
    """The output of a function with its own backward pass and one output."""
    output: Tensor = function.apply(*arguments)  # type: ignore[no-untyped-call]  # torch has no types here
    return output
