"""Retrieval: rank passages for a query by the similarity of their vectors.

In:  columns query and passage, one matching pair per row; `negatives`, a list of hard negatives
     (or `negative`, `negative_1`, … with one each).
Out: a `Problem` whose outputs are vectors of length 1; a ranking of the split's passages by cosine
     for each of its queries.

Trained with the multiple-negatives ranking loss (Henderson et al. 2017): a softmax over all
passages of the batch, hard negatives included, whose target is the query's own passage. A passage
known to be relevant to a query is never one of its negatives, whichever row it is in. Or with the
hybrid ranking of all passages as a teacher (model/retrieval/hybrid_teacher.py).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.progress import say
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.data.batch import on
from cloze.model.retrieval.fusion import STANDING, WEIGHT, weight_of_vectors
from cloze.model.retrieval.hybrid_teacher import HybridTeacher
from cloze.model.retrieval.standing import FEWEST, part_of, sampled_rows, standing_of
from cloze.model.tasks.base import Exported, Logits, Prediction
from cloze.model.tasks.features import Places, encode
from cloze.model.tasks.ranking import DEPTH, Ranking, measure_ranking, rankings_of

PARTS = "parts"
"""Parts of sampled passages, by which it is seen how far passages stand out."""

QUERIES_AT_ONCE, SCORES_AT_ONCE = 1024, 1 << 26
"""Queries ranked at once, and their scores: of a large collection, fewer queries."""

# U units of a batch, S texts of the largest unit, N texts of the batch, C candidates among them,
# Q queries and P passages of a split, D width of a vector


class Retrieval(Ranking):
    """The passages relevant to a query; the texts of a row form a unit."""

    reads: ClassVar = "vectors"
    exported_as: ClassVar = Exported("Model", "sentence-similarity")
    head_dropout: ClassVar[bool] = False
    joint = True
    outputs = 0
    _teacher: HybridTeacher | None = None

    def _read(self) -> None:
        super()._read()
        if self._taught_by_hybrid:
            # Each query has targets of its own, and is compared with vectors that do not change.
            self.joint, self.has_exact_targets = False, True
            self._texts["train"].take_each_passage_once()
        self._first = {
            name: offsets_of(np.array([len(line) for line in split.lines]))
            for name, split in self._texts.items()
        }

    def _encode(self, tokenizer: SubwordTokenizer) -> None:
        own = self.config.retrieval
        query, passage = own.query_prompt or "", own.passage_prompt or ""
        self.sequences = {
            name: encode(
                tokenizer,
                [
                    (passage if number else query) + text
                    for line in split.lines
                    for number, text in enumerate(line)
                ],
                max_seq_length=self.config.max_seq_length,
            )
            for name, split in self._texts.items()
        }
        if self._taught_by_hybrid:
            passages = self._texts["train"].passages
            parts = [query + part_of(passages[row]) for row in self._sampled]
            self._parts = encode(tokenizer, parts, max_seq_length=self.config.max_seq_length)

    @property
    def _taught_by_hybrid(self) -> bool:
        return self.config.retrieval.loss == "hybrid" and "train" in self._texts

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of full vectors, then the headline for each truncated size: `ndcg@10_64`."""
        whole = self.config.metrics or self.default_metrics
        return (*whole, *(f"{whole[0]}_{size}" for size in self.config.retrieval.dimensions))

    def begin(self, outputs: Callable[[str], Logits]) -> None:
        """Ask the teacher, if there is one: the hybrid ranking by the encoder before training."""
        if self._taught_by_hybrid:
            texts = self._texts["train"]
            vectors = self._vectors("train", outputs("train"))
            self._teacher = HybridTeacher.of(
                texts.queries,
                texts.passages,
                vectors,
                language=self.config.retrieval.language,
                weight=self._weight(vectors[1], outputs),
            )

    def _weight(self, passages_PD: Logits, outputs: Callable[[str], Logits]) -> float:
        """Of the vectors in that ranking: what a search of these passages would give them."""
        rows = self._sampled
        if not rows:
            return WEIGHT
        with self._parts_as_a_split():
            parts_QD = unit_length(outputs(PARTS))
        standing = standing_of(passages_PD, rows, parts_QD)
        weight = weight_of_vectors(standing)
        if weight < WEIGHT:
            say(
                f"{self.config.name}: in the ranking that is taught vectors count {weight:g}, not "
                f"{WEIGHT:g}: passages stand out by {standing:.1f} deviations, not {STANDING:g}"
            )
        return weight

    @property
    def _sampled(self) -> range:
        """The passages of which parts show how far they stand out; none of a few."""
        count = len(self._texts["train"].passages)
        return sampled_rows(count) if count >= FEWEST else range(0)

    @contextmanager
    def _parts_as_a_split(self) -> Iterator[None]:
        """They are no text of the files, so only for the time of a pass."""
        self.sequences[PARTS] = self._parts
        yield
        self._parts = self.sequences.pop(PARTS)

    def prune_vocabulary(self) -> None:
        """Count the parts, too."""
        if not self._taught_by_hybrid:
            super().prune_vocabulary()
            return
        with self._parts_as_a_split():
            super().prune_vocabulary()

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[U, S] int64: `RankingTexts.ids` of these rows."""
        return self._texts[split].ids[units]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each query over the batch's passages; the mean over vector sizes.

        With a teacher, the divergence from its ranking.
        """
        if self._teacher:
            return self._taught(self._teacher, logits, targets)
        # Which of the S places of each unit there are; the texts of the batch in that order: place
        # 0 is the query, 1 its own passage, the others hard negatives.
        there_US = targets >= 0
        columns_N = torch.arange(targets.shape[1]).expand_as(targets)[there_US]
        is_query_N = columns_N == 0
        candidate_ids_C = targets[there_US][~is_query_N]
        # where each unit's own passage is among the candidates
        own_U = torch.nonzero(columns_N[~is_query_N] == 1)[:, 0]
        # A query's passages in any row of the batch are relevant to it.
        # Queries and candidate texts numbered from 0, and which texts are relevant to which query.
        _, query_U = torch.unique(targets[:, 0], return_inverse=True)
        different, text_C = torch.unique(candidate_ids_C, return_inverse=True)
        right = torch.zeros(int(query_U.max()) + 1, len(different), dtype=torch.bool)
        right[query_U, text_C[own_U]] = True
        # For each unit's query, the candidates that are relevant to it, except its own passage:
        # these are masked, since they are neither the target nor wrong.
        right_UC = right[query_U][:, text_C]
        right_UC[torch.arange(len(own_U)), own_U] = False
        # Indices, not masks: to count the set bits of a mask, the host would wait for the GPU.
        queries_U, candidates_C = (torch.nonzero(at)[:, 0] for at in (is_query_N, ~is_query_N))
        queries_U, candidates_C, own_U, right_UC = (
            on(logits.device, part) for part in (queries_U, candidates_C, own_U, right_UC)
        )
        losses = []
        # Matryoshka: the same loss on prefixes of the vectors.
        for size in (logits.shape[1], *self.config.retrieval.dimensions):
            vectors_ND = functional.normalize(logits[:, :size], dim=-1)
            scores_UC = vectors_ND[queries_U] @ vectors_ND[candidates_C].T
            scores_UC = (scores_UC / self.config.retrieval.temperature).masked_fill(
                right_UC, -torch.inf
            )
            losses.append(functional.cross_entropy(scores_UC, own_U, reduction="sum"))
        return torch.stack(losses).mean()

    def _taught(self, teacher: HybridTeacher, logits: Tensor, targets: Tensor) -> Tensor:
        """The loss by the teacher's ranking."""
        there_US = targets >= 0
        numbers_N = targets[there_US]
        is_query_N = torch.arange(targets.shape[1]).expand_as(targets)[there_US] == 0
        vectors_ND = functional.normalize(logits, dim=-1)
        queries_U, passages_C = (torch.nonzero(at)[:, 0] for at in (is_query_N, ~is_query_N))
        ranking = teacher.ranking_loss(
            vectors_ND[on(logits.device, queries_U)],
            numbers_N[queries_U],
            temperature=self.config.retrieval.temperature,
        )
        keeping = teacher.keeping_loss(
            vectors_ND[on(logits.device, passages_C)], numbers_N[passages_C]
        )
        return ranking + keeping

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """For each query the best passage, and for each vector size the top `DEPTH` by number."""
        texts = self._texts[split]
        ranked = [
            best_passages(*self._vectors(split, logits[:, :size]))
            for size in (logits.shape[1], *self.config.retrieval.dimensions)
        ]
        return [
            {"text": texts.passages[orders[0][0]], "ranked": [*map(list, orders)]}
            for orders in zip(*ranked, strict=True)
        ]

    def _vectors(self, split: str, logits: Logits) -> tuple[Logits, Logits]:
        """Vectors of length 1 of the split's queries and passages, [Q, D] and [P, D]."""
        texts = self._texts[split]
        # Apart, since a text may be both: with prompts, a query and a passage have other vectors.
        query_places: dict[str, int] = {}
        passage_places: dict[str, int] = {}
        for first, line in zip(self._first[split][:-1].tolist(), texts.lines, strict=True):
            query_places[line[0]] = first
            passage_places |= {text: first + at for at, text in enumerate(line) if at}
        vectors_ND = unit_length(logits)
        return (
            vectors_ND[[query_places[query] for query in texts.queries]],
            vectors_ND[[passage_places[passage] for passage in texts.passages]],
        )

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Every metric; predictions with a single ranking have those of full vectors only."""
        relevant = self._texts[split].relevant
        whole = self.config.metrics or self.default_metrics
        by_size = list(zip(*(rankings_of(one) for one in predictions), strict=True))
        scores = measure_ranking(whole, by_size[0], relevant)
        for size, ranked in zip(self.config.retrieval.dimensions, by_size[1:], strict=False):
            (value,) = measure_ranking(whole[:1], ranked, relevant).values()
            scores[f"{whole[0]}_{size}"] = value
        return scores


def unit_length(logits_ND: Logits) -> Logits:
    """[N, D] each of length 1."""
    lengths_N1 = np.linalg.norm(logits_ND, axis=1, keepdims=True)
    found_ND: Logits = logits_ND / np.maximum(lengths_N1, np.float32(1e-12))
    return found_ND


def best_passages(
    queries_QD: NDArray[np.float32], passages_PD: NDArray[np.float32]
) -> list[list[int]]:
    """For each query the numbers of the top `DEPTH` passages by inner product, best first."""
    found: list[list[int]] = []
    some = max(1, min(QUERIES_AT_ONCE, SCORES_AT_ONCE // len(passages_PD)))
    for start in range(0, len(queries_QD), some):
        scores_QP = queries_QD[start : start + some] @ passages_PD.T
        # Stable, so that equal scores keep the order of passages on any machine.
        found += np.argsort(-scores_QP, axis=1, kind="stable")[:, :DEPTH].tolist()
    return found
