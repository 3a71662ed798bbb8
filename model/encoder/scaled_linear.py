"""A linear layer for numbers of any size.

In:  the numbers that it will have to give.
Out: a layer that learns them standardised, and the plain linear layer that it becomes when saved.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

LARGEST_NUMBER, LEAST_DEVIATION = 10, 0.1
"""Numbers up to which, and deviations from which on, they are learnt as they are, as GLUE's
reference learns STS-B's, 0 to 5. Others are standardised."""


class ScaledLinear(nn.Linear):
    """A linear layer that can learn numbers of any size: its output times `scale`, plus `shift`.

    Weights begin near 0 and move by small steps, which never get to hundreds. Both factors are
    folded into the weights before these are saved.
    """

    scale: float = 1.0
    shift: float | Tensor = 0.0

    def forward(self, input: Tensor) -> Tensor:
        """Numbers on their own scale, in fp32 if there is one: in bf16, 2,001 is 2,000."""
        found = super().forward(input)
        is_plain = isinstance(self.shift, float) and (self.scale, self.shift) == (1.0, 0.0)
        return found if is_plain else found.float() * self.scale + self.shift

    @torch.no_grad()
    def install(self, weight: Tensor, bias: Tensor) -> None:
        """Take the weights of a layer without scale and shift, which stay."""
        self.weight.copy_(weight / self.scale)
        self.bias.copy_((bias - self.shift) / self.scale)

    def standardise(self, shift: float, scale: float) -> None:
        """Learn in this unit from now on; the output stays the same."""
        self.fold()
        weight, bias = self.weight.detach().clone(), self.bias.detach().clone()
        self.scale, self.shift = scale, shift
        self.install(weight, bias)

    @torch.no_grad()
    def fold(self) -> None:
        """Put scale and shift into the weights; the output stays the same."""
        self.weight.mul_(self.scale)
        self.bias.mul_(self.scale).add_(self.shift)
        self.scale, self.shift = 1.0, 0.0

    @torch.no_grad()
    def set_bias_apart(self) -> None:
        """Make the bias the shift, which is not rounded where the weights are; for inference."""
        self.shift = self.bias.detach().float() * self.scale + self.shift
        self.bias.zero_()


def unit_of(numbers: NDArray[np.generic]) -> tuple[float, float]:
    """Mean and deviation, in which a `ScaledLinear` learns these; 0 and 1: as they are."""
    values = np.asarray(numbers, np.float64)
    deviation = float(values.std())
    if np.abs(values).max() <= LARGEST_NUMBER and (deviation >= LEAST_DEVIATION or not deviation):
        return 0.0, 1.0
    return float(values.mean()), deviation or 1.0
