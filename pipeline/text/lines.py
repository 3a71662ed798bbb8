"""White space: which line breaks mean something, and nothing else kept.

In:  text whose only white space is the space and the line feed; every document ends in a line feed.
Out: lines without surrounding spaces, single spaces inside, no empty lines; a line feed stands only
     where a sentence or paragraph ends.

Hard-wrapped text (old books, documentation) is told from one paragraph a line by its line lengths,
document by document, so that the same document is read alike wherever it stands.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.readers.documents import Bytes, LineBreak, Offsets

SPACE, LINE_FEED = 0x20, 0x0A
_DOOMED = 0x00

WRAPPED_WIDTH = 100
"""Characters: hard-wrapped text hardly has a longer line."""
SHORT_LINE = 40
"""Characters: a shorter line was not broken for want of room, so its break means something."""
LONG_LINES_ALLOWED = 0.02
"""Share of longer lines in hard-wrapped text (addresses, tables)."""
FULL_LINES_NEEDED = 0.5
"""Share of lines of at least `SHORT_LINE` characters in hard-wrapped text."""

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Breaks:
    """The runs of white space that hold a line feed.

    at:    first byte of the run; the line ends before it.
    lines: line feeds in it; two are a blank line.
    width: characters of the line before it, indentation included.
    """

    at: Offsets
    lines: Offsets
    width: Offsets


def collapse(text: Bytes, ends: Offsets, line_break: LineBreak) -> tuple[Bytes, Offsets]:
    """`text` with every run of white space made one line feed or one space, and moved ends."""
    if not len(text):
        return text, ends
    white = text <= SPACE
    repeated = white.copy()
    repeated[1:] &= white[:-1]  # the first byte of the text counts as following white space
    doomed = np.flatnonzero(repeated)
    feeds = np.flatnonzero(text == LINE_FEED)
    runs = _run_starts(feeds, doomed)
    leading = int(np.count_nonzero(runs < 0))
    kept = runs[leading:]
    if line_break == "detect" and len(kept):
        begin = int(feeds[leading - 1]) + 1 if leading else 0
        kept = _meaningful(_breaks(text, feeds[leading:], kept, begin=begin), ends)
    collapsed = text.copy()
    collapsed[feeds] = SPACE
    collapsed[kept] = LINE_FEED
    return delete(collapsed, ends, doomed)


def delete(text: Bytes, ends: Offsets, places: Offsets) -> tuple[Bytes, Offsets]:
    """NUL-free `text` without the bytes at the ascending `places`, and the ends moved along."""
    if not len(places):
        return text, ends
    text = text.copy()
    text[places] = _DOOMED
    left = text.tobytes().translate(None, bytes([_DOOMED]))  # faster than NumPy's own selection
    return np.frombuffer(left, dtype=np.uint8), ends - np.searchsorted(places, ends)


def _run_starts(feeds: Offsets, doomed: Offsets) -> Offsets:
    """Where the run of white space that holds each line feed begins; -1 at the text's beginning.

    `doomed` are the bytes of runs but their first ones, so only sparse arrays are needed.
    """
    if not len(doomed):
        return feeds
    new_run = np.diff(doomed, prepend=-2) != 1
    before = doomed[new_run][np.cumsum(new_run) - 1] - 1
    index = np.minimum(np.searchsorted(doomed, feeds), len(doomed) - 1)
    starts: Offsets = np.where(doomed[index] == feeds, before[index], feeds)
    return starts


def _meaningful(breaks: _Breaks, ends: Offsets) -> Offsets:
    """The breaks that do more than wrap a paragraph."""
    document = np.searchsorted(ends, breaks.at, side="right")
    wrapped = _wrapped(document, breaks.width, len(ends))[document]
    last = np.append(document[1:] != document[:-1], True)
    stays = ~wrapped | last | (breaks.lines > 1) | (breaks.width < SHORT_LINE)
    kept: Offsets = breaks.at[stays]
    return kept


def _breaks(text: Bytes, feeds: Offsets, runs: Offsets, *, begin: int) -> _Breaks:
    """The runs with line feeds; the first line begins at `begin`."""
    first = np.flatnonzero(np.diff(runs, prepend=-1))
    at = runs[first]
    last_feed = feeds[np.append(first[1:], len(feeds)) - 1]
    begins = np.concatenate(([begin], last_feed[:-1] + 1))
    return _Breaks(at, np.diff(np.append(first, len(feeds))), _characters(text, begins, at))


def _characters(text: Bytes, starts: Offsets, stops: Offsets) -> Offsets:
    """Characters between two places: bytes that do not continue one."""
    continuing = np.flatnonzero((text & 0xC0) == 0x80)
    before_stops: Offsets = np.searchsorted(continuing, stops)
    before_starts: Offsets = np.searchsorted(continuing, starts)
    widths: Offsets = (stops - before_stops) - (starts - before_starts)
    return widths


def _wrapped(document: Offsets, width: Offsets, documents: int) -> Mask:
    """Which documents are hard-wrapped, from the widths of their lines."""
    lines = np.bincount(document, minlength=documents)
    wide = np.bincount(document, weights=width > WRAPPED_WIDTH, minlength=documents)
    full = np.bincount(document, weights=width >= SHORT_LINE, minlength=documents)
    wrapped: Mask = (wide <= LONG_LINES_ALLOWED * lines) & (full >= FULL_LINES_NEEDED * lines)
    return wrapped
