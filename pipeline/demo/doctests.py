"""The examples in a docstring: statements after `>>>`.

In:  a docstring's lines.
Out: runs of lines, each either prose or an example's statements.

Statements are kept where text is read as `help` prints it: they show names in use. What they print
is left out, and so are imports, which every example begins with.
"""

import re
from collections.abc import Iterator

MAX_CHARACTERS = 200
"""Longer statements are data."""

LETTER_SHARE = 0.5
"""Statements with a smaller share of letters and spaces are data too."""

_PROMPT = re.compile(r"\s*>>> ?(.*)")
_CONTINUATION = re.compile(r"\s*\.\.\. ?(.*)")
_NO_LETTER = re.compile(r"[^A-Za-z ]")


def runs(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """(is an example, prose lines or statements), in order."""
    prose: list[str] = []
    place = 0
    while place < len(lines):
        if not _PROMPT.match(lines[place]):
            prose.append(lines[place])
            place += 1
            continue
        end = place
        while end < len(lines) and lines[end].strip():
            end += 1
        yield False, prose
        yield True, list(_statements(lines[place:end]))
        prose, place = [], end
    yield False, prose


def _statements(lines: list[str]) -> Iterator[str]:
    """The statements of one example, each on one line."""
    current: list[str] = []
    for line in lines:
        if begun := _PROMPT.match(line):
            yield from _if_told(current)
            current = [begun[1].strip()]
        elif current and (more := _CONTINUATION.match(line)):
            current.append(more[1].strip())
    yield from _if_told(current)


def _if_told(parts: list[str]) -> Iterator[str]:
    statement = " ".join(part for part in parts if part)
    is_import = statement.startswith(("import ", "from "))
    letters = len(statement) - len(_NO_LETTER.findall(statement))
    if not is_import and LETTER_SHARE * len(statement) <= letters <= MAX_CHARACTERS and letters:
        yield statement
