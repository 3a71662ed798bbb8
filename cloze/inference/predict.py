"""`cloze predict`: what a fine-tuned model says about new data.

In:  a run that kept its models (finetune.save = "best") and texts, JSON lines, or a task file.
Out: one JSON line a row, in order, as soon as 2,048 rows or the end have been read; with --json one
     array at the end.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from artifacts.errors import UsageError
from cloze.answer import Answer, put_lines
from cloze.inference.models import ModelName, Text, metered, texts_or_lines
from cloze.names import model_directory
from cloze.options import PLACE, Place
from model.inference.predict import load_predictor

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
) -> Answer | None:
    """Predict."""
    if texts and file:
        raise UsageError(f"both texts and --file {file}; give one of them")
    directory = model_directory(model, place.space(), stage="finetune")
    predictor = load_predictor(directory, task=task)
    found: Iterable[dict[str, Any]] = (
        predictor.file(file) if file else predictor.rows(_rows(texts), source="row")
    )
    answers = found if texts else metered(found, verb="predict", unit="rows")
    if place.json:
        return Answer(list(answers), "", as_json=True)
    put_lines(json.dumps(answer, ensure_ascii=False) for answer in answers)
    return None


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
