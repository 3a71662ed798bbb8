"""The reference's random beginning.

In:  freshly built modules.
Out: the same modules: weights truncated normal, biases zero, layer norms one and zero.

Truncation at two sigma makes the true deviation 0.88 of the nominal one (modeling.py:375-377).
"""

from torch import Tensor, nn


def initialise(module: nn.Module, *, deviation: float) -> None:
    """Draw every parameter of `module` from torch's global generator, in the order of the names."""
    for name, parameter in sorted(module.named_parameters()):
        initialise_parameter(name, parameter, deviation=deviation)


def initialise_parameter(name: str, parameter: Tensor, *, deviation: float) -> None:
    """Draw one parameter by the role that its name tells."""
    if name.endswith("bias"):
        nn.init.zeros_(parameter)
    elif "layer_norm" in name:
        nn.init.ones_(parameter)
    else:
        nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
