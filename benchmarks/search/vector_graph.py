"""Search among millions of vectors: an exact scan against the graph of `cloze search --index`.

    python benchmarks/search/vector_graph.py --vectors vectors.npy --rows 200000

In:  vectors of a folder's passages, as `cloze search` writes them.
Out: benchmarks/results/vector_graph.json: seconds per question both ways, on a memory-mapped file
     that is in the page cache; the time to build the graph; its recall of the ten nearest.

The rows are noisy mixtures of two of those vectors, so that they are distributed like passages and
all distinct. The questions are such vectors with more noise, and not among the rows.
"""

import resource
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, write_result
from cloze.model.retrieval.fusion import best_rows
from cloze.model.retrieval.passage_index import (
    GRAPH,
    GRAPH_FILES,
    Graph,
    Vectors,
    cosines,
    open_vectors,
    write_graph,
)

COUNT = 10
ROWS_AT_ONCE = 50_000
ROW_NOISE, QUESTION_NOISE = 0.02, 0.03
QUESTIONS_AT_ONCE = 64

Way = Callable[[Vectors], Sequence[Sequence[int]]]
"""From questions to the nearest rows of each."""


def scaled(vectors: Vectors) -> Vectors:
    """Scale to length 1."""
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def write_rows(path: str, seen: Vectors, rows: int) -> None:
    """Write the matrix to search."""
    random = np.random.default_rng(0)
    matrix = np.lib.format.open_memmap(path, "w+", np.float32, (rows, seen.shape[1]))
    for start in range(0, rows, ROWS_AT_ONCE):
        size = min(ROWS_AT_ONCE, rows - start)
        first, second = random.integers(0, len(seen), (2, size))
        share = random.random((size, 1), np.float32)
        noise = random.standard_normal((size, seen.shape[1]), np.float32)
        mixed = share * seen[first] + (1 - share) * seen[second] + ROW_NOISE * noise
        matrix[start : start + size] = scaled(mixed)
    matrix.flush()


def answered(way: Way, questions: Vectors) -> tuple[float, list[set[int]]]:
    """Seconds per question, and the rows found for each."""
    began = time.monotonic()
    found = [
        set(hits)
        for start in range(0, len(questions), QUESTIONS_AT_ONCE)
        for hits in way(questions[start : start + QUESTIONS_AT_ONCE])
    ]
    return (time.monotonic() - began) / len(questions), found


def main() -> None:
    """Build the graph, search both ways, compare."""
    parser = Arguments(__doc__, output="vector_graph.json", vectors=str)
    parser.add_options(rows=200_000, questions=192)
    arguments = parser.parse_args()
    seen = np.load(arguments.vectors, mmap_mode="r")
    random = np.random.default_rng(1)
    noise = random.standard_normal((arguments.questions, seen.shape[1]), np.float32)
    sources = seen[random.integers(0, len(seen), arguments.questions)]
    questions = scaled(sources + QUESTION_NOISE * noise)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/vectors.npy"
        write_rows(path, seen, arguments.rows)
        began, cpu = time.monotonic(), time.process_time()
        for _ in write_graph(path, map(str, range(arguments.rows)), Path(folder)):
            pass
        built = {"seconds": time.monotonic() - began, "cpu_seconds": time.process_time() - cpu}
        matrix = open_vectors(path)
        graph = Graph({name: f"{folder}/{name}" for name in GRAPH_FILES}, path)

        def in_graph(question: Vectors) -> list[int]:
            rows, scores = graph.candidates(question, COUNT)
            return rows[best_rows(scores, COUNT)].tolist()

        ways: dict[str, Way] = {
            "exact": lambda some: [best_rows(one, COUNT).tolist() for one in cosines(matrix, some)],
            "graph": lambda some: [in_graph(question) for question in some],
        }
        took: dict[str, dict[str, float]] = {}
        rows: dict[str, list[set[int]]] = {}
        for name, way in ways.items():
            way(questions[:1])  # reads the file into the page cache
            one, _ = answered(way, questions[:1])
            each, rows[name] = answered(way, questions)
            took[name] = {"one_question_s": one, "of_many_s": each}
        size = Path(folder, GRAPH).stat().st_size
    shared = [len(a & b) for a, b in zip(rows["exact"], rows["graph"], strict=True)]
    result = {
        "machine": machine(),
        "rows": arguments.rows,
        "width": int(seen.shape[1]),
        "questions": arguments.questions,
        "build": {**built, "bytes": size},
        "search": took,
        f"recall@{COUNT}": float(np.mean(shared)) / COUNT,
        "peak_bytes": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    }
    write_result(arguments.output, result)
    print(result)


if __name__ == "__main__":
    main()
