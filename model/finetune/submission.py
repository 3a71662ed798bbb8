"""Predictions in the forms that the official servers take.

In:  a fit's predictions of unlabelled test files.
Out: GLUE's TSV files (index, prediction) and SQuAD's JSON (question id to answer).
"""

import json
from collections.abc import Sequence
from typing import Any

from model.config import TaskConfig
from model.tasks.base import Prediction, Problem
from model.tasks.glue import submission_name

STS_B_RANGE = (0.0, 5.0)
"""Scores outside are cut to it; the server refuses them."""


def submissions(problem: Problem, predictions: dict[str, list[Prediction]]) -> dict[str, bytes]:
    """File name to content, for every split that an official server judges."""
    task = problem.config
    files = {}
    for split, guesses in predictions.items():
        if task.glue and not problem.labelled(split):
            name = f"{submission_name(task.glue, split)}.tsv"
            files[name] = glue_tsv(task, guesses).encode()
        elif task.kind == "span":
            files.update(_squad_files(problem, split, guesses))
    return files


def glue_tsv(task: TaskConfig, predictions: Sequence[Prediction]) -> str:
    """`index<TAB>prediction`, a header first."""
    lines = ["index\tprediction"]
    lines += [f"{row}\t{_glue_value(task, value)}" for row, value in enumerate(predictions)]
    return "\n".join(lines) + "\n"


def squad_json(ids: Sequence[str], texts: Sequence[Prediction]) -> str:
    """Question id to answer (or to null margin)."""
    return json.dumps(dict(zip(ids, texts, strict=True)), ensure_ascii=False, indent=1) + "\n"


def _glue_value(task: TaskConfig, value: Any) -> str:
    if task.kind != "regression":
        return str(value)
    lowest, highest = STS_B_RANGE
    return f"{min(max(float(value), lowest), highest):.3f}"


def _squad_files(problem: Problem, split: str, guesses: Sequence[Prediction]) -> dict[str, bytes]:
    ids = problem.ids(split)
    answers = squad_json(ids, [guess["text"] for guess in guesses])
    margins = squad_json(ids, [guess["margin"] for guess in guesses])
    return {
        f"{split}-predictions.json": answers.encode(),
        f"{split}-null_odds.json": margins.encode(),
    }
