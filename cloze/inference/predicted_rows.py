"""Rows with their predictions, as JSON lines, a JSON array or a table, printed or in a file.

In:  rows as they are computed, and their form: that of the input, or as an output's suffix says.
Out: standard output, or a file that appears once it is complete.
"""

import csv
import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from cloze.answer import array_lines
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import partial_file, refuse_device
from cloze.artifacts.progress import say
from cloze.model.inference.predict import Row

LINES, ARRAY = "lines", "array"
"""Forms of rows, JSON lines and a JSON array; any other is the separator of a table's cells."""

FORMS = {".jsonl": LINES, ".json": ARRAY, ".csv": ",", ".tsv": "\t"}
"""By the suffix of a file."""

LINE_END = "\r\n"

MARK = "\ufeff"
"""The byte order mark, by which spreadsheets know that a file is UTF-8."""


@dataclass(frozen=True)
class TableStyle:
    """How a table is written."""

    within_cell: str
    """What parts several labels in one cell."""

    marked: bool = False
    """Whether it begins with a byte order mark."""

    alike: Callable[[], Row] = dict
    """What a row would be like, for the header of a table that has none; {} for no header."""


def form_of(output: Path, inputs: Iterable[Path], *, of_input: str = LINES) -> str:
    """The form of a file to write: by its suffix, or without one that of the input.

    It is refused if it cannot be written, or is one of the `inputs`.
    """
    form = FORMS.get(output.suffix.lower()) if output.suffix else of_input
    if form == "," and len(of_input) == 1 and of_input != "\t":
        form = of_input  # a .csv stays one of semicolons
    if form is None:
        raise UsageError(
            f"--output {output}: expected a name that ends in {', '.join(FORMS)}, or in no suffix "
            "for the form of the input"
        )
    if not output.parent.is_dir():
        raise UsageError(f"--output {output}: no folder {output.parent}; make it first")
    if output.is_dir():
        raise UsageError(f"--output {output}: is a folder; expected a file's name")
    refuse_device(str(output))
    if output.exists() and any(output.samefile(one) for one in inputs):
        raise UsageError(f"--output {output}: is the input; choose another name")
    return form


def lines_of(rows: Iterable[Row], form: str, style: TableStyle) -> Iterator[str]:
    """The lines of `rows`, without their ends; a list of labels is one cell of a table."""
    if form == LINES:
        return (json.dumps(row, ensure_ascii=False) for row in rows)
    if form == ARRAY:
        return array_lines(rows)
    lines = _table(rows, form, style)
    return (MARK + line if style.marked and not n else line for n, line in enumerate(lines))


def write_rows(rows: Iterable[Row], output: Path, form: str, style: TableStyle) -> int:
    """Write them as a stream; returns their number. Memory use is constant.

    A full disk is named, and of an interrupted command nothing has the file's name.
    """
    count = 0

    def counted() -> Iterator[Row]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    with (
        partial_file(str(output)) as temporary,
        # As on standard output: a lone surrogate in JSON is escaped.
        open(temporary, "w", encoding="utf-8", errors="backslashreplace", newline="") as file,
    ):
        for line in lines_of(counted(), form, style):
            file.write(f"{line}\n")
    return count


def _table(rows: Iterable[Row], separator: str, style: TableStyle) -> Iterator[str]:
    """A header and one line per row: a column for each label's probability, a cell for a list."""
    line = io.StringIO(newline="")
    # Cells are quoted if they contain a character of the line's end, which is taken off again.
    writer = csv.writer(line, delimiter=separator, lineterminator=LINE_END)

    def written(cells: Iterable[JsonValue]) -> str:
        if separator == "\t":  # read without quoting, so a cell cannot contain a separator
            return separator.join(re.sub(r"[\t\r\n]", " ", str(plain(cell))) for cell in cells)
        line.seek(0)
        line.truncate()
        writer.writerow(plain(cell) for cell in cells)
        return line.getvalue().removesuffix(LINE_END)

    def plain(cell: JsonValue) -> JsonValue:
        texts = [one for one in cell if isinstance(one, str)] if isinstance(cell, list) else []
        parts = any(style.within_cell in one for one in texts)
        if isinstance(cell, list) and len(texts) == len(cell) and not parts:
            return style.within_cell.join(texts)  # labels, as the task's own files write them
        is_scalar = isinstance(cell, str | float | int) and not isinstance(cell, bool)
        return "" if cell is None else cell if is_scalar else json.dumps(cell, ensure_ascii=False)

    header: list[str] = []
    for number, found in enumerate(rows, start=1):
        row, replaced = _in_columns(found)
        if not header:
            if replaced:
                say(f"the input's columns {', '.join(replaced)} are replaced by those predicted")
            header = [*row]
            yield written(header)
        if unknown := next((name for name in row if name not in header), ""):
            raise UsageError(
                f"row {number} has {unknown!r}, which row 1 has not, so they do not fit into one "
                "table; write JSON lines (--output NAME.jsonl)"
            )
        yield written(row.get(name) for name in header)
    if not header and (like := style.alike()):
        yield written(_in_columns(like)[0])


def _in_columns(row: Row) -> tuple[Row, list[str]]:
    """The row with a column for each label's probability, and which of these it had before."""
    shares = row.get("probabilities")
    if not isinstance(shares, dict):  # a column of the input
        return row, []
    others = {name: cell for name, cell in row.items() if name != "probabilities"}
    columns: Row = {f"probability {label}": share for label, share in shares.items()}
    return others | columns, [name for name in columns if name in others]
