"""CPU kernels compiled on the machine where they run, if it has a compiler.

In:  kernels.c in this folder; GCC (artifacts/runtime/native.py).
Out: `kernels()` for bfloat16 or float32, or None: then plain torch computes the same, with the same
     dropout masks and up to rounding.

The kernels use torch's threads: the OpenMP symbols are left undefined at link time and are resolved
to the runtime that torch has already loaded.
"""

import ctypes
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from cloze.artifacts.errors import UsageError
from cloze.artifacts.runtime.native import compiled, declare

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (
    "-march=native",
    "-mprefer-vector-width=512",
    "-mrecip",
    "-ffast-math",
    "-fno-finite-math-only",  # a diverged loss must remain visible
    "-fno-thread-jumps",  # keeps clamping at two instructions instead of a dozen
    "-fopenmp",
)
Choice = Literal["auto", "native", "torch"]

_SIGNATURES = {
    "random_words": "-nnp",
    "drop": "-npnif",
    "gelu_forward": "-nppi",
    "gelu_backward": "-nnppp",
    "residual_norm_forward": "-nnppnifppfppp",
    "residual_norm_backward": "-nnppnifpppppp",
    "norm_forward": "-nnpppfppp",
    "norm_backward": "-nnpppppppp",
    "geglu_forward": "-nnppii",
    "geglu_backward": "-nnppp",
    "transpose": "-nnpp",
    "column_sums": "-nnpp",
    "attention_forward": "-nnnpnnnpppnifpp",
    "attention_backward": "-nnnpnnnpppnifpppp",
    "may_use_tiles": "i",
    "cross_entropy": "-nnpppppp",
    "squared_gradients": "-npppp",
    "adamw": "-npppppppffffff",
    "muon_momentum": "-npppppff",
    "muon_move": "-nppppff",
}
"""Argument types of the functions that both libraries have."""

_FLOAT32_PRODUCTS = {"product": "-nnnpnnpnnpiipn"}
_TILE_PRODUCTS = {
    **_FLOAT32_PRODUCTS,
    "transposed_product": "-nnnnppp",
    "orthogonalise": "-nnnppifff",
}
"""Those of the products in float32, and of the ones for the tile unit (AMX) in bfloat16."""

_FLAGS = {torch.bfloat16: (), torch.float32: ("-DFLOAT32",)}
"""Compiler flags per dtype."""

_choice: list[Choice] = ["auto"]


class Kernels:
    """The compiled functions of kernels.c, callable with tensors."""

    def __init__(self, library: ctypes.CDLL, names: Iterable[str]) -> None:
        self._functions = {name: getattr(library, name) for name in names}

    @property
    def has_tiles(self) -> bool:
        """Whether the processor's tile unit (AMX) computes products in bfloat16."""
        return "transposed_product" in self._functions

    def __call__(self, name: str, *arguments: Tensor | float | None) -> None:
        """Call a function with numbers and the addresses of tensors.

        Tensors are contiguous, except where their strides are passed too.
        """
        self._functions[name](
            *[each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
        )


def kernels(dtype: torch.dtype = torch.bfloat16) -> Kernels | None:
    """The kernels for tensors of `dtype`; None if unavailable or disabled."""
    return None if _choice[0] == "torch" or dtype not in _FLAGS else _compiled(dtype)


def kernels_for(*tensors: Tensor) -> Kernels | None:
    """The kernels for `tensors`, if these share a dtype and are on the CPU."""
    dtype = tensors[0].dtype
    for tensor in tensors:
        if not tensor.is_cpu or tensor.dtype != dtype:
            return None
    return kernels(dtype)


def choose_kernels(choice: Choice) -> None:
    """`auto`: native if possible; `native`: required; `torch`: never."""
    if choice == "native" and _compiled(torch.bfloat16) is None:
        raise UsageError(
            "native kernels require Linux and GCC on the PATH; install gcc, or use auto"
        )
    _choice[0] = choice


def kernels_in_use() -> Literal["native", "torch"]:
    """The kind of kernels used on a CPU."""
    return "torch" if kernels() is None else "native"


@cache
def _compiled(dtype: torch.dtype) -> Kernels | None:
    library = compiled(SOURCE, _SIGNATURES, *FLAGS, *_FLAGS[dtype])
    if library is None:
        return None
    products = _FLOAT32_PRODUCTS if dtype == torch.float32 else {}
    if library.may_use_tiles():  # never in float32
        products = _TILE_PRODUCTS
    declare(library, products)
    return Kernels(library, (*_SIGNATURES, *products))
