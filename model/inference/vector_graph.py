"""Approximate nearest-neighbour search in a graph of vectors.

In:  vectors.npy of a search index, [N, H] float32 of length 1.
Out: graph.usearch, a hierarchical navigable small-world graph (Malkov and Yashunin 2018) of the
     rows in bfloat16; the rows nearest to a question, with high recall and exact cosines.

usearch (extra `index`) builds the graph on all cores, so two graphs of the same vectors differ in
bytes, and occasionally in the rows they miss. The file is memory-mapped: a search reads only the
nodes it visits.
"""

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
from usearch.index import Index

from model.inference.passage_index import Hit, Vectors

# N vectors, Q questions, H width, C candidates

GRAPH = "graph.usearch"
SETTINGS = {"connectivity": 16, "expansion_add": 64}
"""Links per vector, and candidates considered for them: half of usearch's defaults, which halves
the build time; searching more candidates makes up for the loss in recall.
"""

VERSION = version("usearch")
"""Version of the library that wrote the file; another version builds its own graph."""

CANDIDATES = 4
"""Candidates per requested row, to be re-ranked: bfloat16 has only three digits."""

LEAST_EXPANSION = 256
"""Minimum length of a search's candidate list: a longer one gives better recall, more slowly."""

ROWS_AT_ONCE = 1 << 13
"""Rows added at once; the build can be interrupted in between."""


def write_graph(vectors: str, path: str) -> Iterator[int]:
    """Write the graph of the matrix at `vectors` to `path`; yield rows as they are added."""
    matrix_NH = np.lib.format.open_memmap(vectors, mode="r")
    graph = _empty(matrix_NH.shape[1])
    for start in range(0, len(matrix_NH), ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, len(matrix_NH)), dtype=np.uint64)
        graph.add(rows, matrix_NH[start : start + ROWS_AT_ONCE])
        yield from rows.tolist()
    graph.save(path)


def nearest_in(graph: str, vectors: str, questions_QH: Vectors, *, count: int) -> list[list[Hit]]:
    """Like `passage_index.nearest`, but only among candidates found in `graph`."""
    matrix_NH = np.lib.format.open_memmap(vectors, mode="r")
    wanted = min(CANDIDATES * count, len(matrix_NH))
    index = _empty(matrix_NH.shape[1], expansion_search=max(LEAST_EXPANSION, wanted))
    index.view(graph)
    best = []
    for question_H in questions_QH:
        rows_C = index.search(question_H, wanted).keys.astype(np.int64)
        hits = map(Hit, (matrix_NH[rows_C] @ question_H).tolist(), rows_C.tolist())
        best.append(sorted(hits, key=lambda hit: (-hit.score, hit.row))[:count])
    return best


def _empty(width: int, *, expansion_search: int = LEAST_EXPANSION) -> Index:
    return Index(
        ndim=width,
        metric="ip",
        dtype="bf16",
        connectivity=SETTINGS["connectivity"],
        expansion_add=SETTINGS["expansion_add"],
        expansion_search=expansion_search,
    )
