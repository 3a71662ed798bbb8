"""What training knows of one parameter."""

from typing import NamedTuple

from torch import Tensor


class ParameterState(NamedTuple):
    """One parameter's training state: whole, fp32, on the CPU."""

    master: Tensor
    """The weights that are updated."""

    exp_avg: Tensor
    """First moment."""

    exp_avg_sq: Tensor
    """Second moment."""
