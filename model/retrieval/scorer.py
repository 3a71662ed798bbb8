"""Scores of a collection's passages for questions: by vectors, by words, or by both.

In:  the matrix of an index, BM25 over the same rows, or both; for each question its vector.
Out: for each question `PassageScores`: of all passages, or of some with the best among them.

Three ways lead to the best: comparing with all vectors; an int8 copy, which names all that may be
among them, for an exact comparison; and a graph, which names most of them.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.model.retrieval.compact_vectors import CompactVectors
from cloze.model.retrieval.fusion import (
    NOISE,
    WEIGHT,
    Scores,
    Spread,
    best_rows,
    fused,
    rank_of,
    rows_within,
    spread_of,
)
from cloze.model.retrieval.lexical_index import LexicalIndex
from cloze.model.retrieval.passage_index import Graph, Vectors, cosines

FEWEST_CANDIDATES = 100
"""By vectors, and by words, where not all passages are compared exactly."""

MOST_CANDIDATES = 0.1
"""Share of the passages; to pick more of them out is slower than to compare with all."""

# N passages, Q questions, H width, C candidates


class PassageScores(NamedTuple):
    """Scores of some passages for one question."""

    question: str
    rows_C: npt.NDArray[np.int64] | None
    """Which passages; None: all."""
    by: dict[str, Scores]
    """[C] cosines as `vectors`, BM25 scores as `lexical`, as far as they are used."""
    spreads: dict[str, Spread]
    """Of each over all passages."""
    everywhere: Mapping[str, Scores] = MappingProxyType({})
    """[N] of all passages, as far as they are known where only some are compared exactly."""

    def ranked(self, weight: float) -> Scores:
        """[C] the scores by which the passages are ranked."""
        return fused(self.by, self.spreads, weight=weight)

    def rank(self, name: str, place: int) -> int:
        """The rank of a passage by `vectors` or `lexical` among all passages.

        Behind the first `FEWEST_CANDIDATES`, that of int8 vectors, or among those that a graph has
        named.
        """
        rank = rank_of(self.by[name], place)
        # The first so many by either are candidates, so only a rank behind them may miss some.
        if rank > FEWEST_CANDIDATES and name in self.everywhere:
            better_N = self.everywhere[name] > self.by[name][place]
            rank = max(rank, int(np.count_nonzero(better_N)) + 1)
        return rank


@dataclass(frozen=True)
class Scorer:
    """A collection's vectors and words."""

    matrix_NH: Vectors
    lexical: LexicalIndex | None = None
    weight: float = WEIGHT
    """Of the vectors, by which candidates are chosen."""
    graph: Graph | None = None
    compact: CompactVectors | None = None

    def scores(
        self, questions: Sequence[str], vectors_QH: Vectors | None, *, top_k: int | None = None
    ) -> Iterator[PassageScores]:
        """The scores of passages for each question; by words alone without vectors.

        They are those of all passages, or if `top_k` are wanted, of some with the first `top_k`
        among them; by a graph most of these.
        """
        if vectors_QH is None:
            yield from (self._of_all(question, None) for question in questions)
        elif self.graph:
            for question, vector_H in zip(questions, vectors_QH, strict=True):
                yield self._near_in_graph(self.graph, question, vector_H, top_k or 0)
        elif self.compact and top_k and len(questions) == 1:
            yield self._perhaps_best(self.compact, questions[0], vectors_QH[0], top_k)
        else:
            # Several questions share one reading of the vectors, which is what costs time.
            cosines_QN = cosines(self.matrix_NH, vectors_QH)
            yield from map(self._of_all, questions, cosines_QN)

    def like(self, row: int, text: str, rows_D: npt.NDArray[np.int64], *, spread: Spread) -> Scores:
        """[D] the hybrid scores of passages if the passage `row` were the question.

        `text`: its text; `spread`: that of the cosines of a question.
        """
        if not self.lexical:
            raise AssertionError("hybrid ranking has words")
        # Cosines with a passage are spread over the collection as those with a question are, near
        # enough, and need not be computed for all of it. BM25 scores, which grow with the words
        # asked for, are.
        lexical_N = self.lexical.scores(text)
        by = {"vectors": self.matrix_NH[rows_D] @ self.matrix_NH[row], "lexical": lexical_N[rows_D]}
        return fused(by, {"vectors": spread, "lexical": spread_of(lexical_N)}, weight=self.weight)

    def _of_all(self, question: str, cosines_N: Vectors | None) -> PassageScores:
        by = {} if cosines_N is None else {"vectors": cosines_N}
        if self.lexical:
            by["lexical"] = self.lexical.scores(question)
        return PassageScores(
            question, None, by, {name: spread_of(one_N) for name, one_N in by.items()}
        )

    def _near_in_graph(
        self, graph: Graph, question: str, vector_H: Vectors, top_k: int
    ) -> PassageScores:
        """The scores of passages that are near in the graph, or among the best by words."""
        # The graph names the nearest without looking at all; those best by words may be far from
        # it, so both kinds are candidates, and both get both scores. Spreads over all passages keep
        # the sum on the scale of an exhaustive search: the graph estimates that of the cosines.
        rows_C, cosines_C = graph.candidates(vector_H, max(top_k, FEWEST_CANDIDATES))
        spreads = {"vectors": Spread(*graph.spread(vector_H))}
        if not self.lexical:
            return PassageScores(question, rows_C, {"vectors": cosines_C}, spreads)
        lexical_N = self.lexical.scores(question)
        rows_C = np.union1d(rows_C, best_rows(lexical_N, max(top_k, FEWEST_CANDIDATES)))
        by = {"vectors": graph.cosines(vector_H, rows_C), "lexical": lexical_N[rows_C]}
        spreads["lexical"] = spread_of(lexical_N)
        return PassageScores(question, rows_C, by, spreads, {"lexical": lexical_N})

    def _perhaps_best(
        self, compact: CompactVectors, question: str, vector_H: Vectors, top_k: int
    ) -> PassageScores:
        """The exact scores of all passages that may be among the first."""
        about_N, off = compact.cosines(vector_H)
        everywhere, spreads = {"vectors": about_N}, {"vectors": compact.spread(vector_H)}
        rows_C = rows_within(about_N, max(top_k, FEWEST_CANDIDATES), off=off)
        if self.lexical:
            everywhere["lexical"] = lexical_N = self.lexical.scores(question)
            spreads["lexical"] = spread_of(lexical_N)
            rows_C = np.union1d(rows_C, best_rows(lexical_N, FEWEST_CANDIDATES))
            # A sum may be as far off as its part by vectors.
            of_sum = off * self.weight / max(spreads["vectors"].deviation, NOISE)
            sum_N = fused(everywhere, spreads, weight=self.weight)
            rows_C = np.union1d(rows_C, rows_within(sum_N, top_k, off=of_sum))
        if len(rows_C) > MOST_CANDIDATES * len(self.matrix_NH):  # such as equal vectors
            return self._of_all(question, cosines(self.matrix_NH, vector_H[None])[0])
        by = {name: one_N[rows_C] for name, one_N in everywhere.items()}
        by["vectors"] = self.matrix_NH[rows_C] @ vector_H
        return PassageScores(question, rows_C, by, spreads, everywhere)
