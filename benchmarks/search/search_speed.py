"""Milliseconds per question over a million passages: vectors, words, both; faiss and bm25s beside.

    python benchmarks/search/search_speed.py --passages 1000000

In:  nothing; passages are made up: vectors of length 1, and words with frequencies as in text.
     faiss-cpu, if it is installed.
Out: benchmarks/results/search_speed.json: the median of the questions, asked one at a time after
     everything is loaded, in turns, so that a busy machine slows all sides alike; and the same in
     processor time, which other programs do not lengthen by waiting.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from benchmarks.measuring import Arguments, machine, write_result
from cloze.model.retrieval.compact_vectors import (
    COMPACT_FILES,
    CompactVectors,
    write_compact_vectors,
)
from cloze.model.retrieval.fusion import best_rows
from cloze.model.retrieval.lexical_index import FILES, LexicalIndex, write_lexical_index
from cloze.model.retrieval.passage_index import GRAPH_FILES, Graph, open_vectors, write_graph
from cloze.model.retrieval.scorer import Scorer

WIDTH, VOCABULARY, WORDS, QUESTION_WORDS, BEST = 384, 200_000, 40, 6, 10
CLUSTERS, NOISE = 2000, 0.05
ROWS_AT_ONCE = 50_000


def write_vectors(path: str, rows: int) -> None:
    """Vectors around a few thousand centres."""
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((CLUSTERS, WIDTH), np.float32)
    matrix = np.lib.format.open_memmap(path, "w+", np.float32, (rows, WIDTH))
    for start in range(0, rows, ROWS_AT_ONCE):
        size = min(ROWS_AT_ONCE, rows - start)
        # In clusters, as the vectors of texts are: among independent ones nothing is near anything,
        # and a graph has nothing to follow. The noise is 0.98 per coordinate beside the centres' 1,
        # which makes a cosine of 1 / (1 + 0.98²) ≈ 0.51 within a cluster.
        made = centres[draw.integers(0, CLUSTERS, size)]
        made = made + NOISE * WIDTH**0.5 * draw.standard_normal((size, WIDTH), np.float32)
        matrix[start : start + size] = made / np.linalg.norm(made, axis=1, keepdims=True)
    matrix.flush()


def made_up_text(draw: np.random.Generator, words: int) -> str:
    """Words by Zipf's law."""
    ranks = np.minimum(draw.zipf(1.2, words), VOCABULARY)
    return " ".join(f"w{rank}x" for rank in ranks)


def seconds_of(parts: Iterable[object]) -> float:
    """How long it takes to make all of them."""
    began = time.monotonic()
    for _ in parts:
        pass
    return time.monotonic() - began


def asked(ways: dict[str, Callable[[int], object]], questions: int) -> dict[str, dict[str, float]]:
    """Median milliseconds per question, by the clock and of processors, each way in turn."""
    clocks = {"milliseconds": time.perf_counter, "processor_milliseconds": time.process_time}
    took: dict[str, dict[str, list[float]]] = {
        clock: {name: [] for name in ways} for clock in clocks
    }
    for number in range(questions):
        for name, way in ways.items():
            began = {clock: read() for clock, read in clocks.items()}
            way(number)
            for clock, read in clocks.items():
                took[clock][name].append(1000 * (read() - began[clock]))
    return {
        clock: {name: statistics.median(times) for name, times in by_way.items()}
        for clock, by_way in took.items()
    }


def main() -> None:
    """Build, load, ask."""
    parser = Arguments(__doc__, output="search_speed.json")
    parser.add_options(passages=1_000_000, questions=30, graph=1)
    arguments = parser.parse_args()
    draw = np.random.default_rng(1)
    with tempfile.TemporaryDirectory() as temporary:
        folder, path = Path(temporary), f"{temporary}/vectors.npy"
        write_vectors(path, arguments.passages)
        texts = (made_up_text(draw, WORDS) for _ in range(arguments.passages))
        built = {}
        began = time.monotonic()
        write_lexical_index(folder, texts, language="none")
        built["words_s"] = time.monotonic() - began
        matrix = open_vectors(path)
        lexical = LexicalIndex({name: f"{folder}/{name}" for name in FILES}, language="none")
        words = [made_up_text(draw, QUESTION_WORDS) for _ in range(arguments.questions)]
        noise = draw.standard_normal((arguments.questions, WIDTH), np.float32)
        vectors = matrix[draw.integers(0, len(matrix), arguments.questions)] + NOISE * noise
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)

        built["compact_s"] = seconds_of(write_compact_vectors(path, folder))
        compact = CompactVectors({name: f"{folder}/{name}" for name in COMPACT_FILES})
        scorers = {
            "vectors": Scorer(matrix, compact=compact),
            "vectors_all_compared": Scorer(matrix),
            "hybrid": Scorer(matrix, lexical, compact=compact),
            "hybrid_all_compared": Scorer(matrix, lexical),
        }
        if arguments.graph:
            keys = map(str, range(arguments.passages))
            made = folder / "graph"  # has moments of its own
            made.mkdir()
            built["graph_s"] = seconds_of(write_graph(path, keys, made))
            graph = Graph({name: f"{made}/{name}" for name in GRAPH_FILES}, path)
            scorers["hybrid_graph"] = Scorer(matrix, lexical, graph=graph)

        def way(scorer: Scorer) -> Callable[[int], object]:
            def best(number: int) -> object:
                asked = [words[number]], vectors[number : number + 1]
                (scores,) = scorer.scores(*asked, top_k=BEST)
                places = best_rows(scores.ranked(scorer.weight), BEST)
                return places if scores.rows_C is None else scores.rows_C[places]

            return best

        ways: dict[str, Callable[[int], object]] = {
            "words": lambda n: best_rows(lexical.scores(words[n]), BEST),
            **{name: way(scorer) for name, scorer in scorers.items()},
            **theirs(folder, matrix, vectors, words),
        }
        for kind in ("vectors", "hybrid"):
            pairs = [(ways[kind](n), ways[f"{kind}_all_compared"](n)) for n in range(3)]
            assert all(np.array_equal(*pair) for pair in pairs), f"{kind}: {pairs}"
        asked(ways, 2)  # reads the files into the page cache
        result = {
            "machine": machine(),
            "passages": arguments.passages,
            "built": built,
            **asked(ways, arguments.questions),
        }
    write_result(arguments.output, result)
    print(result)


def theirs(
    folder: Path, matrix: np.ndarray, vectors: np.ndarray, words: list[str]
) -> dict[str, Callable[[int], object]]:
    """The libraries on the same arrays."""
    import bm25s

    loaded = bm25s.BM25.load(folder, mmap=True)
    found: dict[str, Callable[[int], object]] = {
        "bm25s": lambda n: loaded.retrieve([words[n].split()], k=BEST, show_progress=False)
    }
    if find_spec("faiss"):
        import faiss

        index = faiss.IndexFlatIP(WIDTH)
        index.add(matrix)
        found["faiss_flat"] = lambda n: index.search(vectors[n : n + 1], BEST)
    return found


if __name__ == "__main__":
    main()
