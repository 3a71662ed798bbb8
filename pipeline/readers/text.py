"""Plain text: one document a file.

In:  files of text, compressed or not.
Out: one document each; of a file larger than `LONGEST_DOCUMENT` one for each such part, so that
     memory stays bounded whatever the file.
"""

from collections.abc import Iterator

from pipeline.config import SourceConfig
from pipeline.readers.compression import stream
from pipeline.readers.documents import LONGEST_DOCUMENT, DocumentBlock, Piece, Reader, cut, pack


def read(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The file's whole content."""
    yield from pack(_parts(stream(piece.path)))


def _parts(chunks: Iterator[bytes]) -> Iterator[tuple[int, bytes]]:
    position = 0
    rest = b""
    for chunk in chunks:
        rest += chunk
        while len(rest) > LONGEST_DOCUMENT:
            end = cut(rest)
            yield position, rest[:end]
            position, rest = position + end, rest[end:]
    if rest or not position:
        yield position, rest


READER = Reader(read=read, line_break="detect")
