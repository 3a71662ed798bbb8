"""Reranking: score each passage together with the query (a cross-encoder).

In:  columns query and passage, one matching pair per row, with `negatives` or `negative`,
     `negative_1`, …; or labelled pairs, with a `label` of 1 for a relevant passage and 0 for
     another one, whose rows of 0 are the hard negatives of the query.
Out: a `Problem` with one sequence per candidate, [CLS] query [SEP] passage [SEP], scored by a
     single output; the candidates of each query in order of their scores.

A training row is a list of candidates: its passage, hard negatives in the row's order, and if it
has too few, passages of other rows, drawn at random. Its loss is the cross-entropy of a softmax
over the list (ListNet, Cao et al. 2007; with one relevant passage, that of InfoNCE), or of a
sigmoid for every pair (Nogueira and Cho 2019). On dev and test, the candidates of a query are those
of all of its rows. A passage known to be relevant is never a negative of its query.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.arrays import offsets_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.rng import address, below, draw, high_half
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import TaskConfig
from cloze.model.data.batch import on
from cloze.model.tasks.base import Exported, Logits, Prediction
from cloze.model.tasks.classification import MARKS
from cloze.model.tasks.features import Places, by_group, encode
from cloze.model.tasks.files.task_table import TaskTable
from cloze.model.tasks.ranking import Ranking, RankingTexts, measure_ranking, rankings_of

DRAWS = 4
"""Passages drawn at most for each one that a list lacks: a few of them may be in it already."""

# U lists of a batch, S candidates of the longest


@dataclass(frozen=True)
class Candidates:
    """What is ranked for a query: passages by number, the relevant ones first."""

    query: str
    passages: tuple[int, ...]


class Reranking(Ranking):
    """The candidates of a query, each read together with it."""

    optional: ClassVar[tuple[str, ...]] = (*Ranking.optional, "label")
    default_metrics: ClassVar[tuple[str, ...]] = ("ndcg@10", "recall@1", "mrr@10")
    reads: ClassVar = "pooled"
    exported_as: ClassVar = Exported(pipeline="text-ranking", problem_type="regression")
    # Pairs without their labels would all be relevant: they are refused instead.
    unlabelled_tests: ClassVar[bool] = False
    outputs = 1

    @classmethod
    def prepared(cls, table: TaskTable, config: TaskConfig) -> TaskTable:
        """The table with one row per relevant passage, if its rows are labelled pairs."""
        return listed(table) if table.has("label") else table

    @property
    def output_names(self) -> tuple[str, ...]:
        """That of its single output."""
        return ("score",)

    def _read(self) -> None:
        super()._read()
        count = self.config.reranking.negatives
        self._lists = {
            name: [*_lists(texts, split=name, negatives=count)]
            for name, texts in self._texts.items()
        }
        self._first = {
            name: offsets_of(np.array([len(one.passages) for one in lists]))
            for name, lists in self._lists.items()
        }
        for name, lists in self._lists.items():
            if max(len(one.passages) for one in lists) < 2:
                raise UsageError(
                    f"{self._tables[name].path}: one passage for every query, and no other one to "
                    "rank it against; add rows with other passages, or negatives"
                )

    def _encode(self, tokenizer: SubwordTokenizer) -> None:
        self.sequences = {
            name: encode(
                tokenizer,
                [one.query for one in lists for _ in one.passages],
                [self._texts[name].passages[number] for one in lists for number in one.passages],
                max_seq_length=self.config.max_seq_length,
            )
            for name, lists in self._lists.items()
        }

    def targets(self, split: str, units: Places) -> NDArray[np.generic]:
        """[U] int64: the number of candidates of each list, of which the first is relevant."""
        return np.diff(self._first[split])[units]

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Cross-entropy of each list, or the mean over its pairs, summed over the lists."""
        # Lists of different lengths side by side; what a list lacks is -inf, of which a softmax
        # makes 0.
        scores_US = by_group(logits[:, 0], targets)
        first_U = torch.zeros(len(targets), dtype=torch.int64, device=logits.device)
        if self.config.reranking.loss == "listwise":
            return functional.cross_entropy(scores_US, first_U, reduction="sum")
        # A sigmoid would make NaN of it, even with a weight of 0: 0 · inf. So it is replaced first
        # and left out after.
        there_US = torch.isfinite(scores_US)
        relevant_US = torch.zeros_like(scores_US)
        relevant_US[:, 0] = 1.0
        losses_US = functional.binary_cross_entropy_with_logits(
            scores_US.masked_fill(~there_US, 0.0), relevant_US, reduction="none"
        )
        return (losses_US * there_US / on(logits.device, targets)[:, None]).sum()

    def predictions(self, split: str, logits: Logits) -> list[Prediction]:
        """For each query the best candidate, and all of them in order, by number."""
        texts, first = self._texts[split].passages, self._first[split]
        ranked: list[Prediction] = []
        for one, scores in zip(
            self._lists[split], np.split(logits[:, 0], first[1:-1]), strict=True
        ):
            # Backwards: of equal scores, which say nothing, the relevant ones come last.
            order = np.argsort(-scores[::-1], kind="stable")
            numbers = [one.passages[::-1][place] for place in order.tolist()]
            ranked.append({"text": texts[numbers[0]], "ranked": [numbers]})
        return ranked

    def score(self, split: str, predictions: Sequence[Prediction]) -> dict[str, float]:
        """Every metric, over the candidates of each query."""
        ranked = []
        for prediction, one in zip(predictions, self._lists[split], strict=True):
            # A baseline ranks passages of the whole split; what it does not rank comes last.
            order = dict.fromkeys((*rankings_of(prediction)[0], *one.passages[::-1]))
            ranked.append([number for number in order if number in one.passages])
        return measure_ranking(self.metrics, ranked, self._texts[split].relevant)


def listed(table: TaskTable) -> TaskTable:
    """Labelled pairs as rows of a query, a relevant passage and the query's negatives."""
    marks = [MARKS.get(str(label).strip().lower()) for label in table.columns["label"]]
    if None in marks:
        row = marks.index(None)
        raise UsageError(
            f"{table.place(row)}: label is {table.columns['label'][row]!r}, expected 1 for a "
            "relevant passage and 0 for another one"
        )
    negatives: dict[str, list[JsonValue]] = defaultdict(list)
    # Two passes: a query's negatives may come after the rows of its relevant passages.
    queries = [str(query) for query in table.columns["query"]]
    for query, passage, mark in zip(queries, table.columns["passage"], marks, strict=True):
        if not mark:
            negatives[query].append(passage)
    kept = [row for row, mark in enumerate(marks) if mark]
    if not kept:
        raise UsageError(f"{table.path}: no pair has the label 1, expected relevant passages")
    rows = table.take(kept).without(("label",))
    lists: list[JsonValue] = [[*negatives[queries[row]]] for row in kept]
    idle = len(negatives.keys() - {queries[row] for row in kept})
    remarks = (f"{idle:,} queries have no pair with the label 1 and are left out",) if idle else ()
    found = replace(rows, columns={**rows.columns, "negatives": lists})
    return found.remarked(*table.remarks, *remarks)


def _lists(texts: RankingTexts, *, split: str, negatives: int) -> Iterator[Candidates]:
    """The lists of a split: one for each row of `train`, else one for each query."""
    number = {text: place for place, text in enumerate(texts.passages)}
    relevant = dict(zip(texts.queries, texts.relevant, strict=True))
    rows: list[tuple[str, list[int], list[int]]]
    if split == "train":
        # One list per row: a query with several relevant passages has several lists, each with one
        # of them as the answer; the others are left out of its negatives below.
        rows = [
            (query, [number[passage]], [number[text] for text in own])
            for query, passage, *own in texts.lines
        ]
    else:
        hard: dict[str, list[int]] = {query: [] for query in texts.queries}
        for query, _, *own in texts.lines:
            hard[query] += (number[text] for text in own)
        rows = [(query, sorted(relevant[query]), hard[query]) for query in texts.queries]
    for row, (query, right, others) in enumerate(rows):
        # Mined negatives are sometimes relevant by another row.
        wrong = [one for one in dict.fromkeys(others) if one not in relevant[query]]
        if split == "train":
            wrong = wrong[:negatives]
        # A list is filled up to the number asked for, also on dev and test, where all hard
        # negatives stay.
        known = {*relevant[query], *wrong}
        drawn = _drawn(len(texts.passages), known, negatives - len(wrong), split=split, row=row)
        yield Candidates(query, (*right, *wrong, *drawn))


def _drawn(passages: int, known: set[int], count: int, *, split: str, row: int) -> list[int]:
    """Up to `count` numbers of passages that are not `known`, the same in every trial."""
    if count < 1:
        return []
    stream = np.uint64(address("candidates", split, row))
    # Counter-based: the numbers depend on the row alone, not on what was drawn for rows before.
    # Some hit passages that are known already, or repeat, so a few more are drawn than needed.
    bits = draw(stream, np.arange(DRAWS * count + len(known)))
    numbers = dict.fromkeys(below(high_half(bits), passages).tolist())
    return [number for number in numbers if number not in known][:count]
