"""A search index: passages with their vectors, and exact or approximate nearest neighbours.

In:  passages (file, line, text), and a function from texts to vectors.
Out: vectors.npy, [N, H] float32 of length 1, and passages.arrow, with the same passages in the same
     rows; the nearest rows by cosine, from the memory-mapped matrix. On request graph.usearch, a
     hierarchical navigable small-world graph (Malkov and Yashunin 2018) of the rows in bfloat16:
     the rows nearest to a question, with high recall and exact cosines.

usearch (extra `index`) builds the graph on all cores, so two graphs of the same vectors differ in
bytes, and occasionally in the rows they miss. The file is memory-mapped: a search reads only the
nodes it visits.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError

if TYPE_CHECKING:
    from usearch.index import Index

# N passages, Q questions, H width, C candidates

VECTORS, PASSAGES = "vectors.npy", "passages.arrow"
SCHEMA = pa.schema([("file", pa.string()), ("line", pa.int64()), ("text", pa.string())])
"""Schema of the passages; line is null if the file has no lines, or its text was transformed."""

BATCH = 2048
ROWS_AT_ONCE = 1 << 16
"""Rows of the matrix processed at once: 100 MB at width 384."""

GRAPH = "graph.usearch"
GRAPH_SETTINGS = {"connectivity": 16, "expansion_add": 64}
"""Links per vector, and candidates considered for them: half of usearch's defaults, which halves
the build time; searching more candidates makes up for the loss in recall.
"""

CANDIDATES = 4
"""Candidates per requested row, to be re-ranked: bfloat16 has only three digits."""

LEAST_EXPANSION = 256
"""Minimum length of a search's candidate list: a longer one gives better recall, more slowly."""

GRAPH_ROWS_AT_ONCE = 1 << 13
"""Rows added to the graph at once; the build can be interrupted in between."""

Vectors = npt.NDArray[np.float32]


class Hit(NamedTuple):
    """A passage found by a search."""

    score: float
    """Cosine."""
    row: int


def write_vectors(path: Path, vectors: Iterable[Vectors], *, width: int) -> int:
    """Write NAME.npy, [N, width] float32, as a stream; return N.

    Memory use is constant, and the file appears once it is complete.
    """
    if not path.parent.is_dir():
        raise UsageError(f"{path}: no folder {path.parent}; make it first")

    def write_header(file: BinaryIO, *, rows: int) -> None:
        # NumPy pads the header, so its length does not depend on the number of rows.
        np.lib.format.write_array_header_1_0(
            file, {"descr": "<f4", "fortran_order": False, "shape": (rows, width)}
        )

    count = 0
    with filesystem.partial_file(str(path)) as temporary, open(temporary, "wb") as file:
        # The number of rows is known at the end; until then the header says 0.
        write_header(file, rows=0)
        for vector in vectors:
            file.write(vector.astype("<f4", copy=False).tobytes())
            count += 1
        file.seek(0)
        write_header(file, rows=count)
    return count


def write_passage_index(
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

        # Passages pass through as they are embedded, so neither file is ever whole in memory.
        def texts() -> Iterator[str]:
            while batch := list(islice(stream, BATCH)):
                writer.write_batch(pa.record_batch(list(zip(*batch, strict=True)), schema=SCHEMA))
                yield from (text for _, _, text in batch)

        return write_vectors(folder / VECTORS, embed(texts()), width=width)


def nearest(path: str, questions_QH: Vectors, *, count: int) -> list[list[Hit]]:
    """For each question, the `count` nearest rows of the matrix at `path`, best first."""
    matrix_NH = np.lib.format.open_memmap(path, mode="r")
    best: list[list[Hit]] = [[] for _ in questions_QH]
    for start in range(0, len(matrix_NH), ROWS_AT_ONCE):
        scores_QN = questions_QH @ matrix_NH[start : start + ROWS_AT_ONCE].T
        # The best of these rows; earlier chunks' best compete below.
        kept = min(count, scores_QN.shape[1])
        rows_QK = np.argpartition(-scores_QN, kept - 1, axis=1)[:, :kept]
        for question, rows in enumerate(rows_QK):
            found = [Hit(float(scores_QN[question, row]), start + int(row)) for row in rows]
            best[question] = sorted([*best[question], *found], key=lambda h: (-h.score, h.row))
            del best[question][count:]
    return best


def write_graph(vectors: str, path: str) -> Iterator[int]:
    """Write the graph of the matrix at `vectors` to `path`; yield rows as they are added."""
    matrix_NH = np.lib.format.open_memmap(vectors, mode="r")
    graph = _empty(matrix_NH.shape[1])
    for start in range(0, len(matrix_NH), GRAPH_ROWS_AT_ONCE):
        rows = np.arange(start, min(start + GRAPH_ROWS_AT_ONCE, len(matrix_NH)), dtype=np.uint64)
        graph.add(rows, matrix_NH[start : start + GRAPH_ROWS_AT_ONCE])
        yield from rows.tolist()
    graph.save(path)


def nearest_in(graph: str, vectors: str, questions_QH: Vectors, *, count: int) -> list[list[Hit]]:
    """Like `nearest`, but only among candidates found in `graph`."""
    matrix_NH = np.lib.format.open_memmap(vectors, mode="r")
    wanted = min(CANDIDATES * count, len(matrix_NH))
    index = _empty(matrix_NH.shape[1], expansion_search=max(LEAST_EXPANSION, wanted))
    index.view(graph)
    best = []
    for question_H in questions_QH:
        # Candidates by bfloat16, ranked by their exact cosines.
        rows_C = index.search(question_H, wanted).keys.astype(np.int64)
        hits = map(Hit, (matrix_NH[rows_C] @ question_H).tolist(), rows_C.tolist())
        best.append(sorted(hits, key=lambda hit: (-hit.score, hit.row))[:count])
    return best


def read_passage(path: str, row: int) -> tuple[str, int | None, str]:
    """File, line and text of one row."""
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        # All batches but the last have `BATCH` rows.
        batch = reader.get_batch(row // BATCH)
        file, line, text = (batch.column(n)[row % BATCH].as_py() for n in range(3))
    return file, line, text


def digest_of_text(text: str) -> bytes:
    """By which the vector of a passage is found again."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def vectors_by_text(vectors: str, passages: str) -> dict[bytes, Vectors]:
    """The rows of an index by the digests of their texts; the matrix stays on disk."""
    matrix_NH = np.lib.format.open_memmap(vectors, mode="r")
    rows: dict[bytes, Vectors] = {}
    first = 0
    with pa.memory_map(passages) as source:
        reader = pa.ipc.open_file(source)
        for batch in map(reader.get_batch, range(reader.num_record_batches)):
            texts = batch.column("text").to_pylist()
            rows |= {digest_of_text(t): matrix_NH[first + n] for n, t in enumerate(texts)}
            first += len(texts)
    return rows


def _empty(width: int, *, expansion_search: int = LEAST_EXPANSION) -> "Index":
    from usearch.index import Index  # needs the extra `index`

    return Index(
        ndim=width,
        metric="ip",
        dtype="bf16",
        connectivity=GRAPH_SETTINGS["connectivity"],
        expansion_add=GRAPH_SETTINGS["expansion_add"],
        expansion_search=expansion_search,
    )
