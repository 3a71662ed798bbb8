"""What a command answers: for people and for programs.

In:  data and the same said in words, or lines that come one by one.
Out: standard output.
"""

import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """The result of a command."""

    data: Any
    """Anything JSON can hold."""
    text: str
    """The same for people."""
    as_json: bool
    """Which of the two is wanted."""
    exit_code: int = 0
    """0, or 1 where the answer itself is a failure (`doctor`)."""

    def __str__(self) -> str:
        return json.dumps(self.data, indent=1) if self.as_json else self.text


def put_lines(lines: Iterable[str]) -> None:
    """Each line on standard output as soon as it is there; ends early when nobody reads on."""
    try:
        for line in lines:
            print(line, flush=True)
    except BrokenPipeError:  # the reader has seen enough (`cloze … | head`)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
