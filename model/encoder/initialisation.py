"""Initial values of parameters, and modules without any.

In:  modules, or the names and tensors of their parameters.
Out: the same tensors, initialised by their roles from torch's global generator.

As in the reference: weights truncated normal, biases zero, layer norms one and zero. Truncation at
two sigma reduces the standard deviation to 0.88 of the nominal one (modeling.py:375-377).
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from model.config import EncoderConfig


def initialise(module: nn.Module, config: EncoderConfig) -> None:
    """Initialise every parameter of `module`, in order of names."""
    for name, parameter in sorted(module.named_parameters()):
        initialise_parameter(name, parameter, config)


def initialise_parameter(name: str, parameter: Tensor, config: EncoderConfig) -> None:
    """Initialise one parameter according to its role, given by its name.

    In the modern family, weights that write to the residual stream are scaled down with the number
    of layers (Warner et al. 2024, A.2).
    """
    deviation = config.initializer_range
    if config.family == "modern" and name.endswith(("output_weight", "pooler.dense.weight")):
        deviation /= math.sqrt(2 * config.num_hidden_layers)
    if "bias" in name.rpartition(".")[2]:
        nn.init.zeros_(parameter)
    elif "layer_norm" in name:
        nn.init.ones_(parameter)
    else:
        nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)


class _NothingDrawn(TorchFunctionMode):
    """Skips the initialisation that torch's modules perform."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """The tensor unchanged if `func` would initialise it."""
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Modules created inside live on the meta device: names and shapes, without values.

    Their initialisation is skipped too: on the meta device, torch imports its compiler for it,
    which takes seconds.
    """
    with torch.device("meta"), _NothingDrawn():
        yield
