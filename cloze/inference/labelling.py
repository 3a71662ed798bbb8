"""`cloze label`: choose the rows of a table to label next, and merge the labels that come back.

In:  a table whose label column is blank where a row has no label yet; an encoder. Or, with --merge,
     files of chosen rows that people have filled in.
Out: a file of the rows to label, each with the model's proposal: CSV, or for a name that ends in
     .json tasks of Label Studio. Or, with --merge, the table with the new labels and the round that
     each is from. The cross-validated score after every round is logged.

Files are matched with the table by row number and text, in any order; rows may be missing.
"""

import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from pydantic import JsonValue

from cloze.answer import Answer
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import write_bytes
from cloze.artifacts.progress import say
from cloze.inference.predicted_rows import TableStyle, lines_of
from cloze.model.tasks.files.json_rows import as_json
from cloze.model.tasks.files.table_files import file_rows, read_table
from cloze.model.tasks.files.task_table import (
    TaskTable,
    Wanted,
    are_tags,
    is_missing,
    odd_spellings,
    refuse_spelt_nan,
)
from cloze.named import model_directory
from cloze.options import PLACE, Place, reading_artifacts

if TYPE_CHECKING:
    from sklearn.linear_model import LogisticRegression

    from cloze.model.uncertainty.next_rows import Vectors

ROUND = "round"
"""Column of the table: the round in which a row was labelled."""

FIELDS = ("row", "text", "proposed", "probability", "label")
"""Columns of a file of rows to label."""

WHOLE = re.compile("[0-9]{1,18}")

JSON = ".json"
FOLDS = 5


@Parameter(name="*")
@dataclass(frozen=True)
class Columns:
    """The columns of the table."""

    text: str = "text"
    """The column of texts."""

    label: str = "label"
    """The column of labels, which may be missing as long as there are none."""


COLUMNS = Columns()


@dataclass
class Rows:
    """A table's rows, some of which are labelled."""

    table: TaskTable
    columns: Columns
    everything: dict[str, list[JsonValue]]
    """All columns of the file, by its names."""

    texts: list[str]
    labels: list[str]
    """"" for none."""

    rounds: list[int]
    """0: labelled from the beginning."""

    separator: str = ","
    """Of the table's columns."""

    marked: bool = False
    """Whether the table begins with a byte order mark."""


@reading_artifacts
def label(
    table: Path,
    /,
    *,
    output: Path,
    next: Annotated[int, Parameter(name="--next")] = 50,
    initial: Annotated[str, Parameter(name="--from")] = "",
    merge: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    columns: Columns = COLUMNS,
    place: Place = PLACE,
) -> Answer:
    """Choose rows to label, or merge labels.

    :param table: A CSV file with a column of texts; blank labels are those to choose from.
    :param output: New file: the chosen rows, .csv or Label Studio's .json; with --merge, the table.
    :param next: How many rows to choose.
    :param initial: Encoder whose vectors are compared: a run's name, an artifact's directory, or a
        folder in Hugging Face's layout.
    :param merge: Filled-in files of chosen rows, whose labels are put into the table.
    """
    if output.exists():
        raise UsageError(f"{output}: already exists; choose another --output")
    suffixes = (".csv",) if merge else (".csv", JSON)
    if output.suffix not in suffixes:
        raise UsageError(f"--output {output}: expected a name that ends in {' or '.join(suffixes)}")
    # Before anything else: merging and choosing need the same table, with all its columns.
    rows = read_rows(table, columns)
    if merge:
        changed = merged(rows, merge)
        write_bytes(str(output), table_csv(rows).encode())
        labelled = sum(map(bool, rows.labels))
        shown = f"{output}: {changed:,} new labels, {labelled:,} of {len(rows.texts):,} rows"
        return Answer(
            {"file": str(output), "new": changed, "labelled": labelled}, shown, place.json
        )
    if not initial:
        raise UsageError("rows are chosen by their vectors: name an encoder with --from")
    if next < 1:
        raise UsageError(f"--next {next}: expected at least 1")
    chosen = chosen_rows(rows, model_directory(initial, place.space()), next)
    written = studio_tasks(chosen) if output.suffix == JSON else chosen_csv(chosen)
    write_bytes(str(output), written.encode())
    shown = f"{output}: {len(chosen)} rows to label; give them back with --merge {output}"
    return Answer({"file": str(output), "rows": [one["row"] for one in chosen]}, shown, place.json)


def read_rows(path: Path, columns: Columns) -> Rows:
    """The table's texts, and the labels it has."""
    text, label = columns.text, columns.label
    wanted = Wanted(
        required=("text_a",),
        optional=("label", ROUND),
        names={"text_a": text, "label": label},
        remedy="name the column of the texts with --text; words to tag are not chosen from",
    )
    table = read_table(str(path), wanted)
    for row, cell in enumerate(table.columns["text_a"]):
        if is_missing(cell):
            raise UsageError(f"{table.place(row)}: {text} is blank; fill it in, or remove the row")
    refuse_spelt_nan(table)
    file = file_rows(str(path), wanted)
    if file.repeated is not None:
        which = f"named {file.repeated!r}" if file.repeated else "without a name"
        raise UsageError(
            f"{path}: several columns {which}; the table is written with all of "
            "its columns: rename or remove the others"
        )
    # A table may lack the column of labels, or that of rounds: then no row has any.
    blank = [None] * len(table)
    labels = ["" if is_missing(one) else str(one) for one in table.columns.get("label", blank)]
    if are_tags(table.texts("text_a"), labels):
        raise UsageError(
            f"{path}: {label} has a tag for each word of {text}; expected one label per row, as "
            "words to tag are not chosen from"
        )
    for odd in odd_spellings(dict.fromkeys(filter(None, labels))):
        say(f"label: {odd}")
    rounds = []
    for row, cell in enumerate(table.columns.get(ROUND, blank)):
        number = whole_number(cell)
        if not is_missing(cell) and (number is None or not labels[row]):
            raise UsageError(
                f"{table.place(row)}: column {ROUND} has {cell!r}, expected the number of the "
                "round in which the row was labelled, and nothing beside a blank label; rename the "
                "column if it means something else"
            )
        rounds.append(number or 0)
    # All columns are kept, also those that mean nothing here: the table is written back whole.
    every = [row for _, row in file]
    names = dict.fromkeys(name for row in every for name in row)
    everything = {name: [as_json(row.get(name)) for row in every] for name in names}
    texts, separator = table.texts("text_a"), file.separator or ","
    return Rows(table, columns, everything, texts, labels, rounds, separator, file.marked)


def whole_number(cell: JsonValue) -> int | None:
    """The number that a cell holds, also as spreadsheets write it."""
    written = str(cell).strip().removesuffix(".0")
    return int(written) if WHOLE.fullmatch(written) else None


def chosen_rows(rows: Rows, model: str, count: int) -> list[dict[str, str]]:
    """The rows to label next, with the proposals of a linear head on the labels so far."""
    import numpy as np

    from cloze.model.inference.load import load_model
    from cloze.model.uncertainty.next_rows import COPY, next_rows

    if all(rows.labels):
        raise UsageError(f"{rows.table.path}: every row has a label; there is none to choose")
    vectors = np.stack(list(load_model(model).sentence_vectors(rows.texts)))
    head = proposing_head(vectors, rows.labels)
    shares = np.asarray(head.predict_proba(vectors)) if head else None
    names = list(head.classes_) if head else []
    say_gains(vectors, rows)
    # Proposals save typing, but whoever labels decides: the column to fill in stays blank.
    chosen = next_rows(vectors, rows.labels, shares, count)
    blank = rows.labels.count("")
    alike = f"rows without a label nearly equal others in this encoder (cosine of {COPY} or more)"
    if not chosen:
        raise UsageError(
            f"{rows.table.path}: all {blank:,} {alike} that have one; label them alike, or name "
            "another encoder"
        )
    if len(chosen) < min(count, blank):
        say(f"label: {len(chosen)} rows instead of {count}: the other {alike}")
    return [
        {
            "row": str(row + 1),
            "text": rows.texts[row],
            "proposed": "" if shares is None else str(names[int(shares[row].argmax())]),
            "probability": "" if shares is None else f"{shares[row].max():.4f}",
            "label": "",
        }
        for row in chosen
    ]


def proposing_head(vectors: "Vectors", labels: Sequence[str]) -> "LogisticRegression | None":
    """Logistic regression on the labelled rows ("" for none); None for fewer than two labels."""
    from sklearn.linear_model import LogisticRegression

    known = [row for row, label in enumerate(labels) if label]
    if len({labels[row] for row in known}) < 2:
        return None
    model = LogisticRegression(C=10.0, max_iter=1000)
    model.fit(vectors[known], [labels[row] for row in known])
    return model


def say_gains(vectors: "Vectors", rows: Rows) -> None:
    """Log the cross-validated accuracy of a linear head after every round."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_score

    rounds = zip(rows.rounds, rows.labels, strict=True)
    # What each round was worth: the labels up to it, scored with the same folds and the same head.
    for last in sorted({number for number, label in rounds if label}):
        known = [row for row, label in enumerate(rows.labels) if label and rows.rounds[row] <= last]
        every = [rows.labels[row] for row in known]
        # A label that occurs once cannot be both in train and in test.
        scored = [row for row, label in zip(known, every, strict=True) if every.count(label) > 1]
        labels = [rows.labels[row] for row in scored]
        rarest = min(map(labels.count, set(labels)), default=0)
        if len(set(labels)) < 2:
            say(f"label: round {last}: {len(known)} labels, too few of each to score")
            continue
        folds = StratifiedKFold(min(FOLDS, rarest), shuffle=True, random_state=0)
        scores = cross_val_score(
            LogisticRegression(C=10.0, max_iter=1000), vectors[scored], labels, cv=folds
        )
        error = scores.std(ddof=1) / len(scores) ** 0.5
        say(f"label: round {last}: {len(known)} labels, accuracy {scores.mean():.3f} ± {error:.3f}")


def merged(rows: Rows, files: Sequence[Path]) -> int:
    """Put the labels of filled-in files into the table; return how many are new."""
    given: dict[int, tuple[str, str]] = {}
    known = {label for label in rows.labels if label}
    for path in files:
        for where, number, text, label in filled(path):
            # Number and text must agree: a spreadsheet that was sorted keeps them together, another
            # table has others. Spreadsheets change white space, so that may differ.
            if not 1 <= number <= len(rows.texts) or text.split() != rows.texts[number - 1].split():
                raise UsageError(
                    f"{where}: row {number} with the text {text[:60]!r} is not in "
                    f"{rows.table.path}; merge into the table from which the rows were chosen"
                )
            # What somebody else has given in an earlier file, or else the table itself.
            before, by = given.get(number, (rows.labels[number - 1], rows.table.path))
            if label and before and label != before:
                raise UsageError(
                    f"{where}: row {number} is {label!r}, but {before!r} in {by}; agree on one"
                )
            if label:
                given[number] = (label, str(path))
    if not given:
        raise UsageError(f"{', '.join(map(str, files))}: no row has a label; fill in some")
    this_round = max(rows.rounds, default=0) + 1
    fresh = [row for row in given if not rows.labels[row - 1]]
    for row in fresh:
        rows.labels[row - 1], rows.rounds[row - 1] = given[row][0], this_round
    if known and (new := sorted({given[row][0] for row in fresh} - known)):
        say(f"label: labels that the table did not have: {', '.join(new)}")
    return len(fresh)


def filled(path: Path) -> list[tuple[str, int, str, str]]:
    """Place, row, text and label ("" for none) of every row of a filled-in file."""
    if path.suffix == JSON:
        return studio_answers(path)
    remedy = "give back the file that `cloze label` wrote, with all its columns"
    wanted = Wanted(required=("row", "text"), optional=("label",), remedy=remedy)
    table = read_table(str(path), wanted)
    labels = table.columns.get("label", [None] * len(table))
    found = []
    for place, (row, label) in enumerate(zip(table.columns["row"], labels, strict=True)):
        number = whole_number(row)
        if number is None:
            raise UsageError(f"{table.place(place)}: row is {row!r}, expected a number")
        text = str(table.columns["text"][place])
        given = "" if is_missing(label) else str(label).strip()
        found.append((table.place(place), number, text, given))
    return found


def studio_tasks(chosen: Sequence[dict[str, str]]) -> str:
    """The rows as tasks of Label Studio, to import, with the proposals as predictions."""

    def choice(label: str) -> dict[str, object]:
        names = {"from_name": "label", "to_name": "text", "type": "choices"}
        return {**names, "value": {"choices": [label]}}

    tasks = [
        {
            "data": {"text": one["text"], "row": int(one["row"])},
            # A row without a proposal has no prediction, or Label Studio would show an empty
            # choice.
            "predictions": [
                {"result": [choice(one["proposed"])], "score": float(one["probability"])}
            ]
            if one["proposed"]
            else [],
        }
        for one in chosen
    ]
    return json.dumps(tasks, indent=1, ensure_ascii=False) + "\n"


UNREADABLE = (
    *(ValueError, LookupError, TypeError, AttributeError),
    *(OverflowError, RecursionError),  # a row of 1e999, nesting without end
)


def studio_answers(path: Path) -> list[tuple[str, int, str, str]]:
    """Place, row, text and label of every task that Label Studio has exported as JSON."""
    try:
        tasks = json.loads(path.read_text("utf-8"))
        found = []
        for number, task in enumerate(tasks, start=1):
            answers = {
                str(label)
                for annotation in task.get("annotations", [])
                # A skipped task has an annotation, too.
                if not annotation.get("was_cancelled")
                for result in annotation["result"]
                for label in result["value"].get("choices", [])
            }
            # Annotators who disagree must not be outvoted by the order of the file.
            if len(answers) > 1:
                raise UsageError(
                    f"{path}, task {number}: annotated as {' and '.join(sorted(answers))}; agree "
                    "on one"
                )
            data = task["data"]
            label = next(iter(answers), "")
            found.append((f"{path}, task {number}", int(data["row"]), str(data["text"]), label))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except UNREADABLE as error:
        raise UsageError(
            f"{path}: not an export of Label Studio's tasks in the format JSON: {error!r}"
        ) from None
    return found


def chosen_csv(chosen: Sequence[dict[str, str]]) -> str:
    """The rows as CSV, which spreadsheets open."""
    written = io.StringIO(newline="")
    rows = csv.DictWriter(written, FIELDS, lineterminator="\r\n")
    rows.writeheader()
    rows.writerows(chosen)
    return "\ufeff" + written.getvalue()  # the mark tells Excel that it is UTF-8


def table_csv(rows: Rows) -> str:
    """The table with all its columns, its labels and rounds."""
    columns = {name: list(values) for name, values in rows.everything.items()}
    columns[rows.columns.label] = list(rows.labels)
    numbered = zip(rows.rounds, rows.labels, strict=True)
    columns[ROUND] = [number if label else "" for number, label in numbered]
    rows_of_all = (
        dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
    )
    # Cells of a table of tabs are not quoted, as in a .tsv: it becomes one of commas.
    separator = "," if rows.separator == "\t" else rows.separator
    lines = lines_of(rows_of_all, separator, TableStyle(",", marked=rows.marked))
    return "".join(f"{line}\n" for line in lines)
