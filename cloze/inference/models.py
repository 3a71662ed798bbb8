"""What the commands that use a model share: its name, texts in, and how fast they go.

In:  the command line, standard input.
Out: texts, one by one; a line about the throughput on standard error.
"""

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, TypeVar

from cyclopts import Parameter

from artifacts.errors import UsageError
from artifacts.progress import say

ItemT = TypeVar("ItemT")

ModelName = Annotated[
    str, Parameter(help="A run's name, an artifact's directory, or a folder in Hugging Face form.")
]
Text = Annotated[
    str,
    Parameter(
        help="Texts; without any, one a line from standard input, where an empty line is an empty "
        "text."
    ),
]

SECONDS_BETWEEN_LINES = 5.0


def texts_or_lines(texts: tuple[str, ...]) -> Iterable[str]:
    """The texts given, or the lines of standard input."""
    if texts:
        return texts
    if sys.stdin.isatty():
        raise UsageError("no text; give one as an argument, or one a line on standard input")
    return _lines()


def metered(results: Iterable[ItemT], *, verb: str, unit: str) -> Iterator[ItemT]:
    """`results` as they are; says now and then how many there were, and how many a second."""
    started = said = time.monotonic()
    count = 0
    for result in results:
        yield result
        count += 1
        if time.monotonic() - said >= SECONDS_BETWEEN_LINES:
            said = time.monotonic()
            say(_throughput(verb, unit, count, said - started))
    say(_throughput(verb, unit, count, time.monotonic() - started))


def _throughput(verb: str, unit: str, count: int, seconds: float) -> str:
    return f"{verb} {count:,} {unit} {count / max(seconds, 1e-9):,.1f} {unit}/s"


def _lines() -> Iterator[str]:
    """Every line, so that results can be put beside them."""
    for number, line in enumerate(sys.stdin.buffer, start=1):
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            raise UsageError(
                f"standard input, line {number}: not UTF-8 at byte {error.start}; convert it, for "
                "example with iconv -t UTF-8"
            ) from None
        yield text.rstrip("\r\n")
