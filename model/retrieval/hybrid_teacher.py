"""A hybrid ranking as a teacher of vectors: words are to be found without an index of words.

In:  queries and passages, and their vectors before training.
Out: per query the best passages of the hybrid ranking, each with its share; the loss of new
     vectors.

What `cloze search` ranks by both vectors and words is several points better than by vectors alone,
and costs no other model: the encoder learns for made-up queries what both of them find (as SPAR
learns BM25, Chen et al. 2022). Queries are compared with the passages' vectors before training, all
of them and in every step, so a step costs as much as its queries. That these vectors stay where
they are is the other part of the loss.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from cloze.model.data.batch import on
from cloze.model.retrieval.fusion import WEIGHT, best_rows, fused, spread_of
from cloze.model.retrieval.lexical_index import LexicalIndex
from cloze.model.retrieval.passage_index import Vectors, cosines

BEST = 64
"""Passages of the hybrid ranking whose shares are learnt; the others' are near 0."""

SHARPNESS = 2.0
"""Factor of the standardised scores in the softmax that makes them shares."""

KEEPING = 0.3
"""Weight, for each query of a passage, of one minus its cosine with its vector before: a passage is
met once, and all of its queries pull at it."""

QUERIES_AT_ONCE = 256

# Q queries, P passages, K = `BEST`, H width; of a batch, U queries, D passages


@dataclass(frozen=True)
class HybridTeacher:
    """What is learnt of the ranking."""

    passages_PH: Tensor
    """Their vectors before training."""

    best_QK: Tensor
    """By query the numbers of the best passages."""

    shares_QK: Tensor
    """Of each of these; 1 together."""

    keeping: float
    """Weight of what a passage has moved."""

    @classmethod
    def of(
        cls,
        queries: Sequence[str],
        passages: Sequence[str],
        vectors: tuple[Vectors, Vectors],
        *,
        language: str,
        weight: float = WEIGHT,
    ) -> "HybridTeacher":
        """`vectors`: [Q, H] and [P, H], of length 1; `language`: of the stemmer and stopwords.

        `weight`: of the vectors in the ranking.
        """
        queries_QH, passages_PH = vectors
        best: list[npt.NDArray[np.int64]] = []
        scores: list[Vectors] = []
        lexical = LexicalIndex.of(passages, language=language)
        for start in range(0, len(queries), QUERIES_AT_ONCE):
            some = slice(start, start + QUERIES_AT_ONCE)
            near_UP = cosines(passages_PH, queries_QH[some])
            for query, near_P in zip(queries[some], near_UP, strict=True):
                # As a search fuses them: weighted in units of their own spreads.
                by = {"vectors": near_P, "lexical": lexical.scores(query)}
                spreads = {name: spread_of(scores_P) for name, scores_P in by.items()}
                found_P = fused(by, spreads, weight=weight)
                best.append(best_rows(found_P, BEST))
                scores.append(found_P[best[-1]])
        shares_QK = (SHARPNESS * torch.from_numpy(np.stack(scores))).softmax(-1)
        keeping = KEEPING * len(queries) / len(passages)
        best_QK = torch.from_numpy(np.stack(best))
        return cls(torch.from_numpy(passages_PH), best_QK, shares_QK, keeping)

    def ranking_loss(self, vectors_UH: Tensor, queries_U: Tensor, *, temperature: float) -> Tensor:
        """Divergence of the ranking by these queries' new vectors from the teacher's, summed."""
        passages_PH = on(vectors_UH.device, self.passages_PH)
        # Over all passages: what the teacher does not rank high is to be far away.
        logs_UP = (vectors_UH @ passages_PH.T / temperature).log_softmax(-1)
        best_UK, shares_UK = (
            on(vectors_UH.device, part[queries_U]) for part in (self.best_QK, self.shares_QK)
        )
        return functional.kl_div(logs_UP.gather(1, best_UK), shares_UK, reduction="sum")

    def keeping_loss(self, vectors_DH: Tensor, passages_D: Tensor) -> Tensor:
        """How far passages have moved, summed: questions are to come to them, not they away."""
        before_DH = on(vectors_DH.device, self.passages_PH[passages_D])
        return self.keeping * (1 - (vectors_DH * before_DH).sum(-1)).sum()
