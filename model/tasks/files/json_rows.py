"""JSON of any size, an element at a time.

In:  the text of a JSON document in pieces; or values of any kind.
Out: the objects of its list: the document itself, or the list under its key `data`; or the values
     as JSON can hold them.
"""

import base64
import json
import math
from collections.abc import Iterator
from datetime import date, time, timedelta
from json.decoder import WHITESPACE  # type: ignore[attr-defined]

from pydantic import JsonValue

from cloze.model.tasks.files.text_file import LONGEST_LINE

SLACK = 64
"""Characters behind a value that show that it has ended: a number might go on."""


def as_json(value: object) -> JsonValue:
    """A cell of any kind of file as JSON can hold it.

    Dates and times are written as in ISO 8601, durations in seconds, bytes in base64; infinities
    and what is not a number are null; other kinds, such as decimal numbers, are text.
    """
    if value is None or isinstance(value, str | int):
        return value
    match value:
        case float():
            found: JsonValue = value if math.isfinite(value) else None
        case dict():
            found = {str(name): as_json(one) for name, one in value.items()}
        case list() | tuple():
            found = [as_json(one) for one in value]
        case date() | time():
            found = value.isoformat()
        case timedelta():
            found = value.total_seconds()
        case bytes():
            found = base64.b64encode(value).decode()
        case _:
            found = str(value)
    return found


class JsonText:
    """A JSON document that is read from its beginning to its end."""

    def __init__(self, pieces: Iterator[str]) -> None:
        self._pieces = pieces
        self._text = ""
        self._place = 0
        self._is_whole = False
        self._decode = json.JSONDecoder().raw_decode

    def elements(self, key: str) -> Iterator[JsonValue]:
        """The elements of the list that the document is or has under `key`; else the document.

        ValueError or RecursionError if it is not JSON, or one element is too long to be held.
        """
        start = self._peek()
        if start == "[":
            yield from self._list()
        elif start == "{":
            yield from self._object(key)
        else:
            yield self._value()
        if self._peek():
            raise ValueError(f"something behind the end: {self._text[self._place :][:20]!r}")

    def _list(self) -> Iterator[JsonValue]:
        self._take("[")
        if self._peek() != "]":
            yield self._value()
            while self._peek() == ",":
                self._take(",")
                yield self._value()
        self._take("]")

    def _object(self, key: str) -> Iterator[JsonValue]:
        """The elements of the list under `key`; the whole object if it has no such key."""
        self._take("{")
        others: dict[str, JsonValue] = {}
        is_found = False
        while self._peek() != "}":
            # A comma comes before every pair but the first.
            if others or is_found:
                self._take(",")
            name = self._value()
            if not isinstance(name, str):
                raise ValueError(f"{name!r:.40} where the name of a value is expected")
            self._take(":")
            if name == key:
                is_found = True
                # Elements are handed on while the list is still being read, so that it need not fit
                # into memory.
                yield from self._list() if self._peek() == "[" else [self._value()]
            else:
                others[name] = self._value()
        self._take("}")
        if not is_found:
            yield others

    def _value(self) -> JsonValue:
        """The next value, of which as much is read as it needs."""
        self._peek()
        wanted = SLACK
        while True:
            self._fill(wanted)
            try:
                value, end = self._decode(self._text, self._place)
            except ValueError:
                if self._is_whole or len(self._text) - self._place > LONGEST_LINE:
                    raise
            else:
                if self._is_whole or len(self._text) - end >= SLACK:
                    self._place = end
                    found: JsonValue = value
                    return found
            # Twice as much, so that a long value is parsed anew a few times and not for every
            # piece.
            wanted = 2 * (len(self._text) - self._place)

    def _take(self, mark: str) -> None:
        if self._peek() != mark:
            raise ValueError(f"{self._text[self._place :][:20]!r}, expected {mark!r}")
        self._place += 1

    def _peek(self) -> str:
        """The next character that is no white space; "" at the end."""
        while True:
            self._place = WHITESPACE.match(self._text, self._place).end()
            if self._place < len(self._text):
                return self._text[self._place]
            if self._is_whole:
                return ""
            self._fill(1)

    def _fill(self, size: int) -> None:
        """Read on until `size` characters are there, or the document ends."""
        if len(self._text) - self._place >= size or self._is_whole:
            return
        # Joined once at the end: a string that grows by each piece would be copied with each.
        parts = [self._text[self._place :]]
        held = len(parts[0])
        while held < size:
            piece = next(self._pieces, "")
            if not piece:
                self._is_whole = True
                break
            parts.append(piece)
            held += len(piece)
        self._text, self._place = "".join(parts), 0
