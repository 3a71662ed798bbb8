"""What a command prints: for people or for programs.

In:  a result as data and as text; rows of cells; lines computed one by one.
Out: standard output.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from artifacts.progress import discard


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    data: object
    """Anything JSON can hold."""
    text: str
    """The same for people."""
    as_json: bool
    """Which of the two is printed."""
    exit_code: int = 0
    """0, or 1 where the result itself is a failure (`doctor`)."""

    def __str__(self) -> str:
        return json.dumps(self.data, indent=1) if self.as_json else self.text


def columns(rows: Sequence[Sequence[str]]) -> str:
    """The rows as aligned text, every column as wide as its widest cell."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(f"{c:<{w}}" for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in lines)


def print_lines(lines: Iterable[str]) -> None:
    """Print each line as soon as it is computed; stop early if the reader has closed the pipe."""
    try:
        for line in lines:
            print(line, flush=True)
    except BrokenPipeError:  # `cloze … | head`
        discard(sys.stdout)
