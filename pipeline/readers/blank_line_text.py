"""Plain text with several documents a file, separated by blank lines.

In:  files of text, compressed or not; a blank line is one of nothing but white space.
Out: the documents between them.
"""

from collections.abc import Iterator

import numpy as np

from pipeline.config import SourceConfig
from pipeline.readers.documents import DocumentBlock, Offsets, Piece, Reader
from pipeline.readers.scanning import scan

_LINE_FEED, _SPACE = 0x0A, 0x20


def document_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Where a line that is not blank follows a blank one, or is the first."""
    text = np.frombuffer(buffer, dtype=np.uint8)
    feeds = np.flatnonzero(text == _LINE_FEED)
    starts = np.concatenate(([0], feeds + 1))
    starts = starts[starts < len(text)]
    blank = text[starts] <= _SPACE
    for line in np.flatnonzero(blank & (text[starts] != _LINE_FEED)).tolist():
        blank[line] = not buffer[starts[line] : _end(feeds, line, len(text))].strip()
    told = ~blank
    told[1:] &= blank[:-1]
    told[:1] &= at_beginning
    if at_beginning and len(blank):
        told[np.flatnonzero(~blank)[:1]] = True
    return starts[told]


def _end(feeds: Offsets, line: int, size: int) -> int:
    return int(feeds[line]) if line < len(feeds) else size


def read(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents that begin in the piece."""
    yield from scan(piece, document_starts, cuttable=True)


READER = Reader(read=read, line_break="detect", splittable=True)
