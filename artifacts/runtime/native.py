"""C code compiled on the machine that runs it, if there is a compiler.

In:  plain C files; the first declares, or is, what can be called.
Out: the functions, or the reason why there are none; callers then fall back to a slower version.

Compiling takes about a second. The library is cached under a name derived from its sources, the
flags and, with `-march=native`, the processor. It is renamed into place, so no lock is needed that
a killed run could leave behind. It ends with its digest, which loaders ignore: using a library that
was cut would end the process with SIGBUS, so a damaged one is compiled again. Container images are
built with their libraries already cached and need no compiler.
"""

import ctypes
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cloze.artifacts.digests import cache_directory
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.temporary import clear_left, temporary_directory

CType = type[ctypes.c_int64 | ctypes.c_void_p | ctypes.c_int | ctypes.c_float]
"""A type that a function takes or returns."""

COMPILE_SECONDS = 120

ELF = b"\x7fELF"
"""Start of a shared library."""

_TYPES: Mapping[str, CType] = {
    "idx": ctypes.c_int64,
    "int64_t": ctypes.c_int64,
    "int": ctypes.c_int,
    "float": ctypes.c_float,
}
"""`idx` is the kernels' name for int64_t."""

_FUNCTION = re.compile(
    r"^((?!static\b|typedef\b)\w[\w ]*[ *])(\w+)\(([^()]*)\)\s*[;{]", re.MULTILINE
)
"""A declaration or definition at the beginning of a line that other files can call."""


def compiled(
    *sources: Path, flags: Sequence[str] = (), optional: Sequence[str] = ()
) -> ctypes.CDLL | None:
    """The functions that the first of the `sources` declares or defines, compiled from all of them.

    None, and a message, if they cannot be compiled. `optional`: functions that may be missing, as
    flags leave them out. `CLOZE_KERNEL_FLAGS` adds compiler flags; tests use it to enable
    sanitizers.
    """
    more = os.environ.get("CLOZE_KERNEL_FLAGS", "").split()
    found = shared_library(*sources, flags=("-O3", *flags, *more))
    name = sources[0].name
    if isinstance(found, str):
        say(f"{name} was not compiled ({found}); using a slower implementation")
        return None
    try:
        library = ctypes.CDLL(str(found))
        # Without types, ctypes would pass integers, and take results, as 32 bits.
        for function, (result, arguments) in signatures(sources[0]).items():
            if function not in optional or hasattr(library, function):
                declared = getattr(library, function)
                declared.restype, declared.argtypes = result, arguments
    except (OSError, AttributeError) as error:  # a disk mounted noexec, another compiler's gcc
        say(f"{name} is not usable ({error}); using a slower implementation")
        return None
    return library


def signatures(source: Path) -> dict[str, tuple[CType | None, list[CType]]]:
    """The types of the result (None: nothing) and the arguments of each function of a C file.

    They are read from the C itself, so that Python cannot disagree with it. Addresses may be given
    as integers, as bytes, or as None for NULL.
    """
    # Without comments, which may contain anything that looks like a declaration.
    text = re.sub(r"/\*.*?\*/", "", source.read_text("utf-8"), flags=re.DOTALL)
    found: dict[str, tuple[CType | None, list[CType]]] = {}
    for result, name, arguments in _FUNCTION.findall(text):
        listed = [] if arguments.strip() == "void" else arguments.split(",")
        kind = None if result.strip() == "void" else _type(result, of=f"{source}: {name}")
        found[name] = kind, [_type(one, of=f"{source}: {name}") for one in listed]
    return found


def _type(declared: str, *, of: str) -> CType:
    """The type of a declaration such as `const float *mean`."""
    if "*" in declared:
        return ctypes.c_void_p
    words = declared.split()
    if words[0] not in _TYPES:
        expected = ", ".join(_TYPES)
        raise TypeError(f"{of}: type {words[0]} cannot be passed; use {expected} or an address")
    return _TYPES[words[0]]


def pointer(array: npt.NDArray[np.generic]) -> int:
    """The address of `array`, which the caller must keep alive and contiguous."""
    return int(array.ctypes.data)


def pointers(*arrays: npt.NDArray[np.generic]) -> list[int]:
    """The address of each."""
    return [pointer(array) for array in arrays]


def shared_library(*sources: Path, flags: Sequence[str]) -> Path | str:
    """`sources` compiled with `flags`, or taken from the cache; a string says why there is none.

    Linked without `-fopenmp`, which would load a second OpenMP runtime and thread pool next to
    torch's, and without `-ffast-math`, which would disable denormals in the whole process.
    """
    try:
        texts = (source.read_text("utf-8") for source in sources)
        # All that the compiled code depends on is in the library's name.
        identity = [platform.machine(), *texts, *flags]
        if "-march=native" in flags:  # home directories may be shared
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            described = ("model name", "flags", "Features", "CPU part")
            identity += sorted({line for line in lines if line.startswith(described)})
        digest = hashlib.sha256("\n".join(identity).encode()).hexdigest()
        path = cache_directory("kernels") / f"{digest[:16]}.so"
        clear_left(str(path.parent))  # a compilation that was killed, and made by another since
        if _is_whole(path):
            return path
        compiler = shutil.which("gcc")
        if compiler is None or not sys.platform.startswith("linux"):
            return "there is no gcc"
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary_directory(str(path.parent)) as folder:
            linked = os.path.join(folder, "code.so")
            files = [str(source) for source in sources if source.suffix == ".c"]
            objects = [os.path.join(folder, f"{number}.o") for number in range(len(files))]
            for command in (
                *(
                    [compiler, *flags, "-fPIC", "-c", file, "-o", made]
                    for file, made in zip(files, objects, strict=True)
                ),
                [compiler, "-shared", *objects, "-lm", "-o", linked],
            ):
                subprocess.run(
                    command,
                    check=True,
                    capture_output=True,
                    encoding="utf-8",
                    errors="replace",
                    timeout=COMPILE_SECONDS,
                    # where its own temporary files go, which it leaves when it is killed
                    env={**os.environ, "TMPDIR": folder},
                )
            content = Path(linked).read_bytes()
            if not content.startswith(ELF):
                return "gcc wrote no shared library"
            # Loaders ignore what follows the library; the name appears when all of it is there.
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
