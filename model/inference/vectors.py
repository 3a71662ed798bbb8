"""Vectors as a NumPy file, written as they come.

In:  a stream of vectors of one width.
Out: NAME.npy, [N, width] float32, which appears when it is complete.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from artifacts.errors import UsageError


def write_vectors(path: Path, vectors: Iterable[npt.NDArray[np.float32]], *, width: int) -> int:
    """Write every vector, [width] each; how many there were. Memory does not grow with them."""
    if not path.parent.is_dir():
        raise UsageError(f"{path}: no folder {path.parent}; make it first")
    unfinished = path.with_name(f"{path.name}.unfinished-{os.getpid()}")
    count = 0
    try:
        with unfinished.open("wb") as file:
            _write_header(file, rows=0, width=width)
            for vector in vectors:
                file.write(vector.astype("<f4", copy=False).tobytes())
                count += 1
            file.seek(0)
            _write_header(file, rows=count, width=width)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    return count


def _write_header(file: BinaryIO, *, rows: int, width: int) -> None:
    """The header is as long for any number of rows: NumPy leaves room for it to grow."""
    np.lib.format.write_array_header_1_0(
        file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
    )
