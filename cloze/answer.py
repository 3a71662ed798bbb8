"""What a command answers: for people and for programs.

In:  data and the same said in words.
Out: one of them on standard output.
"""

import json
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
