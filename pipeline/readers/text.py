"""Plain text.

In:  files of text, compressed or not: one document per file, or documents separated by blank lines
     (lines of only white space count as blank). In Google's input format every line of a document
     is a sentence and is not split again (reference: create_pretraining_data.py:179-206).
Out: blocks of whole documents, in file order.
"""

from collections.abc import Iterator

import numpy as np

from cloze.artifacts.arrays import Offsets
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.documents import DocumentBlock, Piece, Reader, scan

_LINE_FEED, _SPACE = 0x0A, 0x20


def read_file(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The whole file as one document, or as several if it exceeds `MAX_DOCUMENT_BYTES`."""
    yield from scan(piece, file_start, cuttable=True)


def file_start(buffer: bytes, at_beginning: bool) -> Offsets:
    """The beginning of the file."""
    return np.zeros(int(at_beginning), dtype=np.int64)


def read_blank_line_text(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents of the piece, separated by blank lines."""
    yield from scan(piece, block_starts, cuttable=True)


def block_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Starts of non-blank lines that come first or follow a blank line."""
    text = np.frombuffer(buffer, dtype=np.uint8)
    feeds = np.flatnonzero(text == _LINE_FEED)
    starts = np.concatenate(([0], feeds + 1))
    starts = starts[starts < len(text)]
    ends = np.append(feeds, len(text))
    blank = text[starts] <= _SPACE
    # Lines that begin with white space may hold more: only these are looked at as a whole.
    for line in np.flatnonzero(blank & (text[starts] != _LINE_FEED)).tolist():
        blank[line] = not buffer[starts[line] : ends[line]].strip()
    begins = ~blank
    # A document begins at a line with text after a blank one, or at the beginning of the file.
    begins[1:] &= blank[:-1]
    begins[:1] &= at_beginning
    if at_beginning and len(blank):
        begins[np.flatnonzero(~blank)[:1]] = True
    return starts[begins]


TEXT = Reader(read=read_file)
BLANK_LINE_TEXT = Reader(read=read_blank_line_text, splittable=True)
SENTENCE_LINES = Reader(read=read_blank_line_text, line_break="sentence", splittable=True)
