"""Kernels compiled on the machine they run on, where it has a compiler.

In:  kernels.c beside this file; GCC.
Out: `kernels()`, or None: then everything runs in plain torch, with the same masks and the same
     results but for rounding.

One plain C file is compiled in a second and kept in the user's cache, under a name made of its
text, the compiler and the processor. It appears there whole or not at all, so there is no lock that
a killed run could leave behind. The threads are torch's own: the OpenMP symbols stay undefined when
the library is linked and are found in the runtime that torch has already loaded.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from artifacts.digests import cache_directory
from artifacts.errors import UsageError
from artifacts.progress import say

SOURCE = Path(__file__).with_name("kernels.c")
FLAGS = (
    "-O3",
    "-march=native",
    "-mprefer-vector-width=512",
    "-mrecip",
    "-ffast-math",
    "-fno-finite-math-only",  # a diverged loss must be seen
    "-fopenmp",
    "-fPIC",
)
COMPILE_SECONDS = 120

Choice = Literal["auto", "native", "torch"]

_SIGNATURES = {
    "random_words": "nnp",
    "drop": "npnif",
    "gelu_forward": "nppi",
    "gelu_backward": "nnpppi",
    "residual_norm_forward": "nnppnifppfppp",
    "residual_norm_backward": "nnppnifpppppppi",
    "norm_forward": "nnppfppp",
    "norm_backward": "nnppppppppi",
    "geglu_forward": "nnppi",
    "geglu_backward": "nnppp",
    "rotate": "nnnpppp",
    "transpose": "nnpp",
    "softmax_forward": "nnnpippnni",
    "softmax_in_ranges": "nnnppp",
    "softmax_backward": "nnppnni",
    "short_attention_forward": "nnnnppipnnifp",
    "short_attention_backward": "nnnnppipnnifpp",
    "cross_entropy": "nnnpppp",
}
"""Of each function in kernels.c: n a size or a stream, p an array or NULL, i an int, f a float."""

_TYPES = {"n": ctypes.c_int64, "p": ctypes.c_void_p, "i": ctypes.c_int, "f": ctypes.c_float}
_choice: list[Choice] = ["auto"]


class Kernels:
    """The compiled functions of kernels.c, called with tensors."""

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._functions = {name: getattr(library, name) for name in _SIGNATURES}
        for name, function in self._functions.items():
            function.argtypes = [_TYPES[letter] for letter in _SIGNATURES[name]]
            function.restype = None

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
    compiler = shutil.which("gcc")
    if compiler is None or not sys.platform.startswith("linux"):
        say("CPU kernels: plain torch, because there is no gcc to compile faster ones with")
        return None
    path = _cache_path(compiler)
    try:
        if not path.exists():
            _compile(compiler, path)
        return Kernels(path)
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        say(f"CPU kernels: plain torch, because {compiler} failed: {str(reason).strip()[:200]}")
        return None


def _compile(compiler: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        compiled, linked = os.path.join(folder, "kernels.o"), os.path.join(folder, "kernels.so")
        _run(compiler, *FLAGS, "-c", str(SOURCE), "-o", compiled)
        # Linked without -fopenmp, which would bring a second runtime and a second pool of threads,
        # and without -ffast-math, which would switch denormals off in the whole process.
        _run(compiler, "-shared", compiled, "-lm", "-o", linked)
        os.replace(linked, path)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)


def _cache_path(compiler: str) -> Path:
    version = subprocess.run(
        [compiler, "--version"],
        capture_output=True,
        text=True,
        timeout=COMPILE_SECONDS,
        check=False,
    ).stdout
    identity = "\n".join([SOURCE.read_text(), *FLAGS, version, _processor()])
    digest = hashlib.sha256(identity.encode()).hexdigest()[:16]
    return cache_directory().parent / "kernels" / f"{digest}.so"


def _processor() -> str:
    """What `-march=native` depends on: homes are shared between machines."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    telling = ("model name", "flags", "Features", "CPU part")
    return "\n".join(sorted({platform.machine(), *(x for x in lines if x.startswith(telling))}))
