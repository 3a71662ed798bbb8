"""Two texts side by side: what both have, and what only one of them has.

In:  two strings, such as a document before and after cleaning.
Out: pieces of text, each in both, only in the first, or only in the second.

Texts are compared word by word. White space between words makes no difference, but a line break
within the second text is shown. Long passages that are equal are shortened in their middle.
"""

import difflib
import re
from collections.abc import Iterator
from itertools import chain

from cloze.pipeline.survey.results import Piece

MOST_WORDS = 1200
"""Of each text: comparing takes time in the square of this."""

CONTEXT = 90
"""Characters of an equal passage that are shown beside a difference."""

_WORDS = re.compile(r"\S{1,60}[ \t]*\n?\s*")
"""A word with the white space after it; a longer one is several."""


def compared(before: str, after: str, *, shorten: bool = True) -> tuple[Piece, ...]:
    """The pieces of both texts, in order."""
    old, new = (_WORDS.findall(text)[:MOST_WORDS] for text in (before, after))
    plain_old, plain_new = ([word.rstrip() for word in words] for words in (old, new))
    # What both begin and end with need not be compared in the square of its length.
    first = _equal(plain_old, plain_new)
    last = _equal(plain_old[first:][::-1], plain_new[first:][::-1])
    stop_old, stop_new = len(old) - last, len(new) - last
    matcher = difflib.SequenceMatcher(
        None, plain_old[first:stop_old], plain_new[first:stop_new], autojunk=False
    )
    pieces: list[Piece] = [("same", _joined(new[:first]))]
    for tag, i1, i2, j1, j2 in matcher.get_opcodes():
        if tag == "equal":
            pieces.append(("same", _joined(new[first + j1 : first + j2])))
            continue
        pieces.append(("gone", _joined(old[first + i1 : first + i2])))
        pieces.append(("new", _joined(new[first + j1 : first + j2])))
    pieces.append(("same", _joined(new[stop_new:])))
    pieces = [piece for piece in pieces if piece[1]]
    if not shorten:
        return tuple(pieces)
    return tuple(chain.from_iterable(map(_shortened, pieces)))


def _equal(one: list[str], other: list[str]) -> int:
    """How many words at the beginning are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _joined(words: list[str]) -> str:
    spaces = (word[: len(word.rstrip())] + ("\n" if "\n" in word else " ") for word in words)
    return "".join(spaces)


def _shortened(piece: Piece) -> Iterator[Piece]:
    kind, text = piece
    longest = 2 * CONTEXT if kind == "same" else 8 * CONTEXT
    if len(text) - longest <= CONTEXT:
        yield piece
        return
    # between two words, unless one is longer than what is shown
    head, tail = text[: longest // 2], text[-(longest // 2) :]
    head = head[: head.rfind(" ") + 1] or head
    tail = tail[tail.find(" ") + 1 :] or tail
    yield (kind, head)
    yield ("left_out", str(len(text) - len(head) - len(tail)))
    yield (kind, tail)
