"""Files for the official evaluation servers of GLUE and SQuAD.

In:  a task and its predictions of one split.
Out: the files by name; none for other tasks, and for GLUE tasks whose labels are known.
"""

import json
from collections.abc import Sequence
from typing import cast

from cloze.model.tasks.base import Prediction, Problem
from cloze.model.tasks.classification import Classification, Regression
from cloze.model.tasks.span import SpanPrediction, Spans

STS_B_RANGE = (0.0, 5.0)
"""The numbers that the server accepts."""

NAMES = {"test_mismatched": "MNLI-mm", "diagnostic": "AX"}
"""Names on the server of splits that only MNLI has."""


def submission(problem: Problem, split: str, predictions: Sequence[Prediction]) -> dict[str, bytes]:
    """The files of a split, by name."""
    if isinstance(problem, Spans):
        return squad_files(problem, split, cast(Sequence[SpanPrediction], predictions))
    if isinstance(problem, Classification) and problem.config.glue and not problem.labelled(split):
        lowest, highest = STS_B_RANGE
        if isinstance(problem, Regression):
            clipped = (min(max(float(str(value)), lowest), highest) for value in predictions)
            predictions = [f"{value:.3f}" for value in clipped]
        rows = [f"{row}\t{value}\n" for row, value in enumerate(predictions)]
        name = f"{submission_name(problem.config.glue, split)}.tsv"
        return {name: "".join(["index\tprediction\n", *rows]).encode()}
    return {}


def squad_files(
    problem: Spans, split: str, predictions: Sequence[SpanPrediction]
) -> dict[str, bytes]:
    """Question id to answer, and to null margin."""
    ids = problem.ids(split)

    def by_id(values: Sequence[str | float]) -> bytes:
        found = dict(zip(ids, values, strict=True))
        return (json.dumps(found, ensure_ascii=False, indent=1) + "\n").encode()

    return {
        f"{split}-predictions.json": by_id([guess["text"] for guess in predictions]),
        f"{split}-null_odds.json": by_id([guess["margin"] for guess in predictions]),
    }


def submission_name(task: str, split: str) -> str:
    """File name, without `.tsv`, that GLUE's server expects for a split."""
    return NAMES.get(split, "MNLI-m" if task == "MNLI" else task)
