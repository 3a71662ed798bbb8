"""Queries with relevant passages: what retrieval and reranking have in common.

In:  columns query and passage, one matching pair per row; `negatives`, a list of hard negatives
     (or `negative`, `negative_1`, … with one each); `grade`, 1 without it.
Out: the texts of each split, and scores of rankings.

Scored by nDCG, recall and reciprocal rank, each at a cut-off. A hit at rank r gains its grade
/ log2(r + 1) (Järvelin and Kekäläinen 2002). MRR@10 is MS MARCO's.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import well_formed
from cloze.model.tasks.base import Gold, GroupedProblem, Learn, Predict, Prediction
from cloze.model.tasks.files.judgments import GRADE
from cloze.model.tasks.files.task_table import TaskTable, is_missing
from cloze.pipeline.text.scripts import search_terms

Floats = NDArray[np.float64]

DEPTH = 100
"""Number of ranks kept for every query."""

NEGATIVES = ("negative", *(f"negative_{number}" for number in range(64)))
"""Columns with one hard negative each, as sentence-transformers mines them."""

# Q queries, R ranks, U rows, S texts of the longest row


class RankingTexts:
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
        grades = table.columns.get(GRADE, [1.0] * len(self.lines))
        by_query: dict[str, dict[int, float]] = {query: {} for query in self.queries}
        for (query, passage, *_), grade in zip(self.lines, grades, strict=True):
            graded, own = by_query[query], number[passage]
            graded[own] = max(float(str(grade)), graded.get(own, 0.0))
        self.relevant = list(by_query.values())
        """Numbers of the relevant passages of each query, with their grades."""

        # One numbering for all texts of the split, so that equal texts are recognised across rows.
        numbers: dict[str, int] = {}
        self.ids = np.full((len(self.lines), max(map(len, self.lines))), -1, np.int64)
        """[U, S] a number per text, equal for equal texts; -1 if the row has fewer texts."""
        for row, line in enumerate(self.lines):
            self.ids[row, : len(line)] = [numbers.setdefault(text, len(numbers)) for text in line]

    def take_each_passage_once(self) -> None:
        """Leave each passage to the first row that has it; `ids` then count queries and passages.

        [U, S] the number of the query among `queries`, then of passages among `passages`.
        """
        query_number = {text: number for number, text in enumerate(self.queries)}
        number = {text: place for place, text in enumerate(self.passages)}
        seen = set[str]()
        self.ids[:] = -1
        for row, (query, *passages) in enumerate(self.lines):
            own = [text for text in dict.fromkeys(passages) if text not in seen]
            seen.update(own)
            self.lines[row] = [query, *own]
            self.ids[row, : 1 + len(own)] = [query_number[query], *(number[text] for text in own)]


def bm25(train: TaskTable) -> Predict:
    """BM25 as in Lucene (k1 1.5, b 0.75), without stemming; nothing is trained."""
    import bm25s

    # Queries are ranked over the candidates of their own split, like a model's.
    def ranked(table: TaskTable) -> list[Prediction]:
        texts = RankingTexts(table)
        index = bm25s.BM25(backend="numpy")
        index.index([*map(search_terms, texts.passages)], show_progress=False)
        queries = map(search_terms, texts.queries)
        # The library's own ranking breaks ties arbitrarily. A query of single letters has no words.
        scores = (
            index.get_scores(query) if query else np.zeros(len(texts.passages)) for query in queries
        )
        # Passages without any query word are not ranked: relevant ones, which have the smallest
        # numbers, would be the first of them.
        orders = (
            np.argsort(-found, kind="stable")[: min(DEPTH, np.count_nonzero(found > 0))].tolist()
            for found in scores
        )
        return [
            {"text": texts.passages[order[0]] if order else "", "ranked": [order]}
            for order in orders
        ]

    return ranked


class Ranking(GroupedProblem):
    """Candidate passages to rank for a query."""

    required: ClassVar[tuple[str, ...]] = ("query", "passage")
    optional: ClassVar[tuple[str, ...]] = ("negatives", *NEGATIVES, "document")
    label_column: ClassVar[str] = "passage"
    default_metrics: ClassVar[tuple[str, ...]] = ("ndcg@10", "recall@1", "recall@10", "mrr@10")
    baselines: ClassVar[Mapping[str, Learn]] = {"bm25": bm25}
    predicts: ClassVar = "ranking"

    def _check_metrics(self) -> None:
        for name in self.config.metrics:
            metric, _, count = name.partition("@")
            if metric not in RANKING_METRICS or not count.isdigit() or not 1 <= int(count) <= DEPTH:
                raise UsageError(
                    f"task {self.config.name}: metric {name}; expected one of "
                    f"{', '.join(f'{known}@K' for known in RANKING_METRICS)}, K from 1 to {DEPTH}"
                )

    def _read(self) -> None:
        self._texts = {name: RankingTexts(table) for name, table in self._tables.items()}

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


def rankings_of(prediction: Prediction) -> list[list[int]]:
    """The rankings in a prediction: by full vectors, then by truncated ones."""
    ranked = prediction["ranked"] if isinstance(prediction, dict) else None
    if not isinstance(ranked, list):
        raise AssertionError(f"a prediction has rankings, this one is {prediction!r}")
    return [[int(str(number)) for number in one] for one in ranked if isinstance(one, list)]


def ndcg(gains_QR: Floats, grades_Q: Sequence[Floats], count: int) -> float:
    """Discounted cumulative gain of the first `count` ranks, divided by the ideal one."""
    discounts_R = 1 / np.log2(np.arange(count) + 2)
    gains_Q = gains_QR[:, :count] @ discounts_R[: gains_QR.shape[1]]
    # The ideal ranking has all relevant passages first, the highest grades before the others.
    best_Q = [np.sort(grades)[::-1][:count] @ discounts_R[: len(grades)] for grades in grades_Q]
    return float(np.mean(gains_Q / np.array(best_Q)))


def recall(gains_QR: Floats, grades_Q: Sequence[Floats], count: int) -> float:
    """Share of a query's relevant candidates among the first `count` ranks."""
    found_Q = np.count_nonzero(gains_QR[:, :count], axis=1)
    return float(np.mean(found_Q / np.array([len(grades) for grades in grades_Q])))


def reciprocal_rank(gains_QR: Floats, grades_Q: Sequence[Floats], count: int) -> float:
    """1 / rank of the first hit; 0 without a hit among the first `count` ranks."""
    first = gains_QR[:, :count] > 0
    # argmax is 0 without any hit, hence the mask.
    return float(np.mean(first.any(1) / (first.argmax(1) + 1)))


RANKING_METRICS: dict[str, Callable[[Floats, Sequence[Floats], int], float]] = {
    "ndcg": ndcg,
    "recall": recall,
    "mrr": reciprocal_rank,
}


def measure_ranking(
    metrics: Sequence[str],
    ranked: Sequence[Sequence[int]],
    relevant: Sequence[Mapping[int, float]],
) -> dict[str, float]:
    """Every named metric: `ndcg@10`, `recall@1`, `mrr@10`, any rank up to `DEPTH`.

    ranked: for each query the numbers of passages, best first.
    relevant: for each query the grades of its relevant passages, by number.
    """
    # One rectangle for all queries: places without a candidate gain nothing, as a wrong one does.
    gains_QR = np.zeros((len(ranked), max(1, *map(len, ranked))))
    for query, (candidates, wanted) in enumerate(zip(ranked, relevant, strict=True)):
        gains_QR[query, : len(candidates)] = [wanted.get(number, 0.0) for number in candidates]
    grades_Q = [np.array([*wanted.values()]) for wanted in relevant]
    found = {}
    for name in metrics:
        metric, _, count = name.partition("@")
        found[name] = RANKING_METRICS[metric](gains_QR, grades_Q, int(count))
    return found
