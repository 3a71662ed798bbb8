"""C compiled on the machine it runs on, where there is a compiler.

In:  one plain C file, and the types of its functions.
Out: the functions, or why there are none: callers then run a slower form of the same.

The library is compiled in a second and kept in the user's cache under a name made of its text, the
flags and, where they ask for the processor's own instructions, the processor. It appears there
whole or not at all, so there is no lock that a killed run could leave behind. What is there needs
no compiler any more: an image is given its libraries when it is built.
"""

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from artifacts.digests import cache_directory
from artifacts.progress import say

COMPILE_SECONDS = 120

_TYPES = {
    "n": ctypes.c_int64,
    "p": ctypes.c_void_p,
    "b": ctypes.c_char_p,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
}


@dataclass(frozen=True)
class Unavailable:
    """There is no library, and why."""

    reason: str


def load(source: Path, signatures: Mapping[str, str], *flags: str) -> ctypes.CDLL | None:
    """The compiled functions of `source`; None, and a message, where there is no compiler.

    A signature is a letter for the result, `-` for none, and one for each argument: n a size, p an
    address or NULL, b bytes, i an int, f a float. `CLOZE_KERNEL_FLAGS` adds flags for GCC: tests
    compile with its sanitizers.
    """
    more = os.environ.get("CLOZE_KERNEL_FLAGS", "").split()
    found = shared_library(source, "-O3", *flags, *more)
    if isinstance(found, Unavailable):
        say(f"{source.name} is not compiled, because {found.reason}; the same is done more slowly")
        return None
    loaded = ctypes.CDLL(str(found))
    for name, signature in signatures.items():
        function = getattr(loaded, name)
        function.restype = _TYPES.get(signature[0])
        function.argtypes = [_TYPES[letter] for letter in signature[1:]]
    return loaded


def address(array: npt.NDArray[np.generic]) -> int:
    """Where `array` lies; the caller keeps it alive, and contiguous."""
    return int(array.ctypes.data)


def shared_library(source: Path, *flags: str) -> Path | Unavailable:
    """`source` compiled with `flags`; from the cache where it has been compiled before.

    Linked without `-fopenmp`, which would bring a second runtime and a second pool of threads
    beside torch's, and without `-ffast-math`, which would switch denormals off everywhere.
    """
    try:
        identity = [platform.machine(), source.read_text("utf-8"), *flags]
        if "-march=native" in flags:  # homes are shared between machines
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            described = ("model name", "flags", "Features", "CPU part")
            identity += sorted({line for line in lines if line.startswith(described)})
        digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()
        path = cache_directory("kernels") / f"{digest[:16]}.so"
        if path.exists():
            return path
        compiler = shutil.which("gcc")
        if compiler is None or not sys.platform.startswith("linux"):
            return Unavailable("there is no gcc")
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            compiled, linked = (os.path.join(folder, name) for name in ("code.o", "code.so"))
            _run(compiler, *flags, "-fPIC", "-c", str(source), "-o", compiled)
            _run(compiler, "-shared", compiled, "-lm", "-o", linked)
            os.replace(linked, path)
        return path
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        return Unavailable(f"gcc failed: {str(reason).strip()[:200]}")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_SECONDS)
