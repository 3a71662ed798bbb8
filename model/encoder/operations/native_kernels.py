"""Kernels compiled on the machine they run on, where it has a compiler.

In:  kernels.c beside this file; GCC (artifacts/runtime/native.py).
Out: `kernels()`, or None: then everything runs in plain torch, with the same masks and the same
     results but for rounding.

The threads are torch's own: the OpenMP symbols stay undefined when the library is linked and are
found in the runtime that torch has already loaded.
"""

import ctypes
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from artifacts.errors import UsageError
from artifacts.runtime.native import load

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (
    "-march=native",
    "-mprefer-vector-width=512",
    "-mrecip",
    "-ffast-math",
    "-fno-finite-math-only",  # a diverged loss must be seen
    "-fno-thread-jumps",  # a value clamped is two instructions, not a dozen
    "-fopenmp",
)
Choice = Literal["auto", "native", "torch"]

_SIGNATURES = {
    "random_words": "-nnp",
    "drop": "-npnif",
    "gelu_forward": "-nppi",
    "gelu_backward": "-nnpppi",
    "residual_norm_forward": "-nnppnifppfppp",
    "residual_norm_backward": "-nnppnifpppppppi",
    "norm_forward": "-nnppfppp",
    "norm_backward": "-nnppppppppi",
    "geglu_forward": "-nnppi",
    "geglu_backward": "-nnppp",
    "rotate": "-nnnpppp",
    "transpose": "-nnpp",
    "column_sums": "-nnppi",
    "softmax_forward": "-nnnpiippnni",
    "softmax_in_ranges": "-nnnppp",
    "softmax_backward": "-nnppnni",
    "short_attention_forward": "-nnnnppiipnnifp",
    "short_attention_backward": "-nnnnppiipnnifpp",
    "cross_entropy": "-nnnppppp",
    "squared_gradients": "-npppp",
    "adamw": "-npppppppffffff",
    "muon_momentum": "-npppppff",
    "muon_move": "-nppppff",
}
"""Of each function in kernels.c."""

_choice: list[Choice] = ["auto"]


class Kernels:
    """The compiled functions of kernels.c, called with tensors."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._functions = {name: getattr(library, name) for name in _SIGNATURES}

    def __call__(self, name: str, *arguments: Tensor | float | None) -> None:
        """Run a function on the addresses of contiguous tensors, and numbers."""
        self._functions[name](
            *(
                argument.data_ptr() if isinstance(argument, Tensor) else argument
                for argument in arguments
            )
        )


def kernels() -> Kernels | None:
    """The compiled kernels, or None where they cannot be had or are not wanted."""
    return None if _choice[0] == "torch" else _compiled()


def kernels_for(*tensors: Tensor) -> Kernels | None:
    """The kernels, if they fit all `tensors`: bfloat16 on the CPU."""
    fit = all(t.device.type == "cpu" and t.dtype == torch.bfloat16 for t in tensors)
    return kernels() if fit else None


def choose_kernels(choice: Choice) -> None:
    """`auto`: native where possible; `native`: an error where not; `torch`: never."""
    if choice == "native" and _compiled() is None:
        raise UsageError("native kernels want Linux and GCC on the PATH; install gcc, or use auto")
    _choice[0] = choice


def kernels_in_use() -> Literal["native", "torch"]:
    """What bfloat16 on a CPU runs with, by name."""
    return "torch" if kernels() is None else "native"


@cache
def _compiled() -> Kernels | None:
    library = load(SOURCE, _SIGNATURES, *FLAGS)
    return None if library is None else Kernels(library)
