"""What the commands that use a model share: its name, and texts from arguments or standard input.

In:  the command line.
Out: a loaded model, texts.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Annotated

from cyclopts import Parameter

from artifacts.errors import UsageError

ModelName = Annotated[
    str, Parameter(help="A run's name, an artifact's directory, or a folder in Hugging Face form.")
]
Text = Annotated[str, Parameter(help="Texts; without any, one a line from standard input.")]


def texts_or_lines(texts: tuple[str, ...]) -> Iterable[str]:
    """The texts given, or the lines of standard input."""
    if texts:
        return texts
    if sys.stdin.isatty():
        raise UsageError("no text; give one as an argument, or one a line on standard input")
    return _lines()


def _lines() -> Iterator[str]:
    for line in sys.stdin:
        if line.strip():
            yield line.rstrip("\n")
