"""A search index: passages with their vectors, and nearest-neighbour search by brute force.

In:  passages (file, line, text), and a function from texts to vectors.
Out: vectors.npy, [N, H] float32 of length 1, and passages.arrow, row by row the same passages;
     the nearest rows by cosine, exactly, with the matrix mapped into memory.
"""

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from model.inference.embed import write_vectors

# N passages, Q questions, H width

VECTORS, PASSAGES = "vectors.npy", "passages.arrow"
SCHEMA = pa.schema([("file", pa.string()), ("line", pa.int64()), ("text", pa.string())])
"""Of a passage; its line is null where the file has no lines, or the text was transformed."""

BATCH = 2048
ROWS_AT_ONCE = 1 << 16
"""Rows of the matrix at once: 100 MB at width 384."""

Vectors = npt.NDArray[np.float32]


class Hit(NamedTuple):
    """One passage found."""

    score: float
    """Cosine."""
    row: int


def write_index(
    folder: Path,
    passages: Iterable[tuple[str, int | None, str]],
    embed: Callable[[Iterable[str]], Iterable[Vectors]],
    *,
    width: int,
) -> int:
    """Write both files into `folder` as a stream; return the number of passages."""
    with (
        pa.OSFile(str(folder / PASSAGES), "wb") as sink,
        pa.ipc.new_file(sink, SCHEMA) as writer,
    ):
        stream = iter(passages)

        def texts() -> Iterator[str]:
            while batch := list(islice(stream, BATCH)):
                writer.write_batch(pa.record_batch(list(zip(*batch, strict=True)), schema=SCHEMA))
                yield from (text for _, _, text in batch)

        return write_vectors(folder / VECTORS, embed(texts()), width=width)


def nearest(path: str, questions_QH: Vectors, *, count: int) -> list[list[Hit]]:
    """For each question the `count` rows of the matrix at `path` that are nearest, best first."""
    matrix_NH = np.lib.format.open_memmap(path, mode="r")
    best: list[list[Hit]] = [[] for _ in questions_QH]
    for start in range(0, len(matrix_NH), ROWS_AT_ONCE):
        scores_QN = questions_QH @ matrix_NH[start : start + ROWS_AT_ONCE].T
        kept = min(count, scores_QN.shape[1])
        rows_QK = np.argpartition(-scores_QN, kept - 1, axis=1)[:, :kept]
        for question, rows in enumerate(rows_QK):
            found = [Hit(float(scores_QN[question, row]), start + int(row)) for row in rows]
            best[question] = sorted([*best[question], *found], key=lambda h: (-h.score, h.row))
            del best[question][count:]
    return best


def read_passage(path: str, row: int) -> tuple[str, int | None, str]:
    """File, line and text of one row."""
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        batch = reader.get_batch(row // BATCH)
        file, line, text = (batch.column(n)[row % BATCH].as_py() for n in range(3))
    return file, line, text
