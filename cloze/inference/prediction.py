"""`cloze predict`: predictions of a fine-tuned model for new data.

In:  a run that kept its models (finetune.save is not "none") and texts, JSON lines, or a task file.
Out: one JSON line per row, in order, as soon as 2,048 rows or the end have been read; with --json
     one array at the end.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from pydantic import JsonValue

from artifacts.errors import UsageError
from artifacts.progress import say
from cloze.answer import Answer, print_lines
from cloze.inference.input_texts import TABLES, ModelName, Text, is_file, metered, texts_or_lines
from cloze.lookup import model_directory
from cloze.options import PLACE, Place
from model.inference.predict import load_predictor

Task = Annotated[
    str, Parameter(help="The task, if the model was fine-tuned for several.", show_default=False)
]
File = Annotated[
    Path | None,
    Parameter(help="A file in the format of the task's training files, instead of texts."),
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
    if len(texts) == 1 and is_file(texts[0]) and Path(texts[0]).suffix.lower() in TABLES:
        file, texts = Path(texts[0]), ()
        say(f"{file}: read as a task file")
    directory = model_directory(model, place.space(), stage="finetune")
    predictor = load_predictor(directory, task=task)
    found = predictor.file(file) if file else predictor.rows(_rows(texts), source="row")
    answers = found if texts else metered(found, verb="predict", unit="rows")
    if place.json:
        return Answer(list(answers), "", as_json=True)
    print_lines(json.dumps(answer, ensure_ascii=False) for answer in answers)
    return None


def _rows(texts: tuple[str, ...]) -> Iterator[dict[str, JsonValue]]:
    """A text, or a JSON object with a column for each part of the input."""
    for number, text in enumerate(texts_or_lines(texts), start=1):
        if not text.startswith("{"):
            yield {"text": text}
            continue
        try:
            row: dict[str, JsonValue] = json.loads(text)
        except ValueError as error:
            raise UsageError(f"row {number}: starts with {{ but is not JSON: {error}") from None
        yield row
