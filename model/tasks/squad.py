"""SQuAD's answers, and its official scores: exact match, F1, the best threshold for an answer.

In:  gold answers, as converters write them; predictions.
Out: gold answers in SQuAD's form; scores as fractions, identical to evaluate-v1.1.py and
     evaluate-v2.0.py (Rajpurkar et al. 2016, 2018).

The versions differ: 1.1 scores an empty prediction by word overlap, which is 0; 2.0 uses [""] as
the gold answers of an unanswerable question, and drops gold answers that normalise to nothing.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import compress
from typing import TypedDict

from pydantic import JsonValue

from cloze.artifacts.errors import UsageError
from cloze.model.tasks.files.task_table import is_missing

FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
"""Spellings of `is_impossible`."""


class Answers(TypedDict):
    """The gold answers to one question, in SQuAD's form."""

    text: list[str]
    answer_start: list[int]


def is_flagged(cell: JsonValue, *, where: str) -> bool | None:
    """A cell of `is_impossible`; None if it is empty."""
    if is_missing(cell):
        return None
    flag = FLAGS.get(str(cell).strip().lower())
    if flag is None:
        raise UsageError(f"{where}: is_impossible is {cell!r}, expected true or false")
    return flag


def answers_in(cell: JsonValue, *, where: str) -> Answers:
    """The answers in a cell: lists `text` and `answer_start`, a list of such pairs, or one pair.

    Placeholders without text are no answers.
    """
    # built here, raised where something is wrong
    wrong = UsageError(
        f"{where}: answers is {cell!r:.200}, expected "
        '{"text": ["…"], "answer_start": [0]}, with as many starts as texts'
    )
    pairs: list[JsonValue] = [] if is_missing(cell) else [cell]
    if isinstance(cell, list):
        pairs = cell
    found = Answers(text=[], answer_start=[])
    for pair in pairs:
        if not isinstance(pair, dict) or not {"text", "answer_start"} <= pair.keys():
            raise wrong
        texts, starts = (
            value if isinstance(value, list) else [] if value is None else [value]
            # One value or a list of values.
            for value in (pair["text"], pair["answer_start"])
        )
        if len(texts) != len(starts):
            raise wrong
        for text, start in zip(texts, starts, strict=True):
            if is_missing(text):
                continue
            if not isinstance(text, str) or not re.fullmatch(r"-?\d+(\.0)?", str(start)):
                raise wrong
            found["text"].append(text)
            found["answer_start"].append(int(float(str(start))))
    return found


_ARTICLES = re.compile(r"\b(a|an|the)\b", re.UNICODE)
_PUNCTUATION = frozenset(string.punctuation)


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


Scores = list[tuple[float, float]]
"""Exact match and F1 of each question, in order."""


def means(scores: Scores) -> dict[str, float]:
    """Means over the questions, by name."""
    exact, f1 = zip(*scores, strict=True)
    return {"exact_match": sum(exact) / len(exact), "f1": sum(f1) / len(f1)}


def score_v1(golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> Scores:
    """The maximum over a question's gold answers, version 1.1."""
    return _best(golds, predictions, f1_v1)


def score_v2(golds: Sequence[Sequence[str]], predictions: Sequence[str]) -> Scores:
    """The maximum over a question's gold answers, version 2.0; without any, "" is correct."""
    return _best([kept_golds(answers) for answers in golds], predictions, f1_v2)


def _best(
    golds: Sequence[Sequence[str]], predictions: Sequence[str], f1: Callable[[str, str], float]
) -> Scores:
    return [
        (
            max(exact_match(guess, gold) for gold in answers),
            max(f1(guess, gold) for gold in answers),
        )
        for answers, guess in zip(golds, predictions, strict=True)
    ]


def kept_golds(answers: Sequence[str]) -> list[str]:
    """The gold answers that count in version 2.0."""
    # All of them empty: the only right answer is "".
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
    # Points for answering nothing: one for every unanswerable question.
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


def by_answerability(scores: Scores, has_answer: Sequence[bool]) -> dict[str, dict[str, float]]:
    """Means over the questions with (`has_answer`) and without (`no_answer`) an answer."""
    groups = {
        "has_answer": list(compress(scores, has_answer)),
        "no_answer": list(compress(scores, (not answerable for answerable in has_answer))),
    }
    return {name: means(group) for name, group in groups.items() if group}


def _overlap(ours: list[str], theirs: list[str]) -> float:
    common = sum((Counter(ours) & Counter(theirs)).values())
    if not common:
        return 0.0
    precision, recall = common / len(ours), common / len(theirs)
    return 2 * precision * recall / (precision + recall)
