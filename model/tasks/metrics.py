"""The official metrics of every task family, as fractions.

In:  gold values and predictions.
Out: scores under their names in configurations and `scores.json`.

Labels, GLUE included: accuracy, F1 and Matthews come from scikit-learn, correlations from scipy, as
in GLUE's own code.

Entities: precision, recall and F1 as conlleval.pl (Tjong Kim Sang & Buchholz 2000) counts them, in
IOB1, BIO2 or IOBES; an entity is correct if both boundaries and the type are. The script reads
every scheme with the same two rules, `_begins` and `_ends`, so that malformed predictions count as
well.

Answers: SQuAD's exact match and F1, identical to evaluate-v1.1.py and evaluate-v2.0.py (Rajpurkar
et al. 2016, 2018). The versions differ: 1.1 scores an empty prediction by word overlap, which is 0;
2.0 uses [""] as the gold answers of an unanswerable question, and drops gold answers that normalise
to nothing.

Rankings: nDCG, recall and reciprocal rank, each at a cut-off. Relevance is binary: a hit at rank r
gains 1 / log2(r + 1) (Järvelin and Kekäläinen 2002). MRR@10 is MS MARCO's.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np
import scipy  # imports `scipy.stats` on first use
from numpy.typing import NDArray

# Q queries, R ranks

Values = NDArray[np.generic]
"""Label indices or scores [rows], or label indicators [rows, labels]."""

Entity = tuple[int, int, str]
"""First word, last word, type."""

Hits = NDArray[np.bool_]

DEPTH = 100
"""Number of ranks kept for every query."""

_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = frozenset(string.punctuation)


def _sklearn() -> ModuleType:
    """scikit-learn's metrics; the import takes longer than torch's, and prediction needs none."""
    import sklearn.metrics

    metrics: ModuleType = sklearn.metrics
    return metrics


def accuracy(gold: Values, predicted: Values) -> float:
    """Share of examples with the correct label, or with all labels correct."""
    return float(_sklearn().accuracy_score(gold, predicted))


def f1(gold: Values, predicted: Values) -> float:
    """F1 of label 1 (MRPC, QQP)."""
    return float(_sklearn().f1_score(gold, predicted, zero_division=0.0))


def f1_macro(gold: Values, predicted: Values) -> float:
    """Mean of the labels' F1."""
    return float(_sklearn().f1_score(gold, predicted, average="macro", zero_division=0.0))


def f1_micro(gold: Values, predicted: Values) -> float:
    """F1 over all labels of all examples, pooled."""
    return float(_sklearn().f1_score(gold, predicted, average="micro", zero_division=0.0))


def matthews(gold: Values, predicted: Values) -> float:
    """Matthews correlation (CoLA); 0 if all predictions are equal."""
    return float(_sklearn().matthews_corrcoef(gold, predicted))


def pearson(gold: Values, predicted: Values) -> float:
    """Pearson correlation (STS-B); 0 if either side is constant."""
    return _correlation(scipy.stats.pearsonr, gold, predicted)


def spearman(gold: Values, predicted: Values) -> float:
    """Spearman rank correlation (STS-B); 0 if either side is constant."""
    return _correlation(scipy.stats.spearmanr, gold, predicted)


def precision_recall_f1(gold: Values, predicted: Values) -> dict[str, list[float]]:
    """`precision`, `recall` and `f1` of each label of a multi-label task."""
    found = _sklearn().precision_recall_fscore_support(gold, predicted, zero_division=0.0)
    named = zip(("precision", "recall", "f1"), found[:3], strict=True)
    return {name: values.tolist() for name, values in named}


METRICS: dict[str, Callable[[Values, Values], float]] = {
    "accuracy": accuracy,
    "f1": f1,
    "f1_macro": f1_macro,
    "f1_micro": f1_micro,
    "matthews": matthews,
    "pearson": pearson,
    "spearman": spearman,
}


def measure(metrics: tuple[str, ...], gold: Values, predicted: Values) -> dict[str, float]:
    """Every named metric."""
    return {name: METRICS[name](gold, predicted) for name in metrics}


def _correlation(correlate: Callable[..., Any], gold: Values, predicted: Values) -> float:
    vary = len(np.unique(gold)) > 1 and len(np.unique(predicted)) > 1
    return float(correlate(gold, predicted).statistic) if vary else 0.0


@dataclass(frozen=True)
class EntityCounts:
    """Numbers of correct, predicted and gold entities, and the scores they give."""

    correct: int
    predicted: int
    gold: int

    @property
    def precision(self) -> float:
        """Share of the predicted entities that are correct."""
        return self.correct / self.predicted if self.predicted else 0.0

    @property
    def recall(self) -> float:
        """Share of the gold entities that were found."""
        return self.correct / self.gold if self.gold else 0.0

    @property
    def f1(self) -> float:
        """Harmonic mean of precision and recall."""
        both = self.precision + self.recall
        return 2 * self.precision * self.recall / both if both else 0.0


def count_entities(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], *, kind: str = ""
) -> EntityCounts:
    """Counts over sentences, of one entity type if `kind` is given.

    No entity crosses a sentence boundary.
    """
    correct = found = there = 0
    for gold_tags, predicted_tags in zip(gold, predicted, strict=True):
        ours, theirs = (
            {entity for entity in entities(tags) if kind in ("", entity[2])}
            for tags in (predicted_tags, gold_tags)
        )
        correct += len(ours & theirs)
        found += len(ours)
        there += len(theirs)
    return EntityCounts(correct, found, there)


def entities(tags: Sequence[str]) -> list[Entity]:
    """The entities of one sentence: first word, last word, type."""
    found: list[Entity] = []
    start: int | None = None
    before = ("O", "")
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        now = (prefix, kind)
        if start is not None and _ends(before, now):
            found.append((start, place - 1, before[1]))
            start = None
        if _begins(before, now):
            start = place
        before = now
    return found


def is_entity_scheme(tags: Sequence[str]) -> bool:
    """Whether a tag set marks entities (O, B-X, I-X, …) rather than word classes."""
    marked = [tag for tag in tags if tag != "O"]
    return bool(marked) and all(tag[:2] in ("B-", "I-", "E-", "S-", "L-", "U-") for tag in marked)


def _ends(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """EndOfChunk of conlleval."""
    if before[0] in ("E", "S", "L", "U"):
        return True
    return before[0] in ("B", "I") and (now[0] in ("B", "S", "U", "O") or now[1] != before[1])


def _begins(before: tuple[str, str], now: tuple[str, str]) -> bool:
    """StartOfChunk of conlleval: I- after O or after another type begins one as well (IOB1)."""
    if now[0] == "O":
        return False
    if now[0] in ("B", "S", "U"):
        return True
    return before[0] in ("O", "E", "S", "L", "U") or now[1] != before[1]


def normalize_answer(text: str) -> str:
    """Lower-cased, without punctuation, articles or repeated spaces."""
    bare = "".join(character for character in text.lower() if character not in _PUNCTUATION)
    return " ".join(_ARTICLES.sub(" ", bare).split())


def exact_match(prediction: str, gold: str) -> float:
    """1 if both normalise to the same text, else 0."""
    return float(normalize_answer(prediction) == normalize_answer(gold))


def f1_v1(prediction: str, gold: str) -> float:
    """Word F1 of version 1.1: 0 without a common word, even if both are empty."""
    return _overlap(normalize_answer(prediction).split(), normalize_answer(gold).split())


def f1_v2(prediction: str, gold: str) -> float:
    """Word F1 of version 2.0: an empty side matches only an empty side."""
    ours, theirs = normalize_answer(prediction).split(), normalize_answer(gold).split()
    return _overlap(ours, theirs) if ours and theirs else float(ours == theirs)


@dataclass(frozen=True)
class SquadScores:
    """Scores of each question, in order."""

    exact: tuple[float, ...]
    f1: tuple[float, ...]

    def means(self) -> dict[str, float]:
        """Means over the questions, by name."""
        return {
            "exact_match": sum(self.exact) / len(self.exact),
            "f1": sum(self.f1) / len(self.f1),
        }


def score_v1(golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> SquadScores:
    """The maximum over a question's gold answers, version 1.1."""
    return _best(golds, predictions, f1_v1)


def score_v2(golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> SquadScores:
    """The maximum over a question's gold answers, version 2.0; without any, "" is correct."""
    return _best([kept_golds(answers) for answers in golds], predictions, f1_v2)


def _best(
    golds: Sequence[Sequence[str]], predictions: Sequence[str], f1: Callable[[str, str], float]
) -> SquadScores:
    pairs = list(zip(golds, predictions, strict=True))
    return SquadScores(
        tuple(max(exact_match(guess, gold) for gold in answers) for answers, guess in pairs),
        tuple(max(f1(guess, gold) for gold in answers) for answers, guess in pairs),
    )


def kept_golds(answers: Sequence[str]) -> list[str]:
    """The gold answers that count in version 2.0."""
    return [answer for answer in answers if normalize_answer(answer)] or [""]


def best_null_threshold(
    scores: Sequence[float],
    null_margins: Sequence[float],
    has_answer: Sequence[bool],
    answered: Sequence[bool],
) -> tuple[float, float]:
    """The best mean score and the threshold that gives it (evaluate-v2.0.py, find_best_thresh).

    `scores` are those of the best spans, `null_margins` are null score minus best span's score: a
    question is answered if its margin is at most the threshold. Starting with no question answered,
    questions are admitted by increasing margin; the first maximum wins.
    """
    current = best = float(sum(not answerable for answerable in has_answer))
    # If answering nothing is best, the official script returns 0, which still answers questions
    # with a margin below 0; a threshold below every margin gives the score it reports.
    threshold = min(0.0, min(null_margins) - 1.0)
    for index in sorted(range(len(scores)), key=null_margins.__getitem__):
        if has_answer[index]:
            current += scores[index]
        elif answered[index]:
            current -= 1.0  # an unanswerable question that is answered loses its point
        if current > best:
            best, threshold = current, null_margins[index]
    return best / len(scores), threshold


def by_answerability(
    scores: SquadScores, has_answer: Sequence[bool]
) -> Mapping[str, dict[str, float]]:
    """Means over the questions with (`has_answer`) and without (`no_answer`) an answer."""
    groups = {}
    for name, wanted in (("has_answer", True), ("no_answer", False)):
        rows = [row for row, answerable in enumerate(has_answer) if answerable is wanted]
        if rows:
            groups[name] = SquadScores(
                tuple(scores.exact[row] for row in rows), tuple(scores.f1[row] for row in rows)
            ).means()
    return groups


def _overlap(ours: list[str], theirs: list[str]) -> float:
    common = sum((Counter(ours) & Counter(theirs)).values())
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)


def ndcg(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """Discounted cumulative gain of the first `count` ranks, divided by the ideal one."""
    discounts_R = 1 / np.log2(np.arange(count) + 2)
    gains_Q = hits_QR[:, :count] @ discounts_R[: hits_QR.shape[1]]
    best_Q = np.cumsum(discounts_R)[np.minimum(relevant_Q, count) - 1]
    return float(np.mean(gains_Q / best_Q))


def recall(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """Share of a query's relevant candidates among the first `count` ranks."""
    return float(np.mean(hits_QR[:, :count].sum(1) / relevant_Q))


def reciprocal_rank(hits_QR: Hits, relevant_Q: NDArray[np.int64], count: int) -> float:
    """1 / rank of the first hit; 0 without a hit among the first `count` ranks."""
    first = hits_QR[:, :count]
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
