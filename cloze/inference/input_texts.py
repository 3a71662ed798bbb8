"""Shared by the commands that use a model: its name, the input texts, the throughput.

In:  the command line: texts and files of texts; otherwise standard input.
Out: the texts, one at a time; the throughput on standard error.
"""

import re
import sys
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Annotated, TypeVar

from cyclopts import Parameter

from cloze.artifacts.errors import UsageError
from cloze.artifacts.progress import say
from cloze.model.tasks.files.text_file import suffix_of, unpacked

ItemT = TypeVar("ItemT")

ModelName = Annotated[
    str,
    Parameter(help="A run's name, an artifact's directory, or a folder in Hugging Face's layout."),
]
Text = Annotated[
    str,
    Parameter(
        help="Texts, or files with one text per line; by default, standard input is read, one text "
        "per line. An empty line is an empty text."
    ),
]

TABLES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather")
"""Suffixes of files whose lines are not plain texts."""

FILE_NAME = re.compile(
    r"(~|\.{0,2})?/\S*|\S*[^\W\d_]\S*\.(txt|md|csv|tsv|jsonl?|ndjson|parquet|arrow|conllu?"
    r"|txtt|cvs|tvs|josnl?|jsnol?|jsoln)(\.gz)?"
)
"""What is meant as a file although there is none: a path from a root, or a name with a suffix, the
frequent slips of the hand among them."""

LONGEST_LINE = 1 << 24
"""Bytes of one text; a longer line is hardly a text, and would have to fit into memory."""

SECONDS_BETWEEN_LINES = 5.0


def texts_or_lines(texts: tuple[str, ...]) -> Iterator[str]:
    """The texts given, with files replaced by their lines; or the lines of standard input."""
    if texts:
        return (line for text in texts for line in _lines_if_file(text))
    if sys.stdin.isatty():
        raise UsageError("no text; give one as an argument, or one per line on standard input")
    return _lines(sys.stdin.buffer, "standard input")


def names_a_file(text: str) -> bool:
    """Whether an argument names an existing file; too long a text raises an OSError."""
    try:
        return Path(text).is_file()
    except (OSError, ValueError):
        return False


def names_a_folder(text: str) -> bool:
    """The same of a folder."""
    try:
        return Path(text).is_dir() and bool(text)
    except (OSError, ValueError):
        return False


def metered(results: Iterable[ItemT], *, verb: str, unit: str) -> Iterator[ItemT]:
    """Pass on `results`; log their number and rate every few seconds and at the end."""
    started = logged = time.monotonic()
    count = 0

    def line() -> str:
        seconds = max(time.monotonic() - started, 1e-9)
        return f"{verb} {count:,} {unit} {count / seconds:,.1f} {unit}/s"

    for result in results:
        yield result
        count += 1
        if time.monotonic() - logged >= SECONDS_BETWEEN_LINES:
            logged = time.monotonic()
            say(line())
    say(line())


def _lines_if_file(text: str) -> Iterator[str]:
    if names_a_folder(text):
        raise UsageError(
            f"{text}: a folder, expected a text or a file with one text per line; `cloze embed "
            "--passages 100` reads a folder's documents, and standard input takes any text"
        )
    if not names_a_file(text):
        if FILE_NAME.fullmatch(text):
            found = "no such file, and hardly a text; correct the name"
            if Path(text).exists():  # waiting for a pipe could last for ever
                found = "a pipe or device, expected a file with one text per line; name one"
            raise UsageError(f"{text}: {found}, or give the text on standard input")
        yield text
        return
    if suffix_of(text) in TABLES:
        raise UsageError(
            f"{text}: a table; expected a file with one text per line: export its text column to a "
            ".txt file"
        )
    say(f"{text}: read as a file, one text per line")
    with unpacked(text) as file:
        yield from _lines(file, text)


def _lines(file: IO[bytes], name: str) -> Iterator[str]:
    """Every line, including blank ones, so that results correspond to lines."""
    # One byte more than allowed shows a line that is too long without reading all of it.
    lines = iter(partial(file.readline, LONGEST_LINE + 1), b"")
    for number, line in enumerate(lines, start=1):
        if len(line) > LONGEST_LINE:
            raise UsageError(
                f"{name}, line {number}: longer than {LONGEST_LINE:,} bytes; expected one text per "
                "line: split it into lines or passages"
            )
        try:
            # A byte-order mark is no text.
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{name}, line {number}: not UTF-8 at byte {error.start}; convert it, for "
                "example with iconv -t UTF-8"
            ) from None
        yield text.rstrip("\r\n")
