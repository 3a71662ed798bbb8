"""What a fit got wrong, for people.

In:  a problem and a fit's predictions.
Out: a confusion matrix, where there are few labels, and some mistakes as text.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from artifacts.results import Confusion, ErrorExample
from model.tasks.base import Prediction, Problem

MOST_LABELS = 20
SHOWN_ERRORS = 8
SHOWN_CHARACTERS = 300


def judged_split(problem: Problem) -> str | None:
    """Test where it has answers, else dev."""
    for split in ("test", "dev"):
        if split in problem.sequences and problem.labelled(split):
            return split
    return None


def confusion(problem: Problem, split: str, predictions: Sequence[Prediction]) -> Confusion | None:
    """How often each label was taken for each; None for many labels or none."""
    if not 2 <= len(problem.labels) <= MOST_LABELS:
        return None
    gold, guessed = _flat(problem.answers(split)), _flat(predictions)
    number = {label: index for index, label in enumerate(problem.labels)}
    counts = np.zeros((len(number), len(number)), np.int64)
    np.add.at(counts, ([number[label] for label in gold], [number[label] for label in guessed]), 1)
    return Confusion(labels=problem.labels, counts=tuple(map(tuple, counts.tolist())))


def errors(
    problem: Problem, split: str, predictions: Sequence[Prediction]
) -> tuple[ErrorExample, ...]:
    """The first mistakes."""
    found = []
    for example, (gold, guess) in enumerate(zip(problem.answers(split), predictions, strict=True)):
        if _wrong(gold, guess):
            found.append(
                ErrorExample(
                    text=_short(problem.shown(split, example)),
                    gold=_short(_words(gold)),
                    predicted=_short(_words(guess)),
                )
            )
        if len(found) == SHOWN_ERRORS:
            break
    return tuple(found)


def _wrong(gold: Any, guess: Any) -> bool:
    """A number is wrong by more than one unit; of several right answers one is enough."""
    if isinstance(gold, float):
        return abs(gold - float(guess)) > 1.0
    return guess not in gold if isinstance(gold, tuple) else bool(gold != guess)


def _flat(values: Sequence[Prediction]) -> list[Prediction]:
    return list(chain.from_iterable(values)) if isinstance(values[0], list) else list(values)


def _words(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(map(str, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_CHARACTERS else text[: SHOWN_CHARACTERS - 1] + "…"
