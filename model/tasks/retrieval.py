"""Retrieval: rank passages for a query by the similarity of their vectors.

In:  columns query and passage, one matching pair per row; `negatives`, a list of hard negatives
     (or `negative`, `negative_1`, … with one each).
Out: a `Problem` whose outputs are vectors of length 1; a ranking of the split's passages by cosine
     for each of its queries.

Trained with the multiple-negatives ranking loss (Henderson et al. 2017): a softmax over all
passages of the batch, hard negatives included, whose target is the query's own passage. A passage
known to be relevant to a query is never one of its negatives, whichever row it is in.

Scored by nDCG, recall and reciprocal rank, each at a cut-off. Relevance is binary: a hit at rank r
gains 1 / log2(r + 1) (Järvelin and Kekäläinen 2002). MRR@10 is MS MARCO's.
"""

from collections.abc import Callable, Collection, Sequence
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer, well_formed
from cloze.model.data.batch import on
from cloze.model.tasks.base import Gold, GroupedProblem, Logits, Prediction
from cloze.model.tasks.features import Places, encode
from cloze.model.tasks.files.task_table import TaskTable, is_missing

Hits = NDArray[np.bool_]

DEPTH = 100
"""Number of ranks kept for every query."""

NEGATIVES = ("negative", *(f"negative_{number}" for number in range(64)))
"""Columns with one hard negative each, as sentence-transformers mines them."""

QUERIES_AT_ONCE = 1024
"""Number of queries ranked at once."""

# U units of a batch, S texts of the largest unit, N texts of the batch, C candidates among them,
# Q queries and P passages of a split, D width of a vector, R ranks


class RetrievalTexts:
    """The texts of one split: queries, passages, and the passages relevant to each query."""

    def __init__(self, table: TaskTable) -> None:
        self.lines = [
            [query, passage]
            for query, passage in zip(table.texts("query"), table.texts("passage"), strict=True)
        ]
        """Per row: query, passage, hard negatives."""

        # A row without negatives has none.
        for name in (name for name in NEGATIVES if table.has(name)):
            for row, text in enumerate(table.columns[name]):
                if not is_missing(text) and not isinstance(text, str):
                    raise UsageError(f"{table.place(row)}: {name} is {text!r}, expected a passage")
                self.lines[row] += [] if is_missing(text) else [well_formed(str(text))]
        for row, values in enumerate(table.columns.get("negatives", [])):
            if values is None:
                continue
            if not isinstance(values, list) or not all(isinstance(one, str) for one in values):
                raise UsageError(
                    f"{table.place(row)}: negatives are {values!r}, expected a list of "
                    "passages; put a single passage in a column `negative`"
                )
            self.lines[row] += [well_formed(str(value)) for value in values]

        # Relevant passages first, then hard negatives that are relevant to no query.
        candidates = dict.fromkeys(line[1] for line in self.lines)
        candidates |= dict.fromkeys(text for line in self.lines for text in line[2:])
        self.passages = list(candidates)
        """Distinct passages, those relevant to some query first."""

        self.queries = list(dict.fromkeys(line[0] for line in self.lines))
        """Distinct queries, in the order in which they first occur."""

        number = {text: index for index, text in enumerate(self.passages)}
        by_query: dict[str, set[int]] = {query: set() for query in self.queries}
        for line in self.lines:
            by_query[line[0]].add(number[line[1]])
        self.relevant = list(by_query.values())
        """Numbers of the relevant passages of each query."""

        # One numbering for all texts of the split, so that equal texts are recognised across rows.
        numbers: dict[str, int] = {}
        self.ids = np.full((len(self.lines), max(map(len, self.lines))), -1, np.int64)
        """[U, S] a number per text, equal for equal texts; -1 if the row has fewer texts."""
        for row, line in enumerate(self.lines):
            self.ids[row, : len(line)] = [numbers.setdefault(text, len(numbers)) for text in line]


class Retrieval(GroupedProblem):
    """The passages relevant to a query; the texts of a row form a unit."""

    required: ClassVar[tuple[str, ...]] = ("query", "passage")
    optional: ClassVar[tuple[str, ...]] = ("negatives", *NEGATIVES, "document")
    label_column: ClassVar[str] = "passage"
    default_metrics: ClassVar[tuple[str, ...]] = ("ndcg@10", "recall@1", "recall@10", "mrr@10")
    reads: ClassVar = "vectors"
    head_dropout: ClassVar[bool] = False
    joint: ClassVar[bool] = True
    outputs = 0

    def _check_metrics(self) -> None:
        for name in self.config.metrics:
            metric, _, count = name.partition("@")
            if metric not in RANKING_METRICS or not count.isdigit() or not 1 <= int(count) <= DEPTH:
                raise UsageError(
                    f"task {self.config.name}: metric {name}; expected one of "
                    f"{', '.join(f'{known}@K' for known in RANKING_METRICS)}, K from 1 to {DEPTH}"
                )

    def _read(self) -> None:
        self._texts = {name: RetrievalTexts(table) for name, table in self._tables.items()}
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

    @property
    def metrics(self) -> tuple[str, ...]:
        """Metrics of full vectors, then the headline for each truncated size: `ndcg@10_64`."""
        whole = self.config.metrics or self.default_metrics
        return (*whole, *(f"{whole[0]}_{size}" for size in self.config.retrieval.dimensions))

    def examples(self, split: str) -> int:
        """Queries."""
        return len(self._texts[split].queries)

    def gold(self, split: str) -> Sequence[Gold]:
        """The relevant passages of each query."""
        texts = self._texts[split]
        return [tuple(texts.passages[number] for number in sorted(n)) for n in texts.relevant]

    def shown(self, split: str, example: int) -> str:
        """The query."""
        return self._texts[split].queries[example]

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[U, S] int64: `RetrievalTexts.ids` of these rows."""
        return self._texts[split].ids[units]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each query over the batch's passages; the mean over vector sizes."""
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

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """For each query the best passage, and for each vector size the top `DEPTH` by number."""
        texts = self._texts[split]
        # Apart, since a text may be both: with prompts, a query and a passage have other vectors.
        query_places: dict[str, int] = {}
        passage_places: dict[str, int] = {}
        for first, line in zip(self._first[split][:-1].tolist(), texts.lines, strict=True):
            query_places[line[0]] = first
            passage_places |= {text: first + at for at, text in enumerate(line) if at}
        ranked = []
        for size in (logits.shape[1], *self.config.retrieval.dimensions):
            vectors_ND = logits[:, :size]
            vectors_ND = vectors_ND / np.maximum(
                np.linalg.norm(vectors_ND, axis=1, keepdims=True), np.float32(1e-12)
            )
            ranked.append(
                best_passages(
                    vectors_ND[[query_places[query] for query in texts.queries]],
                    vectors_ND[[passage_places[passage] for passage in texts.passages]],
                )
            )
        return [
            {"text": texts.passages[orders[0][0]], "ranked": [*map(list, orders)]}
            for orders in zip(*ranked, strict=True)
        ]

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


def best_passages(
    queries_QD: NDArray[np.float32], passages_PD: NDArray[np.float32]
) -> list[list[int]]:
    """For each query the numbers of the top `DEPTH` passages by inner product, best first."""
    found: list[list[int]] = []
    for start in range(0, len(queries_QD), QUERIES_AT_ONCE):
        scores_QP = queries_QD[start : start + QUERIES_AT_ONCE] @ passages_PD.T
        # Stable, so that equal scores keep the order of passages on any machine.
        found += np.argsort(-scores_QP, axis=1, kind="stable")[:, :DEPTH].tolist()
    return found


def rankings_of(prediction: Prediction) -> list[list[int]]:
    """The rankings in a prediction: by full vectors, then by truncated ones."""
    ranked = prediction["ranked"] if isinstance(prediction, dict) else None
    if not isinstance(ranked, list):
        raise AssertionError(f"a retrieval prediction has rankings, this one is {prediction!r}")
    return [[int(str(number)) for number in one] for one in ranked if isinstance(one, list)]


def ndcg(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """Discounted cumulative gain of the first `count` ranks, divided by the ideal one."""
    discounts_R = 1 / np.log2(np.arange(count) + 2)
    gains_Q = hits_QR[:, :count] @ discounts_R[: hits_QR.shape[1]]
    # The ideal ranking has all relevant passages first.
    best_Q = np.cumsum(discounts_R)[np.minimum(relevant_Q, count) - 1]
    return float(np.mean(gains_Q / best_Q))


def recall(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """Share of a query's relevant candidates among the first `count` ranks."""
    return float(np.mean(hits_QR[:, :count].sum(1) / relevant_Q))


def reciprocal_rank(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """1 / rank of the first hit; 0 without a hit among the first `count` ranks."""
    first = hits_QR[:, :count]
    # argmax is 0 without any hit, hence the mask.
    return float(np.mean(first.any(1) / (first.argmax(1) + 1)))


RANKING_METRICS: dict[str, Callable[[Hits, NDArray[np.int64], int], float]] = {
    "ndcg": ndcg,
    "recall": recall,
    "mrr": reciprocal_rank,
}


def measure_ranking(
    metrics: Sequence[str], ranked: Sequence[Sequence[int]], relevant: Sequence[Collection[int]]
) -> dict[str, float]:
    """Every named metric: `ndcg@10`, `recall@1`, `mrr@10`, any rank up to `DEPTH`."""
    deepest = max(map(len, ranked))
    hits_QR = np.zeros((len(ranked), deepest), np.bool_)
    for query, (candidates, wanted) in enumerate(zip(ranked, relevant, strict=True)):
        hits_QR[query, : len(candidates)] = np.isin(candidates, list(wanted))
    relevant_Q = np.array([len(wanted) for wanted in relevant])
    found = {}
    for name in metrics:
        metric, _, count = name.partition("@")
        found[name] = RANKING_METRICS[metric](hits_QR, relevant_Q, int(count))
    return found
