"""Error analysis of a trial.

In:  a problem and a trial's predictions.
Out: a confusion matrix if there are few labels, some errors as text, and a file of all errors.
"""

import csv
import io
from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from cloze.artifacts.results import Confusion, ErrorExample, LabelError
from cloze.model.tasks.base import Gold, Prediction, Problem

MOST_LABELS = 20
SHOWN_ERRORS = 8
SHOWN_CHARACTERS = 300


def scored_split(problem: Problem) -> str | None:
    """Test if it is labelled, else dev if it is."""
    for split in ("test", "dev"):
        if split in problem.sequences and problem.labelled(split):
            return split
    return None


def confusion(problem: Problem, split: str, predictions: Sequence[Prediction]) -> Confusion | None:
    """Counts of predicted labels by gold label.

    None if there are many labels or none, or if an example may have several.
    """
    if problem.predicts == "labels" or not 2 <= len(problem.labels) <= MOST_LABELS:
        return None
    number = {label: index for index, label in enumerate(problem.labels)}
    gold, predicted = (
        # A list holds the labels of an example's words.
        [
            number[str(label)]
            for one in values
            for label in (one if isinstance(one, list) else [one])
        ]
        for values in (problem.gold(split), predictions)
    )
    counts = np.zeros((len(number), len(number)), np.int64)
    np.add.at(counts, (gold, predicted), 1)
    return Confusion(labels=problem.labels, counts=tuple(map(tuple, counts.tolist())))


def errors(
    problem: Problem, split: str, predictions: Sequence[Prediction]
) -> tuple[ErrorExample, ...]:
    """The first wrong predictions."""
    found = []
    for example, gold, guess in islice(_wrong(problem, split, predictions), SHOWN_ERRORS):
        texts = (problem.shown(split, example), _words(gold), _words(guess))
        text, right, wrong = (
            one if len(one) <= SHOWN_CHARACTERS else one[: SHOWN_CHARACTERS - 1] + "…"
            for one in texts
        )
        found.append(ErrorExample(text=text, gold=right, predicted=wrong))
    return tuple(found)


def errors_table(problem: Problem, split: str, predictions: Sequence[Prediction]) -> bytes:
    """Every wrong prediction as CSV: row of the file from 1, text, gold, predicted."""
    written = io.StringIO(newline="")
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(("row", "text", "gold", "predicted"))
    for example, gold, guess in _wrong(problem, split, predictions):
        rows.writerow((example + 1, problem.shown(split, example), _words(gold), _words(guess)))
    return written.getvalue().encode()


def label_errors_table(errors: Sequence[LabelError]) -> bytes:
    """Probably mislabelled rows as CSV; `weight` 0 leaves a row out of training (`--weights`).

    Only those beyond chance have it: the models' doubt explains most of the other suspects.
    """
    written = io.StringIO(newline="")
    rows = csv.writer(written, lineterminator="\n")
    rows.writerow(("row", "text", "given", "proposed", "probability", "why", "weight"))
    for one in errors:
        chance, weight = f"{one.probability:.4f}", int(one.why != "unlikely")
        rows.writerow((one.row, one.text, one.given, one.proposed, chance, one.why, weight))
    return written.getvalue().encode()


def _wrong(
    problem: Problem, split: str, predictions: Sequence[Prediction]
) -> Iterator[tuple[int, Gold, Prediction]]:
    """(example, gold, guess) of the wrong predictions."""
    for example, (gold, prediction) in enumerate(
        zip(problem.gold(split), predictions, strict=True)
    ):
        # An answer comes with its margin.
        guess = prediction["text"] if isinstance(prediction, dict) else prediction
        if isinstance(gold, float):  # wrong by more than one unit
            is_wrong = abs(gold - float(str(guess))) > 1.0
        else:  # any one of several gold answers is correct
            is_wrong = guess not in gold if isinstance(gold, tuple) else bool(gold != guess)
        if is_wrong:
            yield example, gold, guess


def _words(value: object) -> str:
    if isinstance(value, list | tuple):
        return " ".join(map(str, value))
    return f"{value:.2f}" if isinstance(value, float) else str(value)
