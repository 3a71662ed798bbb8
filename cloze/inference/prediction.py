"""`cloze predict` and `cloze fill-mask`: apply a model to texts.

In:  for `predict`, a run that saved its models (finetune.save is not "none"); texts, JSON lines or
     a task file. For `fill-mask`, a model and texts.
Out: for `predict`, one JSON line per row, in order, in batches of 2,048 rows; for a CSV or TSV
     file, the same format with its columns; with --json, one array at the end. The scores of a
     labelled file are logged on standard error. For `fill-mask`, the most probable tokens for every
     [MASK] with their probabilities, text by text.
"""

import csv
import io
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import tee
from pathlib import Path

from pydantic import JsonValue

from cloze.answer import print_array, print_lines
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.inference.input_texts import TABLES, ModelName, Text, is_file, metered, texts_or_lines
from cloze.init.labelled_files import CONLL, SAMPLED_BYTES
from cloze.model.config import TaskConfig
from cloze.model.encoder.precision import Precision
from cloze.model.inference.load import load_model
from cloze.model.inference.predict import Predictor, Row, load_predictor
from cloze.model.inference.task_file import to_score
from cloze.model.tasks.files.conll import DOCUMENT_START
from cloze.options import PLACE, Place, model_directory, reading_artifacts


@reading_artifacts
def fill_mask(model: ModelName, /, *texts: Text, top_k: int = 5, place: Place = PLACE) -> None:
    """Fill masks.

    :param top_k: Number of tokens for each [MASK].
    """
    loaded = load_model(model_directory(model, place.space()))
    # The same texts for the model and beside its answers; `tee` keeps those in between.
    asked, shown = tee(texts_or_lines(texts))
    found = zip(shown, loaded.fill_masks(asked, top_k=top_k), strict=True)
    filled = found if texts else metered(found, verb="fill-mask", unit="texts")
    if place.json:
        print_array(
            {"text": text, "masks": [[asdict(fill) for fill in fills] for fills in masks]}
            for text, masks in filled
        )
        return
    for text, masks in filled:
        ranked = ["   ".join(f"{f.token} {f.probability:.3f}" for f in fills) for fills in masks]
        print_lines([text, *(f"  {line}" for line in ranked)])


@reading_artifacts
def predict(
    model: ModelName,
    /,
    *texts: Text,
    task: str = "",
    file: Path | None = None,
    precision: Precision = "auto",
    confidence: float | None = None,
    place: Place = PLACE,
) -> None:
    """Predict.

    :param task: The task, if the model was fine-tuned for several.
    :param file: A file in the format of the task's training files, instead of texts.
    :param precision: As in `cloze embed`.
    :param confidence: Also give the set of labels, or the interval, that holds the truth with at
        least this probability, such as 0.9; and flag texts unlike the training rows.
    """
    if texts and file:
        raise UsageError(f"both texts and --file {file}; give one of them")
    directory = model_directory(model, place.space(), stage="finetune")
    predictor = load_predictor(directory, task=task, precision=precision, confidence=confidence)
    if len(texts) == 1 and is_file(texts[0]) and _is_task_file(texts[0], predictor.saved.task):
        file, texts = Path(texts[0]), ()
        say(f"{file}: read as a task file")
    if file:
        _of_file(predictor, file, as_json=place.json)
        return
    found = predictor.rows(_rows(texts, predictor.saved.task), source="row")
    answers = found if texts else metered(found, verb="predict", unit="rows")
    if place.json:
        print_array(answers)
    else:
        print_lines(json.dumps(answer, ensure_ascii=False) for answer in answers)


def _of_file(predictor: Predictor, path: Path, *, as_json: bool) -> None:
    """Print each row with its prediction, as a table if the file is one."""
    file = predictor.open(path)
    for remark in file.remarks:
        say(remark)
    scored: list[Row] = []

    def rows() -> Iterator[Row]:
        answers = metered(predictor.answers(file), verb="predict", unit="rows")
        for number, (row, answer) in enumerate(answers):
            if file.is_scored and file.has_label(row):
                scored.append(to_score(answer))
            columns = file.shown(row)
            if not number and (replaced := [name for name in answer if name in columns]):
                say(f"{path}: its columns {', '.join(replaced)} are replaced by those predicted")
            yield {**columns, **answer}

    if as_json:
        print_array(rows())
    elif file.separator:
        within_cell = predictor.saved.task.label_separator
        print_lines(_delimited(rows(), file.separator, within_cell=within_cell))
    else:
        print_lines(json.dumps(row, ensure_ascii=False) for row in rows())
    # Only after printing are all answers known.
    if scores := file.score(scored):
        say(f"{path}: {', '.join(f'{name} {value:.4f}' for name, value in scores.items())}")


LINE_END = "\r\n"


def _delimited(rows: Iterable[Row], delimiter: str, *, within_cell: str) -> Iterator[str]:
    """A header and one line per row: a column for each label's probability, a cell for a list."""
    line = io.StringIO(newline="")
    # Cells are quoted if they contain a character of the line's end, which is taken off again.
    writer = csv.writer(line, delimiter=delimiter, lineterminator=LINE_END)

    def written(cells: Iterable[JsonValue]) -> str:
        if delimiter == "\t":  # read without quoting, so a cell cannot contain a separator
            return delimiter.join(re.sub(r"[\t\r\n]", " ", str(plain(cell))) for cell in cells)
        line.seek(0)
        line.truncate()
        writer.writerow(plain(cell) for cell in cells)
        return line.getvalue().removesuffix(LINE_END)

    def plain(cell: JsonValue) -> JsonValue:
        if isinstance(cell, list) and all(isinstance(one, str) for one in cell):
            return within_cell.join(map(str, cell))  # labels, as the task's own files write them
        is_scalar = isinstance(cell, str | float | int)
        return "" if cell is None else cell if is_scalar else json.dumps(cell, ensure_ascii=False)

    for number, row in enumerate(rows):
        shares = row.pop("probabilities", None)
        if isinstance(shares, dict):
            row |= {f"probability {label}": share for label, share in shares.items()}
        if number == 0:
            yield written(row)
        yield written(row.values())


def _is_task_file(path: str, task: TaskConfig) -> bool:
    """Whether a file's rows are more than texts, one per line: a table, or CoNLL's columns."""
    suffix = Path(path).suffix.lower()
    if task.kind != "tagging" or suffix != ".txt":
        return suffix in (*TABLES, *(CONLL if task.kind == "tagging" else ()))
    with open(path, "rb") as file:
        # The last line may be cut.
        lines = file.read(SAMPLED_BYTES).decode("utf-8", "replace").split("\n")[:-1]
    fields = [line.split() for line in lines if line.strip()]
    words = [line for line in fields if line[0] not in ("#", DOCUMENT_START)]
    return bool(words) and all(len(line) > 1 and line[-1] in task.labels for line in words)


def _rows(texts: tuple[str, ...], task: TaskConfig) -> Iterator[dict[str, JsonValue] | str]:
    """Texts, or JSON objects with a key for each part of the input."""
    header = {task.columns.get(name, name) for name in ("text_a", "text_b", "label")}
    for number, text in enumerate(texts_or_lines(texts), start=1):
        cells = re.split(r"[,\t]", text) if number == 1 and not texts else []
        if len(header.intersection(cells)) > 1:
            raise UsageError(
                f"standard input begins with a table's header ({text}); give the file's name "
                "instead, so that its columns are read by name"
            )
        if not text.startswith("{"):
            yield text
            continue
        try:
            row: dict[str, JsonValue] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"row {number}: starts with {{ but is not JSON: {error}") from None
        yield row
