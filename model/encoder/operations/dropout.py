"""Dropout whose masks are a function of a seed and a place, not of what was drawn before.

In:  values, and a `Noise`: the address of a stream of random bits.
Out: values with a share set to zero, the others scaled up.

Addressed masks need no generator state in a checkpoint, and recomputed activations get the same
masks. torch's own CPU dropout takes about 5 ns a value, more than the matrix products round it;
here a fast generator fills 16 random bits a value, compared where the value is used anyway.
"""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from model.encoder.operations.native_kernels import kernels_for
from model.encoder.operations.products import Context, apply

BLOCK_WORDS = 1 << 17
"""64-bit words of one generator: a thread's unit of work, however many threads there are."""

CPU = torch.device("cpu")

_INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}
_threads = ThreadPoolExecutor(thread_name_prefix="dropout")


@dataclass(frozen=True)
class Noise:
    """The address of a stream of random bits."""

    address: tuple[int, ...]

    def at(self, *place: int) -> "Noise":
        """The stream of one place inside this one's: a layer, then a site in it."""
        return Noise((*self.address, *place))

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """`count` words of 64 random bits."""
        blocks = -(-count // BLOCK_WORDS)
        sizes = [min(BLOCK_WORDS, count - block * BLOCK_WORDS) for block in range(blocks)]
        if blocks == 1:
            return self._block(0, count)
        return np.concatenate(list(_threads.map(self._block, range(blocks), sizes)))

    def _block(self, block: int, count: int) -> npt.NDArray[np.uint64]:
        generator = np.random.Generator(np.random.SFC64([*self.address, block]))
        return generator.integers(0, 1 << 64, dtype=np.uint64, size=count)


@dataclass(frozen=True)
class DeviceNoise(Noise):
    """A GPU's own generator, seeded once for a whole forward pass.

    It has no address, so that compiled layers do not depend on the seed or on their number.
    """

    address: tuple[int, ...] = ()

    def at(self, *place: int) -> "Noise":
        """The generator itself: it goes on from layer to layer."""
        return self

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Not to be had: without an address every layer and step would get the same bits."""
        raise RuntimeError(f"{count} random words asked of a GPU's noise; draw on the device")


def noise_from(seed: int, device: torch.device) -> Noise:
    """The noise of one forward pass on `device`; any seed from 0 to 2^63-1."""
    if device.type == "cpu":
        return Noise((seed,))
    torch.cuda.manual_seed(seed)
    return DeviceNoise()


@dataclass(frozen=True)
class Draws:
    """Random bits for a number of values: one is dropped when its low 15 bits are below `limit`."""

    bits: Tensor
    """[count] int16 on the device of the values."""

    limit: int
    """The probability in 32768ths: 0.1 is 3277, that is 0.10001."""

    scale: float
    """What kept values are multiplied with: 1 / (1 - probability)."""

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
    if isinstance(noise, DeviceNoise):
        bits = torch.randint(-(1 << 15), 1 << 15, (count,), dtype=torch.int16, device=device)
    else:
        bits = torch.from_numpy(noise.words(-(-count // 4)).view(np.int16)[:count])
    return Draws(bits, round(probability * 0x8000), 1.0 / (1.0 - probability))


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
    native("drop", result.numel(), result, draws.bits, draws.limit, draws.scale)
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
