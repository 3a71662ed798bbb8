"""Which weights to keep after training a sentence encoder further: the old, the new, or between.

In:  an encoder before and after, and two sets of questions with right passages.
Out: `Verdict`: the candidate that the first set chooses, and how much better than the encoder
     before it is on the second set. It is kept only if that is more than chance.

Weights between two encoders, of which one was trained from the other, often search better than
both: they keep more of what the old one knew (Wortsman et al. 2022). The set that chooses does not
report, since the best of five is better than itself by luck.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import numpy.typing as npt

from cloze.artifacts.progress import say
from cloze.model.hugging_face.changed_vocabulary import with_vocabulary
from cloze.model.hugging_face.model_files import EncoderFiles
from cloze.model.hugging_face.sentence_modules import DOCUMENT, QUERY
from cloze.model.inference.load import Model, model_of
from cloze.model.retrieval.ranking_metrics import (
    HEADLINE,
    Floats,
    Interval,
    Relevant,
    by_metric,
    interval,
)

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Shares of the way from the old weights to the new ones; 0 is the old encoder itself."""

LEVEL = 0.99
"""Of the interval that must be above 0: of 200 adaptations that change nothing, one is kept."""

QUESTIONS_AT_ONCE = 256

# Q questions, P passages, H width


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

    share: float
    """Of the way to the new weights, of the best candidate on the set that chooses; 0: none."""
    difference: Interval
    """nDCG@10 of that candidate minus that of the encoder before, on the set that reports."""
    before: float
    """nDCG@10 of the encoder before, there."""
    candidates: tuple[tuple[float, float], ...] = ()
    """(share, nDCG@10) of the old encoder and all candidates on the set that chooses."""
    margin: float = 0.0
    """`QuestionSet.margin` there."""

    @property
    def kept_share(self) -> float:
        """Share of the way to the new weights that is kept: 0 without a certain gain."""
        return self.share if self.difference.low > self.margin else 0.0


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


def choose(
    old: EncoderFiles,
    new: EncoderFiles,
    *,
    choosing: QuestionSet,
    reporting: QuestionSet,
    say: Callable[[str], None],
) -> Verdict:
    """The best candidate on `choosing`, compared with the old encoder on `reporting`."""
    told = cache(say)  # all candidates read the same texts, and truncate as many of them

    def quality(share: float, asked: QuestionSet) -> Floats:
        model = model_of(between(old, new, share), precision="fp32")
        return search_quality(model, asked, say=told)

    values = {share: quality(share, choosing) for share in (0.0, *SHARES)}
    for share, values_Q in values.items():
        say(
            f"{share:.0%} of the change: {HEADLINE} {100 * values_Q.mean():.1f} on "
            f"{len(values_Q):,} {choosing.name}"
        )
    found = verdict(
        values,
        lambda share: quality(share, reporting),
        groups_Q=reporting.groups_Q,
    )
    means = ((share, float(values_Q.mean())) for share, values_Q in values.items())
    return replace(found, margin=reporting.margin, candidates=tuple(means))


def verdict(
    values: dict[float, Floats],
    report: Callable[[float], Floats],
    *,
    groups_Q: npt.NDArray[np.int64] | None = None,
) -> Verdict:
    """From values by share on the set that chooses, and a function to those on the other one.

    `groups_Q`: which questions of the other one are drawn together for the interval.
    """
    # Of equal candidates the one nearest to the old encoder: a change needs a reason.
    best = max(values, key=lambda share: (values[share].mean(), -share))
    before_Q = report(0.0)
    if best == 0:
        return Verdict(0.0, Interval(0.0, 0.0, 0.0), float(before_Q.mean()))
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
    found = []
    for start in range(0, len(questions_QH), QUESTIONS_AT_ONCE):
        scores_QP = questions_QH[start : start + QUESTIONS_AT_ONCE] @ passages_PH.T
        for scores_P, relevant in zip(scores_QP, asked.relevant[start:], strict=False):
            # Equal scores rank by row, as in a search, not all with the best or the worst rank.
            ranks = [
                1
                + int(np.count_nonzero(scores_P > scores_P[number]))
                + int(np.count_nonzero(scores_P[:number] == scores_P[number]))
                for number in relevant
            ]
            found.append(Relevant(np.array(ranks), np.array([*relevant.values()], float)))
    return by_metric(found)[HEADLINE]
