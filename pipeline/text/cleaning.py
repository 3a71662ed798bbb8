"""Cleaning: from raw bytes to plain lines of text.

In:  a `DocumentBlock` from a reader.
Out: the same documents as valid UTF-8 without control characters, single spaces, one paragraph (or,
     in Google's format, sentence) per line; the number of replacement characters per document.

In this order: invalid UTF-8 becomes U+FFFD and is counted; control characters, byte order marks and
invisible format characters are removed; all line ends become line feeds and all spaces plain
spaces; HTML entities and `<br>` are decoded (only in sources made from HTML); white space is
collapsed, and line breaks that merely wrap a paragraph become spaces. Hard-wrapped text (old books,
documentation) is told from one paragraph per line by the line lengths of each document, so a
document is cleaned the same way in any block.

With a C compiler the loops over bytes run in cleaning.c, with the same result, except that invalid
UTF-8 and the detection of hard-wrapped text are left to Python and NumPy.
"""

import ctypes
import html
import re
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np

from cloze.artifacts.arrays import Bytes, Offsets, concatenated
from cloze.artifacts.runtime.native import compiled, pointer
from cloze.pipeline.config.settings import LineBreak
from cloze.pipeline.readers.documents import DocumentBlock

SPACE, LINE_FEED = 0x20, 0x0A

REPLACEMENT = "\ufffd"
"""The replacement character for invalid bytes."""

WRAPPED_WIDTH = 100
"""Characters: hardly any line of hard-wrapped text is longer."""
SHORT_LINE = 40
"""Characters: a shorter line had room for another word, so its line break is deliberate."""
LONG_LINES_ALLOWED = 0.02
"""Maximum share of lines beyond `WRAPPED_WIDTH` in hard-wrapped text (addresses, tables)."""
FULL_LINES_NEEDED = 0.5
"""Minimum share of lines of at least `SHORT_LINE` characters in hard-wrapped text."""

_NOT_UTF8 = -1
"""Returned by cleaning.c for a block with an invalid byte."""


def clean(
    block: DocumentBlock, *, line_break: LineBreak, from_html: bool = False
) -> tuple[DocumentBlock, Offsets]:
    """Clean the documents of `block`; none is dropped, but some may become empty.

    Their text has one paragraph or sentence per line, single spaces and no empty lines. Returns
    also the number of U+FFFD in each document: bytes that were not UTF-8.
    """
    # Two passes, over characters and over white space, each in C if that is at hand. Invalid UTF-8,
    # which is rare, sends a block to the slower first pass.
    kernel, size = cleaning_library(), _NOT_UTF8
    text, ends = np.ascontiguousarray(block.text), np.ascontiguousarray(block.ends, dtype=np.int64)
    plain, moved, replaced = np.empty_like(text), np.empty_like(ends), np.empty_like(ends)
    if kernel is not None:
        size = kernel.clean_characters(
            *(pointer(text), len(text), pointer(ends), len(ends)),
            *(pointer(table) for table in (_ONE, _TWO, _THREE, plain, moved, replaced)),
        )
    if size == _NOT_UTF8:
        text, ends, replaced = _plain_characters(text, ends)
    else:
        text, ends = plain[:size], moved
    # Between them, as entities can stand for white space.
    if from_html:
        text, ends = _without_html(text, ends)
    if kernel is None or line_break == "detect":
        text, ends = _collapse(text, ends, line_break)
        return DocumentBlock(text, ends, block.positions), replaced
    text, ends = np.ascontiguousarray(text), np.ascontiguousarray(ends, dtype=np.int64)
    collapsed, moved = np.empty_like(text), np.empty_like(ends)
    size = kernel.clean_white_space(
        *(pointer(text), len(text), pointer(ends), len(ends)), pointer(collapsed), pointer(moved)
    )
    return DocumentBlock(collapsed[:size], moved, block.positions), replaced


@cache
def cleaning_library() -> ctypes.CDLL | None:
    """The functions of cleaning.c; None without a C compiler."""
    return compiled(Path(__file__).with_name("cleaning.c"))


# Characters that cleaning replaces by a line feed, by a space, or removes.
# Carriage return, vertical tab, form feed, next line, line and paragraph separator.
_LINE_ENDS = "\r\x0b\x0c\x85\u2028\u2029"
_SPACES = "\t\xa0\u1680\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
_INVISIBLE = (
    # Control characters; soft hyphen and byte order mark; zero-width and directional signs.
    "".join(map(chr, (*range(0x09), *range(0x0E, 0x20), *range(0x7F, 0x85), *range(0x86, 0xA0))))
    + "\xad\ufeff"
    + "".join(map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070))))
)
_PLAIN = {
    "\r\n": "\n",
    **dict.fromkeys(_LINE_ENDS, "\n"),
    **dict.fromkeys(_SPACES, " "),
    **dict.fromkeys(_INVISIBLE, ""),
}
_NOT_PLAIN = re.compile(f"\r\n|[{re.escape(_LINE_ENDS + _SPACES + _INVISIBLE)}]")

_DELETE = 1
"""Entry of the tables below for a character to remove; 0 keeps it, others replace it."""
_ONE = np.zeros(256, dtype=np.uint8)
_TWO, _THREE = np.zeros(1 << 11, dtype=np.uint8), np.zeros(1 << 16, dtype=np.uint8)
"""The same for cleaning.c, for characters of one, two and three bytes."""
for _character, _plain in _PLAIN.items():
    if len(_character) == 1:
        _table = (_ONE, _TWO, _THREE)[len(_character.encode()) - 1]
        _table[ord(_character)] = ord(_plain) if _plain else _DELETE


def _plain_characters(text: Bytes, ends: Offsets) -> tuple[Bytes, Offsets, Offsets]:
    """Normalise white space to space and line feed, remove invisible characters, replace bytes.

    Returns the text, its document ends and the number of U+FFFD in each document.
    """
    raw = text.tobytes()
    documents: list[bytes] = []
    replaced: list[int] = []
    for start, end in pairwise([0, *ends.tolist()]):
        document = raw[start:end].decode("utf-8", "replace")
        replaced.append(document.count(REPLACEMENT))
        documents.append(_NOT_PLAIN.sub(lambda found: _PLAIN[found[0]], document).encode())
    return *concatenated(documents), np.array(replaced, dtype=np.int64)


_HTML = re.compile(rb"<br ?/?>|&(?:[A-Za-z][A-Za-z0-9]{1,30}|#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6});")


def _without_html(text: Bytes, ends: Offsets) -> tuple[Bytes, Offsets]:
    """`text` with HTML entities and `<br>` decoded."""
    places = np.flatnonzero((text == ord("&")) | (text == ord("<")))
    raw = text.tobytes()
    matches = [match for place in places.tolist() if (match := _HTML.match(raw, place))]
    if not matches:
        return text, ends
    pieces: list[bytes] = []
    # How many bytes the text has shrunk by before each match ends, to move the document ends.
    shrunk = np.zeros(len(matches) + 1, dtype=np.int64)
    done = 0
    for index, match in enumerate(matches):
        markup = match.group()
        meaning = b"\n"  # of `<br>`
        if markup.startswith(b"&"):
            # An entity for a line break does not break a line; unprintable ones are removed.
            character = html.unescape(markup.decode())
            shown = " " if character.isspace() else character
            meaning = shown.encode("utf-8", "replace") if shown.isprintable() else b""
        pieces += (raw[done : match.start()], meaning)
        shrunk[index + 1] = shrunk[index] + len(markup) - len(meaning)
        done = match.end()
    pieces.append(raw[done:])
    before = np.searchsorted([match.end() for match in matches], ends, side="right")
    return np.frombuffer(b"".join(pieces), dtype=np.uint8), ends - shrunk[before]


def _collapse(text: Bytes, ends: Offsets, line_break: LineBreak) -> tuple[Bytes, Offsets]:
    """Collapse every run of white space into one line feed or one space.

    The only white space in `text` is space and line feed, and every document ends in a line feed.
    """
    if not len(text):
        return text, ends
    # All but the first of each run of white space is deleted; the first becomes the separator.
    white = text <= SPACE
    repeated = white.copy()
    repeated[1:] &= white[:-1]  # leading white space is deleted too
    deleted = np.flatnonzero(repeated)
    feeds = np.flatnonzero(text == LINE_FEED)
    runs = feeds  # start of the white space around each line feed; -1 before the text
    # Runs of adjacent deleted bytes: each run of white space begins one byte before its first.
    if len(deleted):
        new_run = np.diff(deleted, prepend=-2) != 1
        before = deleted[new_run][np.cumsum(new_run) - 1] - 1
        # A line feed that is itself deleted belongs to the run around it, else it is a run by
        # itself.
        index = np.minimum(np.searchsorted(deleted, feeds), len(deleted) - 1)
        runs = np.where(deleted[index] == feeds, before[index], feeds)
    # runs before the first text of the block end no line
    leading = int(np.count_nonzero(runs < 0))
    kept = runs[leading:]
    if line_break == "detect" and len(kept):
        begin = int(feeds[leading - 1]) + 1 if leading else 0
        kept = _paragraph_ends(text, ends, feeds[leading:], kept, begin=begin)
    collapsed = text.copy()
    collapsed[feeds] = SPACE
    collapsed[kept] = LINE_FEED
    collapsed[deleted] = 0  # the text itself contains no NUL
    left = collapsed.tobytes().translate(None, b"\0")  # faster than a NumPy mask
    return np.frombuffer(left, dtype=np.uint8), ends - np.searchsorted(deleted, ends)


def _paragraph_ends(
    text: Bytes, ends: Offsets, feeds: Offsets, runs: Offsets, *, begin: int
) -> Offsets:
    """The white-space runs with a line feed that end a paragraph instead of wrapping a line.

    The first line begins at `begin`; each of the L lines ends at a run.
    """
    # Several line feeds may share a run of white space: one line, and a blank one after it.
    first = np.flatnonzero(np.diff(runs, prepend=-1))
    at_L = runs[first]
    feeds_L = np.diff(np.append(first, len(feeds)))  # two or more: a blank line follows
    last_feed = feeds[np.append(first[1:], len(feeds)) - 1]
    begins_L = np.concatenate(([begin], last_feed[:-1] + 1))
    # width in characters, including indentation: all bytes but UTF-8 continuation bytes
    continuing = np.flatnonzero((text & 0xC0) == 0x80)
    width_L = (at_L - np.searchsorted(continuing, at_L)) - (
        begins_L - np.searchsorted(continuing, begins_L)
    )
    document_L = np.searchsorted(ends, at_L, side="right")
    lines = np.bincount(document_L, minlength=len(ends))
    wide = np.bincount(document_L, weights=width_L > WRAPPED_WIDTH, minlength=len(ends))
    full = np.bincount(document_L, weights=width_L >= SHORT_LINE, minlength=len(ends))
    # Hard-wrapped: hardly any line is too wide, and most are full.
    wrapped = (wide <= LONG_LINES_ALLOWED * lines) & (full >= FULL_LINES_NEEDED * lines)
    # A document's last line, a line before a blank one and a short line end paragraphs in any case.
    last_L = np.append(document_L[1:] != document_L[:-1], True)
    stays_L = ~wrapped[document_L] | last_L | (feeds_L > 1) | (width_L < SHORT_LINE)
    kept: Offsets = at_L[stays_L]
    return kept
