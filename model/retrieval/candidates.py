"""Which weights to keep after training a sentence encoder further: the old, the new, or between.

In:  an encoder before and after, and two sets of questions with right passages.
Out: `Verdict`: the candidate that the first set chooses, and how much better than the encoder
     before it is on the second set. It is kept only if that is more than chance.

Weights between two encoders, of which one was trained from the other, often search better than
both: they keep more of what the old one knew (Wortsman et al. 2022). The best of them is also tried
with vectors of the passages' terms (term_fit.py), which must not lose on passages that are added
later, either: questions are asked once more with terms fitted without the passages that they are
about. The set that chooses does not report, since the best of many is better than itself by luck.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.tokenizer import well_formed
from cloze.model.hugging_face.changed_vocabulary import with_vocabulary
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.hugging_face.term_vectors import TermVectors
from cloze.model.inference.load import Model, model_of
from cloze.model.retrieval.passage_index import Vectors
from cloze.model.retrieval.ranking_metrics import (
    HEADLINE,
    Floats,
    Interval,
    Relevant,
    by_metric,
    interval,
)
from cloze.model.retrieval.term_fit import fitted_terms, no_terms
from cloze.model.tasks.features import Sequences, encode

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the way from the old weights to the new ones; 0 is the old encoder itself."""

TERM_WEIGHTS = (0.25, 0.5, 0.75, 1.0)
"""Of the vectors of terms beside those of the encoder."""

LEVEL = 0.99
"""Of the interval that must be above 0: of 200 adaptations that change nothing, one is kept."""

QUESTIONS_AT_ONCE, TEXTS_AT_ONCE = 256, 256

# Q questions, P passages, N texts, H width


class Candidate(NamedTuple):
    """An encoder that may be kept."""

    share: float
    """Of the way from the old weights to the new ones."""
    terms: float = 0.0
    """Weight of the vectors of terms; 0: none."""


ORIGINAL = Candidate(0.0)


@dataclass(frozen=True)
class QuestionSet:
    """Questions, the passages that are ranked for them, and those that are right."""

    name: str
    questions: tuple[str, ...]
    passages: tuple[str, ...]
    relevant: tuple[dict[int, float], ...]
    """By question: grades of passages by number, at least one."""
    margin: float = 0.0
    """That a gain must exceed for certain."""

    @property
    def groups_Q(self) -> npt.NDArray[np.int64]:
        """[Q] a number from 0; equal for questions about the same passages, which fare alike."""
        numbers: dict[frozenset[int], int] = {}
        return np.array([numbers.setdefault(frozenset(r), len(numbers)) for r in self.relevant])


@dataclass(frozen=True)
class Verdict:
    """What was chosen, and whether it is better than the encoder before."""

    best: Candidate
    """On the set that chooses; the original: nothing is better."""
    difference: Interval
    """nDCG@10 of that candidate minus that of the encoder before, on the set that reports."""
    before: float
    """nDCG@10 of the encoder before, there."""
    candidates: tuple[tuple[Candidate, float], ...] = ()
    """nDCG@10 of the old encoder and all candidates on the set that chooses."""
    margin: float = 0.0
    """`QuestionSet.margin` there."""
    terms: TermVectors | None = None
    """Of the best candidate."""
    later: Interval | None = None
    """Its difference if terms are fitted without the right passages, on the set that reports; None
    without terms."""
    later_candidates: tuple[tuple[Candidate, float], ...] = ()
    """nDCG@10 of those with terms if these are fitted so, on the set that chooses; one that is then
    below the same encoder without terms cannot be the best."""

    @property
    def kept(self) -> Candidate:
        """The candidate that is kept: the original without a certain gain."""
        return self.best if self.difference.low > self.margin else ORIGINAL

    def encoder(self, old: EncoderFiles, new: EncoderFiles) -> EncoderFiles:
        """The encoder that is kept."""
        files = between(old, new, self.kept.share)
        return with_terms(files, self.terms) if self.terms and self.kept.terms else files


def between(old: EncoderFiles, new: EncoderFiles, share: float) -> EncoderFiles:
    """The encoder at `share` of the way from the old weights to the new ones.

    The old one has its own vocabulary, all others that of the new one.
    """
    if share == 0:
        return old
    if new.tokenizer.size > old.tokenizer.size:  # words were added before training
        old = with_vocabulary(old, new.tokenizer)
    mixed = {
        # What only the new one has, such as a pooler, has nothing to be mixed with.
        name: tensor
        if share == 1 or name not in old.parameters
        else old.parameters[name].lerp(tensor, share)
        for name, tensor in new.parameters.items()
    }
    return replace(new, parameters=mixed, manifest=None, card=old.card)


def with_terms(files: EncoderFiles, terms: TermVectors) -> EncoderFiles:
    """The encoder with vectors of terms behind its other modules."""
    if files.modules is None:
        raise UsageError("vectors of terms are a module behind others, and the encoder has none")
    modules = replace(files.modules, steps=(*files.modules.steps, terms))
    return replace(files, modules=modules)


class _Compared:
    """The vectors of both sets' texts by the old encoder, the new one, and those between."""

    def __init__(self, old: EncoderFiles, new: EncoderFiles, say: Callable[[str], object]) -> None:
        self._files = cache(lambda share: between(old, new, share))
        # All candidates read the same texts, and truncate as many of them.
        self._say = cache(say)
        # Both sets may rank the same passages.
        self._vectors = cache(self._computed)
        self._tokens = cache(self._tokenized)
        self._fit = cache(self._fitted)

    def quality(self, candidate: Candidate, asked: QuestionSet) -> Floats:
        """[Q] nDCG@10 of a ranking by cosine."""
        every = tuple(range(len(asked.passages)))
        return self._ranked(candidate, asked, range(len(asked.questions)), every)

    def quality_later(self, candidate: Candidate, asked: QuestionSet) -> Floats:
        """[Q] the same as if the passages that a question is about came after the terms' fit."""
        found_Q = np.empty(len(asked.questions))
        for questions, fitted in without_their_passages(asked):
            found_Q[questions] = self._ranked(candidate, asked, questions, fitted)
        return found_Q

    def terms(
        self, candidate: Candidate, passages: tuple[str, ...], fitted: tuple[int, ...]
    ) -> TermVectors | None:
        """Those of the passages with the numbers `fitted`; None without."""
        if not (candidate.terms and fitted):
            return None
        return replace(self._fit(candidate.share, passages, fitted), weight=candidate.terms)

    def _ranked(
        self,
        candidate: Candidate,
        asked: QuestionSet,
        questions: Sequence[int],
        fitted: tuple[int, ...],
    ) -> Floats:
        terms = self.terms(candidate, asked.passages, fitted)
        passages_PH, questions_QH = (
            self._placed(candidate.share, terms, of)
            for of in ((asked.passages, DOCUMENT), (asked.questions, QUERY))
        )
        relevant = [asked.relevant[one] for one in questions]
        return ndcg_by_question(passages_PH, questions_QH[questions], relevant)

    def _placed(
        self, share: float, terms: TermVectors | None, of: tuple[tuple[str, ...], str]
    ) -> Vectors:
        """The vectors of texts with a prompt."""
        vectors_NH = self._vectors(share, *of)
        return moved(terms, vectors_NH, self._tokens(share, *of)) if terms else vectors_NH

    def _computed(self, share: float, texts: tuple[str, ...], prompt: str) -> Vectors:
        model = model_of(self._files(share), precision="fp32")
        return np.stack([*model.sentence_vectors(texts, prompt=prompt, say=self._say)])

    def _tokenized(self, share: float, texts: tuple[str, ...], prompt: str) -> Sequences:
        """As the encoder reads them."""
        files = self._files(share)
        modules = files.modules
        assert modules is not None, "a sentence encoder has modules"
        whole = [modules.text(well_formed(text), modules.prompt(prompt)) for text in texts]
        return encode(files.tokenizer, whole, max_seq_length=modules.max_seq_length)

    def _fitted(
        self, share: float, passages: tuple[str, ...], fitted: tuple[int, ...]
    ) -> TermVectors:
        of, rows = (share, passages, DOCUMENT), np.array(fitted)
        return fitted_terms(
            self._tokens(*of).input_ids.take(rows),
            self._vectors(*of)[rows],
            special=no_terms(self._files(share).tokenizer),
            weight=1.0,
        )


def without_their_passages(asked: QuestionSet) -> Iterator[tuple[list[int], tuple[int, ...]]]:
    """Two halves of the questions, each with the numbers of passages that are right for none of it.

    Of passages that no question is about each half goes without another half.
    """
    draw = np.random.default_rng(0)
    groups_Q = asked.groups_Q
    in_first_Q = (draw.permutation(groups_Q.max() + 1) % 2 == 0)[groups_Q]
    right = {row for grades in asked.relevant for row in grades}
    idle = [row for row in range(len(asked.passages)) if row not in right]
    in_first_idle = draw.permutation(len(idle)) % 2 == 0
    for first in (True, False):
        questions = np.flatnonzero(in_first_Q == first).tolist()
        new = {row for one in questions for row in asked.relevant[one]}
        new.update(row for row, there in zip(idle, in_first_idle, strict=True) if there == first)
        yield questions, tuple(row for row in range(len(asked.passages)) if row not in new)


def moved(terms: TermVectors, vectors_NH: Vectors, sequences: Sequences) -> Vectors:
    """The vectors of texts with those of their terms."""
    parts = []
    for start in range(0, len(vectors_NH), TEXTS_AT_ONCE):
        rows = np.arange(start, min(start + TEXTS_AT_ONCE, len(vectors_NH)))
        parts.append(terms(torch.from_numpy(vectors_NH[rows]), sequences.batch(rows)).numpy())
    return np.concatenate(parts)


def choose(
    old: EncoderFiles,
    new: EncoderFiles,
    *,
    choosing: QuestionSet,
    reporting: QuestionSet,
    say: Callable[[str], None],
    term_weights: Sequence[float] = (),
) -> Verdict:
    """The best candidate on `choosing`, compared with the old encoder on `reporting`.

    `term_weights`: of vectors of terms to try; both sets then rank the same passages.
    """
    compared = _Compared(old, new, say)
    values: dict[Candidate, Floats] = {}

    def measure(candidate: Candidate) -> None:
        values[candidate] = compared.quality(candidate, choosing)
        terms = f", term vectors × {candidate.terms:g}" if candidate.terms else ""
        say(
            f"{candidate.share:.0%} of the change{terms}: {HEADLINE} "
            f"{100 * values[candidate].mean():.1f} on {len(values[candidate]):,} {choosing.name}"
        )

    for share in (0.0, *SHARES):
        measure(Candidate(share))
    share = _best(values).share
    later: dict[Candidate, float] = {}
    for weight in term_weights:
        measure(candidate := Candidate(share, weight))
        later[candidate] = float(compared.quality_later(candidate, choosing).mean())
    # What questions about known passages gain must not be paid by those about new ones.
    least = values[Candidate(share)].mean()
    found = verdict(
        {one: of for one, of in values.items() if later.get(one, least) >= least},
        lambda candidate: compared.quality(candidate, reporting),
        groups_Q=reporting.groups_Q,
    )
    found = replace(
        found,
        margin=reporting.margin,
        candidates=tuple((one, float(values_Q.mean())) for one, values_Q in values.items()),
        later_candidates=tuple(later.items()),
    )
    if not found.best.terms:
        return found
    every = tuple(range(len(reporting.passages)))
    gains_Q = compared.quality_later(found.best, reporting) - compared.quality(ORIGINAL, reporting)
    return replace(
        found,
        terms=compared.terms(found.best, reporting.passages, every),
        later=interval(gains_Q, level=LEVEL, groups_Q=reporting.groups_Q),
    )


def _best(values: Mapping[Candidate, Floats]) -> Candidate:
    """Of equal ones the one nearest to the old encoder: a change needs a reason."""
    return max(values, key=lambda one: (values[one].mean(), -one.share, -one.terms))


def verdict(
    values: Mapping[Candidate, Floats],
    report: Callable[[Candidate], Floats],
    *,
    groups_Q: npt.NDArray[np.int64] | None = None,
) -> Verdict:
    """From values by candidate on the set that chooses, and a function to those on the other one.

    `groups_Q`: which questions of the other one are drawn together for the interval.
    """
    best, before_Q = _best(values), report(ORIGINAL)
    if best == ORIGINAL:
        return Verdict(best, Interval(0.0, 0.0, 0.0), float(before_Q.mean()))
    # By question: both encoders answer the same ones, so most of the spread between hard and easy
    # questions cancels.
    difference = interval(report(best) - before_Q, level=LEVEL, groups_Q=groups_Q)
    return Verdict(best, difference, float(before_Q.mean()))


def search_quality(
    model: Model, asked: QuestionSet, *, say: Callable[[str], object] = say
) -> Floats:
    """[Q] nDCG@10 of a ranking by cosine; `say` is told of truncated texts."""
    passages_PH, questions_QH = (
        np.stack([*model.sentence_vectors(texts, prompt=prompt, say=say)])
        for texts, prompt in ((asked.passages, DOCUMENT), (asked.questions, QUERY))
    )
    return ndcg_by_question(passages_PH, questions_QH, asked.relevant)


def ndcg_by_question(
    passages_PH: Vectors, questions_QH: Vectors, relevant: Sequence[Mapping[int, float]]
) -> Floats:
    """[Q] nDCG@10 of a ranking by cosine; `relevant`: by question, grades of passages."""
    found: list[Relevant] = []
    for start in range(0, len(questions_QH), QUESTIONS_AT_ONCE):
        scores_QP = questions_QH[start : start + QUESTIONS_AT_ONCE] @ passages_PH.T
        found += map(ranked, scores_QP, relevant[start : start + QUESTIONS_AT_ONCE])
    return by_metric(found)[HEADLINE]


def ranked(scores_P: npt.NDArray[np.float32], grades: Mapping[int, float]) -> Relevant:
    """Where the right passages of a question, by number, are in the ranking by these scores."""
    # Equal scores rank by row, as in a search, not all with the best or the worst rank.
    ranks = [
        1
        + int(np.count_nonzero(scores_P > scores_P[number]))
        + int(np.count_nonzero(scores_P[:number] == scores_P[number]))
        for number in grades
    ]
    return Relevant(np.array(ranks), np.array([*grades.values()], float))
