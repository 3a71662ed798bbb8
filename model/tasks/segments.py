"""Groups of different sizes in one flat tensor.

In:  values of all groups one after another, and the groups' sizes.
Out: one row a group, filled up with minus infinity, so that a softmax sees only the group.
"""

import math

import torch
from torch import Tensor


def by_group(values_T: Tensor, sizes_G: Tensor) -> Tensor:
    """[G, S] of [T] values; S is the largest size."""
    width = int(sizes_G.max())
    inside = torch.arange(width, device=values_T.device)[None] < sizes_G[:, None]
    padded = values_T.new_full((len(sizes_G), width), -math.inf)
    return padded.masked_scatter(inside, values_T)
