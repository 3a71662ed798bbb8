"""A search index: passages with their vectors, and exact or approximate nearest neighbours.

In:  passages (file, line, text, title), and a function from texts to vectors.
Out: vectors.npy, [N, H] float32 of length 1, and passages.arrow, with the same passages in the same
     rows; the cosines of all rows, from the memory-mapped matrix. On request graph.usearch, a
     hierarchical navigable small-world graph (Malkov and Yashunin 2018) of the rows in bfloat16:
     the rows nearest to a question, with high recall and exact cosines.

usearch (extra `index`) builds the graph on all cores, so two graphs of the same vectors differ in
bytes, and occasionally in the rows they miss. The file is memory-mapped: a search reads only the
nodes it visits. Equal texts are one node: a search among hundreds of equal vectors would walk from
one to the next and miss nearer ones elsewhere.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
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

# N passages, Q questions, H width, C candidates, E rows whose text an earlier row has

VECTORS, PASSAGES = "vectors.npy", "passages.arrow"
SCHEMA = pa.schema(
    [("file", pa.string()), ("line", pa.int64()), ("text", pa.string()), ("title", pa.string())]
)
"""Schema of the passages; line is null if the file has no lines, or its text was transformed."""

BATCH = 2048
ROWS_AT_ONCE = 1 << 16
"""Rows of the matrix processed at once: 100 MB at width 384."""

GRAPH, EQUAL, MOMENTS = "graph.usearch", "equal.npy", "moments.npy"
GRAPH_FILES = (GRAPH, EQUAL, MOMENTS)
"""The graph; [E, 2] rows whose text an earlier row has, after that row; [1 + H, H] the mean of the
vectors, and the mean of their outer products."""
GRAPH_SETTINGS = {"connectivity": 16, "expansion_add": 128}
"""Links per vector, and candidates considered for them: usearch's defaults. Half of the candidates
halves the time to build it, but then two thousand near-copies cut passages off, and some questions
missed what they ask for (benchmarks/results/repeated_passages.json).
"""

GRAPH_BEGINS_WITH = 1000
"""Rows that one thread adds before all do: of 250 graphs of 300 rows that two threads had begun one
missed the best row of four questions."""

CANDIDATES = 4
"""Candidates per requested row, to be re-ranked: bfloat16 has only three digits."""

LEAST_EXPANSION = 256
"""Length of a search's candidate list, unless more are wanted: a longer one gives better recall,
more slowly."""

ROUNDING = 1e-5
"""Difference between two cosines that are equal but for the order of their sum."""

GRAPH_ROWS_AT_ONCE = 1 << 13
"""Rows added to the graph at once; the build can be interrupted in between."""

COMPARED, SAMPLED, LIKENESS = 10, 200, 0.5
"""Nearest rows of made-up questions, for which a new graph is compared with all vectors, and the
cosine of each with a sampled row."""

Vectors = npt.NDArray[np.float32]


class Passage(NamedTuple):
    """A passage, and where it is."""

    file: str
    line: int | None
    """Where it begins, or the record that it is in; None if the file has no lines, or does not
    contain the text verbatim."""
    text: str
    title: str = ""
    """Title of its document, or heading of its section, by which it is found as well."""

    @property
    def indexed(self) -> str:
        """The text that is embedded, and whose words are counted."""
        return f"{self.title}\n{self.text}" if self.title else self.text


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
    passages: Iterable[Passage],
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
                yield from (passage.indexed for passage in batch)

        return write_vectors(folder / VECTORS, embed(texts()), width=width)


def open_vectors(path: str) -> Vectors:
    """[N, H] the memory-mapped matrix."""
    return np.lib.format.open_memmap(path, mode="r")


def cosines(matrix_NH: Vectors, questions_QH: Vectors) -> Vectors:
    """[Q, N] with all rows."""
    # Block by block: the matrix is on disk, and each block is read once for all questions.
    scores_QN = np.empty((len(questions_QH), len(matrix_NH)), np.float32)
    for start in range(0, len(matrix_NH), ROWS_AT_ONCE):
        block_BH = matrix_NH[start : start + ROWS_AT_ONCE]
        np.matmul(questions_QH, block_BH.T, out=scores_QN[:, start : start + len(block_BH)])
    return scores_QN


def write_graph(vectors: str, texts: Iterable[str], folder: Path) -> Iterator[int]:
    """Write `GRAPH_FILES` of the matrix at `vectors`, whose rows are those of `texts`.

    Yields rows as they are added.
    """
    matrix_NH = open_vectors(vectors)
    width = matrix_NH.shape[1]
    # Equal texts have equal vectors. Hundreds of them, as a corpus of messages has, would be each
    # other's only neighbours and cut the graph into islands; so only the first of them goes in, and
    # `equal` brings back the others.
    graph = _empty(width)
    first: dict[bytes, int] = {}
    equal: list[tuple[int, int]] = []
    sums_H, products_HH = np.zeros(width), np.zeros((width, width))
    texts = iter(texts)
    for start in range(0, len(matrix_NH), GRAPH_ROWS_AT_ONCE):
        block_BH = matrix_NH[start : start + GRAPH_ROWS_AT_ONCE]
        rows = range(start, start + len(block_BH))
        firsts = [
            first.setdefault(digest_of_text(text), row)
            for row, text in zip(rows, texts, strict=False)
        ]
        equal += [(one, row) for one, row in zip(firsts, rows, strict=True) if one != row]
        own = np.flatnonzero(np.array(firsts) == np.array(rows))
        # Threads that add to a graph of hardly any nodes may leave some of them without links.
        alone = 0 if start else GRAPH_BEGINS_WITH
        for part, threads in ((own[:alone], 1), (own[alone:], 0)):
            if len(part):
                graph.add((start + part).astype(np.uint64), block_BH[part], threads=threads)
        # A question's mean cosine is the question times the mean vector, and its mean squared
        # cosine a quadratic form of the mean outer product: with both stored, the spread over all
        # passages costs no look at the passages.
        sums_H += block_BH.sum(0, dtype=np.float64)
        products_HH += block_BH.T @ block_BH
        yield from rows
    graph.save(str(folder / GRAPH))
    np.save(folder / EQUAL, np.array(sorted(equal), np.int64).reshape(-1, 2))
    np.save(folder / MOMENTS, np.vstack([sums_H, products_HH]) / len(matrix_NH))


class Graph:
    """The graph of a matrix, with which a question is compared in milliseconds."""

    def __init__(self, paths: Mapping[str, str], vectors: str) -> None:
        self._matrix_NH = open_vectors(vectors)
        self._index = _empty(self._matrix_NH.shape[1])
        self._index.view(paths[GRAPH])
        self._equal_E2 = np.lib.format.open_memmap(paths[EQUAL], mode="r")
        moments = np.lib.format.open_memmap(paths[MOMENTS], mode="r")
        self._mean_H, self._products_HH = moments[0], moments[1:]

    def candidates(self, question_H: Vectors, count: int) -> tuple[npt.NDArray[np.int64], Vectors]:
        """[C] at least `count` rows among which the nearest are, ascending, and their cosines."""
        # A graph finds most of the nearest, not all; of more candidates, ranked exactly, it misses
        # fewer.
        wanted = min(CANDIDATES * count, len(self._index))
        rows = self._index.search(question_H, wanted).keys.astype(np.int64)
        # [E, 2], sorted by the row in the graph: its equals are one range.
        low, high = (np.searchsorted(self._equal_E2[:, 0], rows, s) for s in ("left", "right"))
        others = [self._equal_E2[a:b, 1] for a, b in zip(low, high, strict=True) if a < b]
        rows_C = np.unique(np.concatenate([rows, *others]))
        return rows_C, self.cosines(question_H, rows_C)

    def cosines(self, question_H: Vectors, rows_C: npt.NDArray[np.int64]) -> Vectors:
        """[C] with these rows."""
        found: Vectors = self._matrix_NH[rows_C] @ question_H
        return found

    def spread(self, question_H: Vectors) -> tuple[float, float]:
        """Mean and standard deviation of the cosines with all rows, without computing these."""
        mean = float(self._mean_H @ question_H)
        square = float(question_H @ self._products_HH @ question_H)
        # Rounding may bring the difference below 0.
        return mean, max(square - mean * mean, 0.0) ** 0.5


def recall_of(graph: Graph, vectors: str) -> float:
    """The share of the nearest rows of made-up questions that are among the graph's candidates."""
    matrix_NH = open_vectors(vectors)
    draw = np.random.default_rng(0)
    rows = np.sort(draw.permutation(len(matrix_NH))[:SAMPLED])
    noise_QH = draw.standard_normal((len(rows), matrix_NH.shape[1]), np.float32)
    noise_QH /= np.linalg.norm(noise_QH, axis=1, keepdims=True)
    hits = total = 0
    # A question is only half-way near to a passage; a passage itself would be found more easily.
    for question_H in LIKENESS * matrix_NH[rows] + (1 - LIKENESS**2) ** 0.5 * noise_QH:
        exact_N = cosines(matrix_NH, question_H[None])[0]
        kept = min(COMPARED, len(exact_N))
        found_C = np.sort(graph.candidates(question_H, kept)[1])[::-1][:kept]
        # By score, for of equal ones any will do; cosines of one row differ by rounding.
        least = np.partition(exact_N, len(exact_N) - kept)[len(exact_N) - kept]
        hits += int(np.count_nonzero(found_C >= least - ROUNDING))
        total += kept
    return hits / total


def read_passage(path: str, row: int) -> Passage:
    """One row."""
    with pa.memory_map(path) as source:
        # All batches but the last have `BATCH` rows.
        batch = pa.ipc.open_file(source).get_batch(row // BATCH)
        return Passage(*(batch.column(n)[row % BATCH].as_py() for n in range(len(SCHEMA))))


def read_passages(path: str) -> Iterator[Passage]:
    """All rows in order."""
    with pa.memory_map(path) as source:
        reader = pa.ipc.open_file(source)
        for batch in map(reader.get_batch, range(reader.num_record_batches)):
            yield from map(Passage, *(column.to_pylist() for column in batch.columns))


def indexed_texts(path: str) -> Iterator[str]:
    """The indexed texts of all rows in order."""
    return (passage.indexed for passage in read_passages(path))


def digest_of_text(text: str) -> bytes:
    """By which the vector of a passage is found again."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def vectors_by_text(vectors: str, passages: str) -> dict[bytes, Vectors]:
    """The rows of an index by the digests of their texts; the matrix stays on disk."""
    matrix_NH = open_vectors(vectors)
    rows: dict[bytes, Vectors] = {}
    for row, text in enumerate(indexed_texts(passages)):
        rows[digest_of_text(text)] = matrix_NH[row]
    return rows


def _empty(width: int) -> "Index":
    from usearch.index import Index  # needs the extra `index`

    return Index(
        ndim=width,
        metric="ip",
        dtype="bf16",
        connectivity=GRAPH_SETTINGS["connectivity"],
        expansion_add=GRAPH_SETTINGS["expansion_add"],
        expansion_search=LEAST_EXPANSION,
    )
