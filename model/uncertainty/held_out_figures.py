"""What a trial's held-out rows say about its probabilities.

In:  a problem, and logits of its splits.
Out: the fields of its record: temperatures, the quality of its probabilities, the scores from which
     `cloze predict --confidence` makes label sets, and how well these keep their promise.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypedDict

import numpy as np

from cloze.artifacts.progress import say
from cloze.artifacts.results import (
    Calibration,
    LabelError,
    LabelErrorCounts,
    Reliance,
    Suspicion,
)
from cloze.model.tasks.base import Logits, Problem
from cloze.model.uncertainty.calibration import calibration
from cloze.model.uncertainty.conformal import nonconformity, reliance
from cloze.model.uncertainty.held_out import Floats, HeldOutRows, held_out_rows
from cloze.model.uncertainty.label_errors import (
    beyond_chance,
    contradictions,
    pooled,
    suspects,
)


class Uncertainty(TypedDict, total=False):
    """Fields of a `Trial`."""

    calibration: Calibration
    reliance: Reliance
    nonconformity: tuple[tuple[float, ...], ...]


def uncertainty(problem: Problem, logits: Mapping[str, Logits]) -> Uncertainty:
    """The fields for a task with labelled dev rows; empty for one without probabilities."""
    if "dev" not in logits or not problem.labelled("dev"):
        return {}
    if problem.predicts == "number":
        targets = problem.targets("dev", np.arange(len(logits["dev"]))).astype(np.float64)
        return {"nonconformity": _sorted(np.abs(logits["dev"] - targets[:, None]))}
    dev = held_out_rows(problem, "dev", logits["dev"])
    if dev is None:
        return {}
    test = held_out_rows(problem, "test", logits["test"]) if "test" in logits else None
    found = calibration(dev, test, split="test" if test else "dev")
    # Sets are made from probabilities as the saved model gives them, and that has the temperatures
    # in its weights.
    cooled = dev.cooled(found.temperatures)
    judged = test.cooled(found.temperatures) if test else None
    return {
        "calibration": found,
        "reliance": reliance(cooled, judged, split=found.split),
        "nonconformity": _sorted(nonconformity(cooled)),
    }


def label_errors(
    problem: Problem, split: str, models: Sequence[HeldOutRows]
) -> tuple[tuple[LabelError, ...], LabelErrorCounts | None]:
    """Rows of a split that are probably mislabelled, and how many are listed why.

    Those beyond chance come first, then texts that occur with different labels, then the doubtful
    ones; each the most suspicious first. Only for tasks with one label per text.
    models: the split's rows as predicted by each of some models.
    """
    if not models or not models[0].exclusive or len(problem.labels) < 2:
        return (), None
    rows = pooled(models)
    table = problem.table(split)
    shares, given = rows.probabilities(), [problem.labels[label] for label in rows.targets]
    texts = [problem.shown(split, row) for row in range(len(rows))]
    suspected = suspects(rows)
    # A text with two labels is wrong at least once, whatever the models think of it.
    equal = [row for group in contradictions(texts, given) for row in group]
    reasons: dict[int, Suspicion] = {one.row: "unlikely" for one in suspected if one.clear}
    for row in equal:
        reasons.setdefault(row, "contradiction")
    for one in suspected:
        reasons.setdefault(one.row, "doubtful")
    found = tuple(
        LabelError(
            row=table.number(row) + 1,
            text=texts[row],
            given=given[row],
            proposed=problem.labels[int(shares[row].argmax())],
            probability=float(shares[row, rows.targets[row]]),
            why=why,
        )
        for row, why in reasons.items()
    )
    listed = Counter(reasons.values())
    counts = LabelErrorCounts(
        split=split,
        rows=len(rows),
        unlikely=listed["unlikely"],
        by_chance=beyond_chance(rows)[1],
        contradictions=listed["contradiction"],
        doubtful=listed["doubtful"],
    )
    if found:
        say(
            f"finetune {problem.config.name}: {counts.unlikely} labels of {split} are probably "
            f"wrong (so improbable by chance: {counts.by_chance:.1f}), {counts.doubtful} more are "
            "doubtful"
        )
    return found, counts


def _sorted(scores: Floats) -> tuple[tuple[float, ...], ...]:
    """The scores by label, in increasing order."""
    return tuple(tuple(column) for column in np.sort(scores.T.astype(np.float64)).tolist())
