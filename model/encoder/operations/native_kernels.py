"""CPU kernels compiled on the machine where they run, if it has a compiler.

In:  the C files of this folder, and kernels.h with what they share; GCC
     (artifacts/runtime/native.py).
Out: `kernels()` for bfloat16 or float32, or None: then plain torch computes the same, with the same
     dropout masks and up to rounding.

The kernels use torch's threads: the OpenMP symbols are left undefined at link time and are resolved
to the runtime that torch has already loaded, whose symbols not every build of torch makes visible.
"""

import ctypes
import os
import platform
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from cloze.artifacts.errors import UsageError
from cloze.artifacts.runtime.native import compiled, signatures

SOURCES = tuple(
    Path(__file__).with_name(name)
    for name in (
        *("kernels.h", "elementwise.c", "attention.c", "products.c", "updates.c", "inference.c"),
    )
)
_X86_64 = ("-mprefer-vector-width=512", "-mrecip")
"""Compilers for other processors refuse these."""

FLAGS = (
    "-march=native",
    *(_X86_64 if platform.machine() == "x86_64" else ()),
    "-ffast-math",
    "-fno-finite-math-only",  # a diverged loss must remain visible
    "-fno-thread-jumps",  # keeps clamping at two instructions instead of a dozen
    "-fopenmp",
    "-Werror=missing-prototypes",  # every function is declared in kernels.h, or static
)
OPENMP = re.compile(r"lib(gomp|i?omp)[-.\d]")
"""The files of OpenMP runtimes, such as libgomp-947d5fa1.so.1.0.0."""

Choice = Literal["auto", "native", "torch"]

_PRODUCTS = ("product", "transposed_product", "orthogonalise")
"""Functions that a library has only if they compute in float32, or with the tile unit (AMX)."""

_FLAGS = {torch.bfloat16: (), torch.float32: ("-DFLOAT32",)}
"""Compiler flags per dtype."""

_choice: list[Choice] = ["auto"]


class Kernels:
    """The compiled functions of kernels.h, callable with tensors."""

    def __init__(self, library: ctypes.CDLL, names: Iterable[str]) -> None:
        self._functions = {name: getattr(library, name) for name in names}

    @property
    def has_tiles(self) -> bool:
        """Whether the processor's tile unit (AMX) computes products in bfloat16."""
        return "transposed_product" in self._functions

    def __call__(self, name: str, *arguments: Tensor | float | None) -> int:
        """Call a function with numbers and the addresses of tensors; what it returns, or 0.

        Tensors are contiguous, except where their strides are passed too.
        """
        found = self._functions[name](
            *[each.data_ptr() if isinstance(each, Tensor) else each for each in arguments]
        )
        return found or 0


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


def _show_openmp() -> None:
    """Make the symbols of the OpenMP runtime that is loaded visible to libraries loaded later.

    torch's wheels for Arm keep those of their own copy to themselves.
    """
    maps = Path("/proc/self/maps")
    for line in maps.read_text().splitlines() if maps.exists() else ():
        path = line.split(maxsplit=5)[-1]
        if OPENMP.match(os.path.basename(path)):
            ctypes.CDLL(path, mode=os.RTLD_GLOBAL | os.RTLD_NOLOAD | os.RTLD_NOW)
            return


@cache
def _compiled(dtype: torch.dtype) -> Kernels | None:
    _show_openmp()
    library = compiled(*SOURCES, flags=(*FLAGS, *_FLAGS[dtype]), optional=_PRODUCTS)
    if library is None:
        return None
    names = {name for name in signatures(SOURCES[0]) if hasattr(library, name)}
    # The library has products for tiles, but the operating system may refuse the tile unit.
    if dtype == torch.bfloat16 and not library.may_use_tiles():
        names -= {*_PRODUCTS}
    return Kernels(library, names)
