"""A first pass over vectors in a quarter of their bytes, which loses none of the best ones.

In:  the matrix of an index, `[N, H]` float32 of length 1.
Out: codes.npy, [N, H] int8, the vectors' differences from their mean in steps of one size;
     moments.npy, their mean and covariance; steps.npy, the step and the bounds below. For a
     question, cosines with all rows that are off by at most a known bound.

One question has to read every vector, and memory is slower than arithmetic: bytes are what it
costs. Rounding loses no row as long as all that may be among the best within the bound are compared
exactly: with question q = t·r + d and row v = m + s·k + e, where m is the mean, r and k are whole
numbers, and d and e what rounding left,

    q·v = q·m + t·s·(r·k) + s·(d·k) + q·e    and    |s·(d·k) + q·e| ≤ |d|·max|s·k| + max|e|.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from cloze.model.retrieval.fusion import Spread
from cloze.model.retrieval.passage_index import ROWS_AT_ONCE, Vectors, open_vectors

CODES, COMPACT_MOMENTS, STEPS = "codes.npy", "moments.npy", "steps.npy"
COMPACT_FILES = (CODES, COMPACT_MOMENTS, STEPS)
"""The codes; [1 + H, H] mean and covariance; the size of a step, the greatest length of a coded
row, and the greatest length of what rounding left of one."""

LARGEST = 127

ROUNDING = 1e-5
"""Beside the bound: of sums of float32."""

# N passages, H width, B rows of a block


def write_compact_vectors(vectors: str, folder: Path) -> Iterator[int]:
    """Write `COMPACT_FILES` of the matrix at `vectors`; yields rows as they are written."""
    matrix_NH = open_vectors(vectors)
    # The mean first: encoders have coordinates that are large and nearly equal in all vectors,
    # which would take up most of the 255 steps.
    sums_H = np.zeros(matrix_NH.shape[1])
    for block_BH in _blocks(matrix_NH):
        sums_H += block_BH.sum(0, dtype=np.float64)
    mean_H = (sums_H / len(matrix_NH)).astype(np.float32)
    largest = max(float(np.abs(block_BH - mean_H).max()) for block_BH in _blocks(matrix_NH))
    step = np.float32(largest / LARGEST) or np.float32(1.0)  # all vectors may be equal
    codes_NH = np.lib.format.open_memmap(folder / CODES, "w+", np.int8, matrix_NH.shape)
    covariance_HH = np.zeros(2 * mean_H.shape)
    longest = lost = 0.0
    for number, block_BH in enumerate(_blocks(matrix_NH)):
        apart_BH = block_BH - mean_H
        rounded_BH = np.rint(apart_BH / step)
        start = number * ROWS_AT_ONCE
        codes_NH[start : start + len(block_BH)] = rounded_BH
        coded_BH = rounded_BH * step
        covariance_HH += apart_BH.T @ apart_BH
        longest = max(longest, _longest(coded_BH))
        lost = max(lost, _longest(apart_BH - coded_BH))
        yield from range(start, start + len(block_BH))
    codes_NH.flush()
    moments = np.vstack([mean_H, covariance_HH / len(matrix_NH)])
    np.save(folder / COMPACT_MOMENTS, moments.astype(np.float32))
    np.save(folder / STEPS, np.array([step, longest, lost], np.float32))


class CompactVectors:
    """The codes of a matrix, memory-mapped."""

    def __init__(self, paths: Mapping[str, str]) -> None:
        # Copy on write, as torch wants arrays that it could write to; nothing is written.
        codes_NH = np.lib.format.open_memmap(paths[CODES], mode="c")
        self._codes_HN = torch.from_numpy(codes_NH).T
        moments = np.lib.format.open_memmap(paths[COMPACT_MOMENTS], mode="r")
        self._mean_H, self._covariance_HH = moments[0], moments[1:]
        self._step, self._longest, self._lost = np.lib.format.open_memmap(paths[STEPS], mode="r")

    def cosines(self, question_H: Vectors) -> tuple[Vectors, float]:
        """[N] about the cosines with all rows, and how far off one of them is at most."""
        step = np.float32(np.abs(question_H).max() / LARGEST)
        rounded_H = np.rint(question_H / step)
        codes_1H = torch.from_numpy(rounded_H.astype(np.int8))[None]
        # Whole numbers add up exactly, in any order and on any processor.
        products_N: npt.NDArray[np.int32] = torch._int_mm(codes_1H, self._codes_HN)[0].numpy()
        about_N = np.multiply(products_N, step * self._step, dtype=np.float32)
        about_N += question_H @ self._mean_H
        left = float(np.linalg.norm(question_H - rounded_H * step))
        return about_N, float(left * self._longest + self._lost + ROUNDING)

    def spread(self, question_H: Vectors) -> Spread:
        """How the exact cosines are distributed."""
        variance = float(question_H @ self._covariance_HH @ question_H)
        return Spread(float(self._mean_H @ question_H), max(variance, 0.0) ** 0.5)


def _blocks(matrix_NH: Vectors) -> Iterator[Vectors]:
    for start in range(0, len(matrix_NH), ROWS_AT_ONCE):
        yield matrix_NH[start : start + ROWS_AT_ONCE]


def _longest(rows_BH: Vectors) -> float:
    return float(np.linalg.norm(rows_BH, axis=1).max())
