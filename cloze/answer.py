"""The output of commands, for people or as JSON.

In:  a result as data and as text; rows of cells; lines computed one at a time.
Out: standard output.
"""

import csv
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from cloze.artifacts.filesystem import naming_full_disk
from cloze.artifacts.progress import discard, printable

ABSENT = "—"

Rows = Sequence[Sequence[str]]

Format = Literal["text", "csv", "latex", "markdown"]

LATEX_ESCAPES = str.maketrans(
    {
        **{letter: f"\\{letter}" for letter in "&%$#_{}"},
        **{"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"},
        **{"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"},
        **{"±": r"$\pm$", "−": "$-$", "×": r"$\times$", "→": r"$\to$", ABSENT: "---"},
    }
)

MARKDOWN_MARKS = re.compile(r"[\\`*\[\]<>|~$&]|(?<!\w)_|_(?!\w)")
"""What would be read as markup; `_` within a word is not."""


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    data: object
    """Any JSON-serialisable value."""
    text: str
    """The same as text for people."""
    as_json: bool
    """Whether to print `data` instead of `text`."""
    exit_code: int = 0
    """0, or 1 if the result itself is a failure (`doctor`)."""

    def __str__(self) -> str:
        return json.dumps(self.data, indent=1) if self.as_json else self.text


NOTES: dict[Format, str] = {"text": "note: {}", "latex": "% note: {}", "markdown": "\nNote: {}"}
"""How a note stands below a table; CSV has no place for one."""


def written(rows: Rows, format: Format, *, notes: Sequence[str] = ()) -> str:
    """A table whose first row is its header, and notes; LaTeX needs the package booktabs."""
    write = {"text": aligned, "csv": _csv, "latex": _latex, "markdown": _markdown}[format]
    if format != "csv":  # a row is a line
        rows = [[" ".join(cell.split()) for cell in row] for row in rows]
    below = [NOTES[format].format(note) for note in notes] if format in NOTES else []
    return "\n".join([write(rows), *below])


def aligned(rows: Rows) -> str:
    """Align rows of cells: every column is as wide as its widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    blank = [["" if cell == ABSENT else cell for cell in row] for row in rows]
    csv.writer(text, lineterminator="\n").writerows(blank)
    return text.getvalue().rstrip("\n")


def _markdown(rows: Rows) -> str:
    lines = [[MARKDOWN_MARKS.sub(r"\\\g<0>", cell) for cell in row] for row in rows]
    # All columns but the first hold numbers, so they are aligned on the right.
    rule = ["---", *("---:" for _ in rows[0][1:])]
    return "\n".join(f"| {' | '.join(line)} |" for line in (lines[0], rule, *lines[1:]))


def _latex(rows: Rows) -> str:
    cells = ([_latex_cell(cell) for cell in row] for row in rows)
    lines = [f"{' & '.join(row)} \\\\" for row in cells]
    # Behind \\, a bracket or a star would be an argument of it.
    lines = [f"{{}}{line}" if line.startswith(("[", "*")) else line for line in lines]
    begin = f"\\begin{{tabular}}{{l{'r' * (len(rows[0]) - 1)}}}"
    table = [begin, r"\toprule", lines[0], r"\midrule", *lines[1:], r"\bottomrule"]
    return "\n".join([*table, r"\end{tabular}"])


def _latex_cell(cell: str) -> str:
    # The hyphen of a negative number would be printed as one.
    sign, rest = ("−", cell[1:]) if re.match(r"-[\d.]", cell) else ("", cell)
    return f"{sign}{rest}".translate(LATEX_ESCAPES)


def print_lines(lines: Iterable[str]) -> None:
    """Print each line as soon as it is computed; stop if the reader closes the pipe.

    On a terminal, control characters are escaped: documents, file names and vocabularies that
    others wrote must not steer it. Files and pipes receive the text unchanged.
    """
    shown = printable if sys.stdout.isatty() else str
    with _to_standard_output():
        for line in lines:
            print(shown(line), flush=True)


def print_array(
    rows: Iterable[object], *, within: Callable[[int], dict[str, object]] | None = None
) -> None:
    """Print a JSON array of any length, once all of its rows are computed.

    Until then they are in a temporary file without a name, so that neither memory nor the reader
    ever holds a part. `within`: from their number to an object whose last value is the array.
    """
    depth = 2 if within else 1
    kept = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed below, whether or not it is flushed
    try:
        count = 0
        with naming_full_disk(tempfile.gettempdir()):
            for count, row in enumerate(rows, start=1):
                text = json.dumps(row, indent=1).replace("\n", "\n" + " " * depth)
                kept.write(("," if count > 1 else "") + "\n" + " " * depth + text)
            kept.flush()
        kept.seek(0)
        before, after = "[", "\n]" if count else "]"
        if within:
            whole = json.dumps(within(count), indent=1)  # ends in `[]` and the closing brace
            before = whole.removesuffix("]\n}")
            after = "\n ]\n}" if count else "]\n}"
        with _to_standard_output():
            sys.stdout.write(before)
            shutil.copyfileobj(kept, sys.stdout)
            print(after, flush=True)
    finally:
        with suppress(OSError):  # what the disk has no room for is still to be flushed
            kept.close()


def array_lines(rows: Iterable[object]) -> Iterator[str]:
    """The lines of a JSON array of any length, as `print_array` prints them."""
    line, comma = "[", ""
    for row in rows:
        yield line + comma
        line, comma = " " + json.dumps(row, indent=1).replace("\n", "\n "), ","
    if comma:
        yield line
    yield "]" if comma else "[]"


@contextmanager
def _to_standard_output() -> Iterator[None]:
    """Stop if the reader closes the pipe; name standard output if it is full."""
    try:
        yield
    except BrokenPipeError:  # `cloze … | head`
        discard(sys.stdout)
    except OSError as error:
        if error.filename is None:  # for example `cloze … > /dev/full`
            discard(sys.stdout)
            error.filename = "standard output"
        raise
