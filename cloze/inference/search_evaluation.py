"""How good a search is on questions whose right answers are known.

In:  a `Search`, and questions with what is right for them.
Out: `Evaluation`: nDCG@10, recall@10 and @100, MRR@10 and MAP of vectors, words, both, and both
     reranked, over the whole collection, with bootstrap intervals; differences with theirs; the
     weights that one half of the questions chooses and the other half confirms or does not; the
     questions that fail.

The figures of `hybrid` are those of the weight that was asked for: nothing in them was chosen on
the same questions.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloze.answer import aligned
from cloze.artifacts.progress import say
from cloze.inference.input_texts import metered
from cloze.inference.searcher import How, Search
from cloze.model.retrieval.fusion import best_rows, fused
from cloze.model.retrieval.passage_index import PASSAGES, Vectors, read_passages
from cloze.model.retrieval.questions import Gold, Question, find_gold
from cloze.model.retrieval.ranking_metrics import (
    HEADLINE,
    METRICS,
    Floats,
    Interval,
    Relevant,
    by_metric,
    interval,
    intervals,
)
from cloze.model.retrieval.scorer import PassageScores

HYBRID, VECTORS, LEXICAL, RERANKED = "hybrid", "vectors", "lexical", "reranked"
NAMES = {VECTORS: "vectors", LEXICAL: "words (BM25)", HYBRID: "hybrid", RERANKED: "reranked"}

WEIGHTS = tuple(round(0.05 * step, 2) for step in range(21))
"""Weights of the vectors among which half of the questions chooses."""
RERANKER_WEIGHTS = (0.0, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
"""The same of a reranker's score; at 0 it orders nothing."""
FEEDBACK_WEIGHTS = (0.0, 0.1, 0.2, 0.3, 0.5, 0.75, 1.0)
"""The same of likeness to the first passage."""
FEWEST_TO_CHOOSE = 20
"""Questions; among fewer the choice is chance."""

NOT_FOUND = 1 << 62
"""Rank of a document that a ranking does not contain."""

FIRST = 10
"""A question fails if nothing right is among the first so many."""
SHOWN_FAILURES, SHOWN_CHARACTERS = 10, 160

Weights = tuple[float, float]
"""Of a reranker's score, and of feedback."""

# C passages, U units, R relevant units of a question, Q questions


@dataclass(frozen=True)
class Failure:
    """A question that found nothing right among the first `FIRST`."""

    question: str
    rank: int | None
    """Of the best right one; None if it is not ranked at all."""
    right: str
    found: str
    """The passage that was ranked first."""


@dataclass(frozen=True)
class WeightChoice:
    """The weight that half of the questions chooses, evaluated on the other half."""

    weight: float
    difference: Interval
    """nDCG@10 against the given weight, on the half that did not choose."""

    @property
    def confirmed(self) -> bool:
        """Whether it is better by more than its interval."""
        return self.difference.low > 0

    def data(self) -> dict[str, object]:
        """For JSON."""
        return {
            "weight": self.weight,
            "difference": self.difference._asdict(),
            "confirmed": self.confirmed,
        }

    def line(self, option: str, given: float) -> str:
        """For people: whether to use it with `option` instead of the given one."""
        found = self.difference
        kept = f"use --{option} {self.weight:g}" if self.confirmed else "not certain"
        return (
            f"{option.replace('-', ' ')} {self.weight:g}, chosen on half of the questions, on the "
            f"other half: {100 * found.mean:+.1f} {HEADLINE} [{100 * found.low:+.1f}, "
            f"{100 * found.high:+.1f}] against {given:g}; {kept}"
        )


@dataclass(frozen=True)
class Evaluation:
    """What is known of a search."""

    passages: int
    unit: str
    questions: int
    weight: float
    systems: dict[str, dict[str, Interval]]
    """By ranking and metric."""
    against: dict[str, Interval]
    """nDCG@10 of hybrid ranking minus that of each single one, on the same questions."""
    reranking: Interval | None
    """The same of the hybrid ranking's first passages reranked, minus that of hybrid ranking; None
    if neither a reranker nor feedback orders them."""
    ordered_by: tuple[str, ...]
    """Options that do."""
    choice: WeightChoice | None
    reranker_weight: float
    reranker_choice: WeightChoice | None
    """Of the reranker's weight, if there is one."""
    feedback: float
    feedback_choice: WeightChoice | None
    """Of the weight of feedback."""
    failures: tuple[Failure, ...]
    remarks: tuple[str, ...]

    def data(self) -> dict[str, object]:
        """For JSON; fractions, not per cent."""
        return {
            "passages": self.passages,
            "unit": self.unit,
            "questions": self.questions,
            "weight": self.weight,
            "systems": {
                system: {name: found._asdict() for name, found in of_system.items()}
                for system, of_system in self.systems.items()
            },
            "hybrid_minus": {name: found._asdict() for name, found in self.against.items()},
            "reranked_minus": self.reranking and {HYBRID: self.reranking._asdict()},
            "chosen_weight": self.choice and self.choice.data(),
            "chosen_rerank_weight": self.reranker_choice and self.reranker_choice.data(),
            "chosen_feedback": self.feedback_choice and self.feedback_choice.data(),
            "failures": [vars(one) for one in self.failures],
            "remarks": list(self.remarks),
        }

    def text(self) -> str:
        """For people; in per cent."""
        header = ["", *METRICS]
        rows = [
            [NAMES[system], *(in_percent(found[name]) for name in METRICS)]
            for system, found in self.systems.items()
        ]
        lines = [
            f"{self.questions:,} questions, {self.passages:,} passages, ranked as {self.unit}; "
            "in per cent, with 95 % intervals",
            aligned([header, *rows]),
            *self._conclusions(),
            *self.remarks,
        ]
        if self.failures:
            some = ":" if len(self.failures) <= SHOWN_FAILURES else ", such as:"
            lines.append(
                f"{len(self.failures):,} of {self.questions:,} questions have nothing right among "
                f"the first {FIRST}{some}"
            )
        for one in self.failures[:SHOWN_FAILURES]:
            rank = f"{one.rank:,}" if one.rank else "none"
            lines += [
                f"  {one.question}",
                f"    right (rank {rank}): {on_one_line(one.right)}",
                f"    found first: {on_one_line(one.found)}",
            ]
        return "\n".join(lines)

    def _conclusions(self) -> list[str]:
        lines = [
            compared(HYBRID, name, found, remedy=f"use --{name}")
            for name, found in self.against.items()
        ]
        if self.reranking:
            remedy = f"leave out {' or '.join(self.ordered_by)}"
            lines.append(compared(RERANKED, HYBRID, self.reranking, remedy=remedy))
        chosen = (
            ("weight", self.choice, self.weight),
            ("rerank-weight", self.reranker_choice, self.reranker_weight),
            ("feedback", self.feedback_choice, self.feedback),
        )
        for option, choice, given in chosen:
            if choice and choice.weight != given:
                lines.append(choice.line(option, given))
        return lines


def compared(one: str, other: str, found: Interval, *, remedy: str) -> str:
    """Whether a ranking is better than another by more than the interval of the difference."""
    word = "better than" if found.low > 0 else "worse than" if found.high < 0 else None
    verdict = f"is {word}" if word else "does not differ for certain from"
    return (
        f"{NAMES[one]} {verdict} {NAMES[other]}: {100 * found.mean:+.1f} {HEADLINE} "
        f"[{100 * found.low:+.1f}, {100 * found.high:+.1f}]"
        f"{f': {remedy}' if found.high < 0 else ''}"
    )


def in_percent(found: Interval) -> str:
    """In per cent."""
    return f"{100 * found.mean:.1f} [{100 * found.low:.1f}, {100 * found.high:.1f}]"


def on_one_line(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]} …"


def evaluate_search(searched: Search, questions: Sequence[Question]) -> Evaluation:
    """Rank the whole collection for every question, and compare with what is right."""
    gold = find_gold(questions, read_passages(searched.index.path(PASSAGES)))
    ranks: dict[str, list[Relevant]] = {}
    weighted: dict[float, list[Relevant]] = {}
    ordered: dict[Weights, list[Relevant]] = {}
    how, failures = searched.how, list[Failure]()
    scored = metered(searched.scores(gold.questions), verb="evaluate", unit="questions")
    for number, scores in enumerate(scored):
        ranked_C = scores.ranked(how.vectors_weight)
        of_question = _relevant_by_system(scores, gold, number, how.vectors_weight)
        if HYBRID in of_question:
            # Metrics see the whole collection: behind what was reranked comes the rest in its old
            # order.
            hybrid_C, read = ranked_C, searched.read(scores)
            for weights in _weights_to_try(how):  # the given ones come last
                ranked_C = read.ranked(*weights).over(hybrid_C)
                ordered.setdefault(weights, []).append(_relevant(ranked_C, gold, number))
        if how.reorders:
            of_question[RERANKED] = ordered[how.rerank_weight, how.feedback_weight][-1]
        for name, found in of_question.items():
            ranks.setdefault(name, []).append(found)
        if HYBRID in of_question:
            # The scores are there: trying all weights costs a sum each, not a search each.
            for weight in WEIGHTS:
                weighted_C = fused(scores.by, scores.spreads, weight=weight)
                weighted.setdefault(weight, []).append(_relevant(weighted_C, gold, number))
        best = of_question[RERANKED if how.reorders else how.ranking]
        if best.ranks_R.min() > FIRST:
            failures.append(_failure(searched, ranked_C, gold, number, best))
    values = {name: by_metric(found) for name, found in ranks.items()}
    headline = {name: found[HEADLINE] for name, found in values.items()}
    against = {
        name: interval(headline[HYBRID] - values_Q)
        for name, values_Q in headline.items()
        if HYBRID in headline and name in (VECTORS, LEXICAL)
    }
    hybrid_Q = headline.get(HYBRID, np.empty(0))
    given_Q = headline.get(RERANKED, hybrid_Q)
    by_read = {
        read: found for (read, like), found in ordered.items() if like == how.feedback_weight
    }
    by_like = {like: found for (read, like), found in ordered.items() if read == how.rerank_weight}
    for line in gold.remarks:
        say(f"evaluate: {line}")
    return Evaluation(
        passages=len(searched),
        unit=gold.unit,
        questions=len(gold.questions),
        weight=how.vectors_weight,
        systems={name: intervals(found) for name, found in values.items()},
        against=against,
        reranking=interval(given_Q - hybrid_Q) if how.reorders else None,
        ordered_by=tuple(f"--{name}" for name in ("rerank", "feedback") if getattr(how, name)),
        choice=_choice(weighted, hybrid_Q, how.vectors_weight),
        reranker_weight=how.rerank_weight,
        reranker_choice=_choice(by_read, given_Q, how.rerank_weight) if how.rerank else None,
        feedback=how.feedback_weight,
        feedback_choice=_choice(by_like, given_Q, how.feedback_weight),
        failures=tuple(failures),
        remarks=gold.remarks,
    )


def _weights_to_try(how: How) -> list[Weights]:
    """Those of a reranker's score and of feedback: either one varied, and last both as given."""
    given = (how.rerank_weight, how.feedback_weight)
    tried = [(read, how.feedback_weight) for read in RERANKER_WEIGHTS if how.rerank]
    tried += [(how.rerank_weight, like) for like in FEEDBACK_WEIGHTS]
    return [*dict.fromkeys(one for one in tried if one != given), given]


def _relevant_by_system(
    scores: PassageScores, gold: Gold, number: int, weight: float
) -> dict[str, Relevant]:
    """Where the right units are by each single ranking, and by both if both are used."""
    found = {
        # What has no word in common is not ranked by words at all.
        name: _relevant(one_C, gold, number, above=0.0 if name == LEXICAL else -np.inf)
        for name, one_C in scores.by.items()
    }
    if len(found) > 1:
        found[HYBRID] = _relevant(scores.ranked(weight), gold, number)
    return found


def _relevant(scores_C: Vectors, gold: Gold, number: int, *, above: float = -np.inf) -> Relevant:
    """Where the right units of a question are among those with a score `above` the given one.

    A unit has the score of its best passage; of equal scores the first comes first.
    """
    # The passages of a document follow each other, so its best one is a maximum over a range.
    units_U = np.maximum.reduceat(scores_C, gold.firsts(number))
    ranks = [
        1
        + int(np.count_nonzero(units_U > units_U[unit]))
        + int(np.count_nonzero(units_U[:unit] == units_U[unit]))
        if unit >= 0 and units_U[unit] > above
        else NOT_FOUND
        for unit in gold.relevant[number]
    ]
    return Relevant(np.array(ranks, np.int64), np.array([*gold.relevant[number].values()], float))


def _failure(
    searched: Search, ranked_C: Vectors, gold: Gold, number: int, best: Relevant
) -> Failure:
    """A question whose right unit is not found first: its rank, its text, and what came first."""
    nearest = int(best.ranks_R.argmin())
    unit = [*gold.relevant[number]][nearest]
    rank = int(best.ranks_R[nearest])
    right = searched.passage(int(gold.firsts(number)[unit])).text if unit >= 0 else ""
    top = int(best_rows(ranked_C, 1)[0])
    question, first = gold.questions[number], searched.passage(top).text
    return Failure(question, rank if rank < NOT_FOUND else None, right, first)


def _choice(
    weighted: Mapping[float, Sequence[Relevant]], given_Q: Floats, given: float
) -> WeightChoice | None:
    """The best weight for one half of the questions, compared with the given one on the other."""
    if len(given_Q) < FEWEST_TO_CHOOSE:
        return None
    values = {weight: by_metric(found)[HEADLINE] for weight, found in weighted.items()}
    order: npt.NDArray[np.int64] = np.random.default_rng(0).permutation(len(given_Q))
    # The best of so many weights is better than any given one on the questions that chose it, by
    # luck alone; so other questions report.
    choosing, reporting = order[::2], order[1::2]
    # Of equal ones the given: a change needs a reason.
    best = max(values, key=lambda weight: (values[weight][choosing].mean(), weight == given))
    return WeightChoice(best, interval(values[best][reporting] - given_Q[reporting]))
