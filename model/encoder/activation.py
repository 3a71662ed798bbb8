"""GELU, tanh form or exact (reference: modeling.py:264-277).

In:  values.
Out: GELU of them; on the way back their gradient and its columns' sums.
"""

import torch
from torch import Tensor
from torch.nn import functional

from model.encoder.native_kernels import kernels_for

# T tokens, I width

APPROXIMATION = {"gelu_tanh": "tanh", "gelu": "none"}
"""torch's name for each form."""


def activation(values: Tensor, name: str) -> Tensor:
    """GELU: the reference's tanh form (`gelu_tanh`) or the exact one (`gelu`)."""
    native = kernels_for(values)
    if native is None or name == "gelu" or torch.is_grad_enabled():
        return functional.gelu(values, approximate=APPROXIMATION[name])
    result = torch.empty_like(values)
    native("gelu_forward", values.numel(), values.contiguous(), result, 1)
    return result


def activation_gradients(
    gradient_TI: Tensor, values_TI: Tensor, name: str
) -> tuple[Tensor, Tensor]:
    """Gradient of the values, [T, I], and its columns summed, [I]. May overwrite `gradient_TI`."""
    native = kernels_for(gradient_TI, values_TI)
    if native is None:
        through_TI = torch.ops.aten.gelu_backward(
            gradient_TI, values_TI, approximate=APPROXIMATION[name]
        )
        return through_TI, through_TI.sum(0)
    tokens, width = gradient_TI.shape
    threads = torch.get_num_threads()
    sums = torch.empty(threads, width)
    is_tanh = int(name == "gelu_tanh")
    native("gelu_backward", tokens, width, gradient_TI, values_TI, sums, is_tanh, threads)
    return gradient_TI, sums.sum(0).to(gradient_TI.dtype)
