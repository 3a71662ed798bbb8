"""Plain text: one document a file, or several between blank lines.

In:  files of text, compressed or not; a blank line holds only white space.
Out: documents. In Google's input format each of their lines is a sentence that is given and not cut
     again (reference: create_pretraining_data.py:179-206).
"""

from collections.abc import Iterator

import numpy as np

from artifacts.arrays import Offsets
from pipeline.config.settings import SourceConfig
from pipeline.readers.compression import stream
from pipeline.readers.documents import LONGEST_DOCUMENT, DocumentBlock, Piece, Reader, cut, pack
from pipeline.readers.scanning import scan

_LINE_FEED, _SPACE = 0x0A, 0x20


def read_file(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The file's whole content as one document.

    A file larger than `LONGEST_DOCUMENT` is several, so that memory stays bounded.
    """

    def parts() -> Iterator[tuple[int, bytes]]:
        position = 0
        rest = b""
        for chunk in stream(piece.path):
            rest += chunk
            while len(rest) > LONGEST_DOCUMENT:
                end = cut(rest)
                yield position, rest[:end]
                position, rest = position + end, rest[end:]
        if rest or not position:
            yield position, rest

    yield from pack(parts())


def read_blank_line_text(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents between blank lines that begin in the piece."""
    yield from scan(piece, block_starts, cuttable=True)


def block_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Where a line that is not blank follows a blank one, or is the first."""
    text = np.frombuffer(buffer, dtype=np.uint8)
    feeds = np.flatnonzero(text == _LINE_FEED)
    starts = np.concatenate(([0], feeds + 1))
    starts = starts[starts < len(text)]
    ends = np.append(feeds, len(text))
    blank = text[starts] <= _SPACE
    for line in np.flatnonzero(blank & (text[starts] != _LINE_FEED)).tolist():
        blank[line] = not buffer[starts[line] : ends[line]].strip()
    begins = ~blank
    begins[1:] &= blank[:-1]
    begins[:1] &= at_beginning
    if at_beginning and len(blank):
        begins[np.flatnonzero(~blank)[:1]] = True
    return starts[begins]


TEXT = Reader(read=read_file, line_break="detect")
BLANK_LINE_TEXT = Reader(read=read_blank_line_text, line_break="detect", splittable=True)
SENTENCE_LINES = Reader(read=read_blank_line_text, line_break="sentence", splittable=True)
