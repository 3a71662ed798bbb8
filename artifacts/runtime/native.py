"""C code compiled on the machine that runs it, if there is a compiler.

In:  one plain C file, and the signatures of its functions.
Out: the functions, or the reason why there are none; callers then fall back to a slower version.

Compiling takes about a second. The library is cached under a name derived from its source, the
flags and, with `-march=native`, the processor. It is renamed into place, so no lock is needed that
a killed run could leave behind. It ends with its digest, which loaders ignore: using a library that
was cut would end the process with SIGBUS, so a damaged one is compiled again. Container images are
built with their libraries already cached and need no compiler.
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
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cloze.artifacts.digests import cache_directory
from cloze.artifacts.progress import say

COMPILE_SECONDS = 120

ELF = b"\x7fELF"
"""Start of a shared library."""

_TYPES = {
    "n": ctypes.c_int64,
    "p": ctypes.c_void_p,
    "b": ctypes.c_char_p,
    "i": ctypes.c_int,
    "f": ctypes.c_float,
}


def compiled(source: Path, signatures: Mapping[str, str], *flags: str) -> ctypes.CDLL | None:
    """The compiled functions of `source`; None, and a message, if it cannot be compiled.

    A signature has a letter for the result (`-` for none) and one for each argument: n is a size,
    p an address or NULL, b bytes, i an int, f a float. `CLOZE_KERNEL_FLAGS` adds compiler flags;
    tests use it to enable sanitizers.
    """
    more = os.environ.get("CLOZE_KERNEL_FLAGS", "").split()
    found = shared_library(source, "-O3", *flags, *more)
    if isinstance(found, str):
        say(f"{source.name} was not compiled ({found}); using a slower implementation")
        return None
    try:
        library = ctypes.CDLL(str(found))
        declare(library, signatures)
    except (OSError, AttributeError) as error:  # a disk mounted noexec, another compiler's gcc
        say(f"{source.name} is not usable ({error}); using a slower implementation")
        return None
    return library


def declare(library: ctypes.CDLL, signatures: Mapping[str, str]) -> None:
    """Give functions their signatures, as in `load`."""
    for name, signature in signatures.items():
        function = getattr(library, name)
        function.restype = _TYPES.get(signature[0])
        function.argtypes = [_TYPES[letter] for letter in signature[1:]]


def pointer(array: npt.NDArray[np.generic]) -> int:
    """The address of `array`, which the caller must keep alive and contiguous."""
    return int(array.ctypes.data)


def shared_library(source: Path, *flags: str) -> Path | str:
    """`source` compiled with `flags`, or taken from the cache; a string says why there is none.

    Linked without `-fopenmp`, which would load a second OpenMP runtime and thread pool next to
    torch's, and without `-ffast-math`, which would disable denormals in the whole process.
    """
    try:
        identity = [platform.machine(), source.read_text("utf-8"), *flags]
        if "-march=native" in flags:  # home directories may be shared
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            described = ("model name", "flags", "Features", "CPU part")
            identity += sorted({line for line in lines if line.startswith(described)})
        digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()
        path = cache_directory("kernels") / f"{digest[:16]}.so"
        if _is_whole(path):
            return path
        compiler = shutil.which("gcc")
        if compiler is None or not sys.platform.startswith("linux"):
            return "there is no gcc"
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            compiled, linked = (os.path.join(folder, name) for name in ("code.o", "code.so"))
            for command in (
                [compiler, *flags, "-fPIC", "-c", str(source), "-o", compiled],
                [compiler, "-shared", compiled, "-lm", "-o", linked],
            ):
                subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    encoding="utf-8",
                    errors="replace",
                    timeout=COMPILE_SECONDS,
                )
            content = Path(linked).read_bytes()
            if not content.startswith(ELF):
                return "gcc wrote no shared library"
            Path(linked).write_bytes(content + hashlib.sha256(content).digest())
            os.replace(linked, path)
        return path
    except (OSError, subprocess.SubprocessError) as error:
        reason = getattr(error, "stderr", None) or error
        return f"gcc failed: {str(reason).strip()[:200]}"


def _is_whole(path: Path) -> bool:
    """Whether there is a library at `path` that is as it was compiled."""
    try:
        content = path.read_bytes()
    except OSError:
        return False
    size = len(content) - hashlib.sha256().digest_size
    return size > 0 and hashlib.sha256(content[:size]).digest() == content[size:]
