"""A graph of vectors in which those near a question are found without comparing with all.

In:  vectors.npy of a search index, [N, H] float32 of length 1.
Out: graph.usearch, a hierarchical navigable small world (Malkov and Yashunin 2018) over the rows in
     bfloat16; the rows nearest to a question, nearly always, with their exact cosines.

usearch (extra `index`) builds the graph with all cores, so two graphs of the same vectors differ in
bytes, and now and then in what they miss. It is mapped into memory: a search reads what it visits.
"""

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
from usearch.index import Index

from model.inference.passage_index import Hit, Vectors

# N vectors, Q questions, H width, C candidates

GRAPH = "graph.usearch"
SETTINGS = {"connectivity": 16, "expansion_add": 64}
"""Links of a vector, and how many candidates they are chosen from: half of usearch's own, which
builds in half the time; what it misses is made up for by looking at more candidates."""

VERSION = version("usearch")
"""Whose file it is: another version builds its own."""

CANDIDATES = 4
"""Taken from the graph for each row that is wanted, for it knows vectors to three digits only."""

LEAST_EXPANSION = 256
"""Rows that a search keeps in view: the more, the less it misses and the longer it takes."""

ROWS_AT_ONCE = 1 << 13
"""Between two of which an interruption is heard."""


def write_graph(vectors: str, path: str) -> Iterator[int]:
    """Write the graph of the matrix at `vectors` to `path`; the rows, as they are put in."""
    matrix_NH = np.lib.format.open_memmap(vectors, mode="r")
    graph = _empty(matrix_NH.shape[1])
    for start in range(0, len(matrix_NH), ROWS_AT_ONCE):
        rows = np.arange(start, min(start + ROWS_AT_ONCE, len(matrix_NH)), dtype=np.uint64)
        graph.add(rows, matrix_NH[start : start + ROWS_AT_ONCE])
        yield from rows.tolist()
    graph.save(path)


def nearest_in(graph: str, vectors: str, questions_QH: Vectors, *, count: int) -> list[list[Hit]]:
    """As `passage_index.nearest`, of the rows to which the graph at `graph` leads."""
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
