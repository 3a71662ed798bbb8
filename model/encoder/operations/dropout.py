"""Dropout whose masks are a function of a seed and a place, not of what was drawn before.

In:  values, and a `Noise`: the address of a stream of random bits.
Out: values with a share set to zero, the others scaled up.

Addressed masks need no generator state in a checkpoint, and recomputed activations get the same
masks. torch's own CPU dropout takes about 5 ns a value, more than the matrix products around it;
here a counter-based generator gives 16 bits a value, where the value is used anyway.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from artifacts import rng
from model.encoder.operations.native_kernels import kernels, kernels_for
from model.encoder.operations.products import Context, apply

BLOCK_WORDS = 1 << 16
"""64-bit words that NumPy makes at a time: they stay in a core's cache."""

CPU = torch.device("cpu")

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True)
class Noise:
    """The address of a stream of random bits."""

    address: tuple[int, ...]

    def at(self, *place: int) -> "Noise":
        """The stream of one place inside this one's: a layer, then a site in it."""
        return Noise((*self.address, *place))

    @property
    def stream(self) -> int:
        """The stream's number, for `rng.draw`."""
        return rng.address("dropout", *self.address)


@dataclass(frozen=True)
class DeviceNoise(Noise):
    """A GPU's own generator, seeded once for a whole forward pass.

    It has no address, so that compiled layers do not depend on the seed or on their number.
    """

    address: tuple[int, ...] = ()

    def at(self, *place: int) -> "Noise":
        """The generator itself: it goes on from layer to layer."""
        return self

    @property
    def stream(self) -> int:
        """Not to be had: without an address every layer and step would get the same bits."""
        raise RuntimeError("a stream asked of a GPU's noise; draw on the device")


def noise_from(seed: int, device: torch.device) -> Noise:
    """The noise of one forward pass on `device`; any seed from 0 to 2^63-1."""
    if device.type == "cpu":
        return Noise((seed,))
    torch.cuda.manual_seed(seed)
    return DeviceNoise()


@dataclass(frozen=True)
class Draws:
    """Random bits for a number of values: one is dropped when its low 15 bits are below `limit`."""

    count: int

    limit: int
    """The probability in 32768ths: 0.1 is 3277, that is 0.10001."""

    scale: float
    """What kept values are multiplied with: 1 / (1 - probability)."""

    stream: int = 0
    """Of `rng.draw`: native kernels draw from it where they use the bits."""

    on_device: Tensor | None = None
    """[count] int16: what a GPU's generator gave."""

    @property
    def bits(self) -> Tensor:
        """[count] int16 on the device of the values: four of each of the stream's words."""
        if self.on_device is not None:
            return self.on_device
        words, native = np.empty(-(-self.count // 4), np.int64), kernels()
        if native is not None:
            native("random_words", len(words), self.stream, torch.from_numpy(words))
        for first in range(0, 0 if native else len(words), BLOCK_WORDS):
            counters = np.arange(first, min(first + BLOCK_WORDS, len(words)))
            drawn = rng.draw(np.uint64(self.stream), counters)
            words[first : first + BLOCK_WORDS] = drawn.view(np.int64)
        return torch.from_numpy(words.view(np.int16)[: self.count])

    def mask(self) -> Tensor:
        """[count] int16: all bits set where a value is kept, none where it is dropped."""
        low = self.bits & 0x7FFF
        # limit - 1 - low is negative where the value is kept; its sign fills all bits
        return torch.sub(self.limit - 1, low, out=low).bitwise_right_shift_(15)


def draw(
    noise: Noise | None, count: int, *, probability: float, device: torch.device = CPU
) -> Draws | None:
    """Draws for `count` values on `device`; None if nothing is dropped."""
    if noise is None or probability == 0.0:
        return None
    limit, scale = round(probability * 0x8000), 1.0 / (1.0 - probability)
    if isinstance(noise, DeviceNoise):
        bits = torch.randint(-(1 << 15), 1 << 15, (count,), dtype=torch.int16, device=device)
        return Draws(count, limit, scale, on_device=bits)
    return Draws(count, limit, scale, noise.stream)


def keep_(values: Tensor, mask: Tensor) -> Tensor:
    """`values` (contiguous), in place set to zero where `Draws.mask` says so. No scaling."""
    integers = _INTEGERS[values.element_size()]
    values.view(integers).view(-1).bitwise_and_(mask.to(integers))
    return values


def dropped(values: Tensor, draws: Draws) -> Tensor:
    """A new tensor: `values` times the scale where kept, else zero."""
    values = values.contiguous()
    native = kernels_for(values)
    if native is None:
        return keep_(values * draws.scale, draws.mask())
    result = values.clone()
    native("drop", result.numel(), result, draws.stream, draws.limit, draws.scale)
    return result


def dropout(values: Tensor, probability: float, noise: Noise | None) -> Tensor:
    """`values` with each element zero with `probability`, else divided by 1 - `probability`.

    Without noise the values themselves. On a GPU the mask comes from the device's generator, which
    `Encoder` seeds from the same dropout seed.
    """
    if noise is None or probability == 0.0:
        return values
    if values.device.type != "cpu":
        return functional.dropout(values, probability)
    return apply(_Dropout, values, draw(noise, values.numel(), probability=probability))


class _Context(Context):
    draws: Draws


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _Context, values: Tensor, draws: Draws) -> Tensor:
        ctx.draws = draws
        return dropped(values, draws)

    @staticmethod
    def backward(ctx: _Context, gradient: Tensor) -> tuple[Tensor, None]:
        return dropped(gradient, ctx.draws), None
