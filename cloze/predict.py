"""`cloze predict`: what a fine-tuned model says about new data.

In:  a run that kept its models (finetune.save = "best") and texts, JSON lines, or a task file.
Out: one prediction a row, in order.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from artifacts.errors import UsageError
from cloze.answer import Answer
from cloze.models import ModelName, Text, texts_or_lines
from cloze.names import model_directory
from cloze.options import PLACE, Place
from model.tasks.predict import load_predictor

Task = Annotated[str, Parameter(help="Which task, if the model has several.", show_default=False)]
File = Annotated[
    Path | None, Parameter(help="A file like those it was trained on, instead of texts.")
]


def predict(
    model: ModelName,
    /,
    *texts: Text,
    task: Task = "",
    file: File = None,
    place: Place = PLACE,
) -> Answer:
    """Predict."""
    directory = model_directory(model, place.space(), stage="finetune")
    predictor = load_predictor(directory, task=task)
    rows = predictor.file(file) if file else predictor.rows(_rows(texts))
    answers = list(rows)
    text = "\n".join(json.dumps(answer, ensure_ascii=False) for answer in answers)
    return Answer(answers, text, place.json)


def _rows(texts: tuple[str, ...]) -> Iterator[dict[str, Any]]:
    """A text, or a JSON object with a column for each part of the input."""
    for number, text in enumerate(texts_or_lines(texts), start=1):
        yield _object(text, number) if text.startswith("{") else {"text": text}


def _object(text: str, number: int) -> dict[str, Any]:
    try:
        row = json.loads(text)
    except ValueError as error:
        raise UsageError(f"row {number}: begins with {{ but is not JSON: {error}") from None
    return dict(row)
