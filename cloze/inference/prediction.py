"""`cloze predict` and `cloze fill-mask`: apply a model to texts.

In:  for `predict`, a run that saved its models (finetune.save is not "none"); texts, JSON lines or
     a task file. For `fill-mask`, a model and texts.
Out: for `predict`, one JSON line per row, in order, in batches of 2,048 rows; for a CSV or TSV
     file, the same format with its columns; with --json, one array at the end; with --output, a
     file in either form. The scores of a
     labelled file are logged on standard error. For `fill-mask`, the most probable tokens for every
     [MASK] with their probabilities, text by text.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from itertools import tee
from pathlib import Path

from pydantic import JsonValue

from cloze.answer import Answer, print_array, print_lines
from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.inference.input_texts import (
    TABLES,
    ModelName,
    Text,
    metered,
    names_a_file,
    texts_or_lines,
)
from cloze.inference.predicted_rows import LINES, TableStyle, form_of, lines_of, write_rows
from cloze.init.labelled_files import CONLL, SAMPLED_BYTES
from cloze.model.config import TaskConfig
from cloze.model.encoder.precision import Precision
from cloze.model.inference.load import load_model
from cloze.model.inference.predict import Predictor, Row, load_predictor
from cloze.model.inference.task_file import TaskFile, to_score
from cloze.model.tasks.files.conll import DOCUMENT_START
from cloze.model.tasks.files.text_file import suffix_of
from cloze.named import model_directory
from cloze.options import PLACE, Place, reading_artifacts


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
    output: Path | None = None,
    precision: Precision = "auto",
    confidence: float | None = None,
    place: Place = PLACE,
) -> Answer | None:
    """Predict.

    :param task: The task, if the model was fine-tuned for several.
    :param file: A file in the format of the task's training files, instead of texts.
    :param output: File to write, NAME.jsonl, .json, .csv or .tsv, which appears once it is
        complete; without a suffix in the form of the input. By default rows are printed as they are
        computed.
    :param precision: As in `cloze embed`.
    :param confidence: Also give the set of labels, or the interval, that holds the truth with at
        least this probability, such as 0.9; and flag texts unlike the training rows.
    """
    if texts and file:
        raise UsageError(f"both texts and --file {file}; give one of them")
    directory = model_directory(model, place.space(), stage="finetune")
    inputs = [file] if file else [Path(text) for text in texts if names_a_file(text)]
    if output:  # checked before the model is loaded, which takes seconds
        form_of(output, inputs)
    predictor = load_predictor(directory, task=task, precision=precision, confidence=confidence)
    if len(texts) == 1 and names_a_file(texts[0]) and _is_task_file(texts[0], predictor.saved.task):
        file, texts = Path(texts[0]), ()
        say(f"{file}: read as a task file")
    scored: list[Row] = []
    opened, form = predictor.open(file) if file else None, LINES
    if opened:
        form = opened.separator or LINES
        rows = _of_file(predictor, opened, scored)
    else:
        found = predictor.rows(_rows(texts, predictor.saved.task), source="row")
        rows = found if texts else metered(found, verb="predict", unit="rows")
    style = TableStyle(
        predictor.saved.task.label_separator,
        marked=bool(opened and opened.marked),
        alike=lambda: _row_like(predictor, opened) if opened and opened.columns.names else {},
    )
    answer = None
    if output:
        form = form_of(output, inputs, of_input=form)
        count = write_rows(rows, output, form, style)
        text = f"{output}: {count:,} rows"
        answer = Answer({"rows": count, "file": str(output)}, text, place.json)
    elif place.json:
        print_array(rows)
    else:
        print_lines(lines_of(rows, form, style))
    # Only now are all answers known.
    if opened and (scores := opened.score(scored)):
        say(f"{file}: {', '.join(f'{name} {value:.4f}' for name, value in scores.items())}")
    return answer


def _of_file(predictor: Predictor, file: TaskFile, scored: list[Row]) -> Iterator[Row]:
    """Each row with its prediction; what is to be scored is added to `scored`."""
    for remark in file.remarks:
        say(remark)
    answers = metered(predictor.answers(file), verb="predict", unit="rows")
    for number, (row, answer) in enumerate(answers):
        if file.is_scored and file.has_label(row):
            scored.append(to_score(answer))
        columns = file.shown(row)
        # Said once, at the first row: all have the same columns.
        if not number and (replaced := [name for name in answer if name in columns]):
            say(f"{file.path}: its columns {', '.join(replaced)} are replaced by those predicted")
        yield {**columns, **answer}


def _row_like(predictor: Predictor, file: TaskFile) -> Row:
    """What a row of a file without rows would be like with its prediction."""
    # Which columns are predicted depends on the family, the labels and the confidence: a text in
    # every column of the file asks the model itself.
    row: Row = dict.fromkeys(file.columns.names, "a")
    (answer,) = predictor.table(file.window([(1, row)]))
    return {**file.shown(row), **answer}


def _is_task_file(path: str, task: TaskConfig) -> bool:
    """Whether a file's rows are more than texts, one per line: a table, or CoNLL's columns."""
    suffix = suffix_of(path)
    parts = task.family.parts
    if not parts or suffix != ".txt":
        return suffix in (*TABLES, *(CONLL if parts else ()))
    with open(path, "rb") as file:
        # The last line may be cut.
        lines = file.read(SAMPLED_BYTES).decode("utf-8", "replace").split("\n")[:-1]
    fields = [line.split() for line in lines if line.strip()]
    # A text file and CoNLL's columns can both end in .txt: every line with a known tag at its end
    # is the latter.
    words = [line for line in fields if line[0] not in ("#", DOCUMENT_START)]
    return bool(words) and all(len(line) > 1 and line[-1] in task.labels for line in words)


def _rows(texts: tuple[str, ...], task: TaskConfig) -> Iterator[dict[str, JsonValue] | str]:
    """Texts, or JSON objects with a key for each part of the input."""
    header = {task.columns.get(name, name) for name in ("text_a", "text_b", "label")}
    for number, text in enumerate(texts_or_lines(texts), start=1):
        # Whoever pipes a table into the command would otherwise get a prediction for its header.
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
