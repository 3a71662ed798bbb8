"""WikiExtractor's files: `<doc id=… url=… title=…>`, title, paragraphs, `</doc>`.

In:  extracted Wikipedia, compressed or not.
Out: the articles' paragraphs, one a line. The title is left out like all headings (paper, A.2: only
     text passages); articles without text come out empty.
"""

import re
from collections.abc import Iterator

import numpy as np

from artifacts.errors import UsageError
from pipeline.config import SourceConfig
from pipeline.readers.documents import DocumentBlock, Offsets, Piece, Reader, pack
from pipeline.readers.scanning import is_beginning, scan

_MARK = b"<doc "
_TITLE = re.compile(rb' title="([^\n]*)"')
_END = b"</doc>"


def document_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Where a line begins with `<doc `."""
    starts = [match.end() - len(_MARK) for match in re.finditer(rb"\n<doc ", buffer)]
    if at_beginning and buffer.startswith(_MARK):
        starts.insert(0, 0)
    return np.array(starts, dtype=np.int64)


def read(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The articles that begin in the piece."""
    found = 0
    for block in scan(piece, document_starts, cuttable=False):
        found += len(block.ends)
        yield from pack(_bodies(block, path=piece.path))
    if not found and is_beginning(piece):
        raise UsageError(
            f"{piece.path}: no line begins with '<doc '; expected WikiExtractor's output, "
            "use reader jsonl for its --json form"
        )


def _bodies(block: DocumentBlock, *, path: str) -> Iterator[tuple[int, bytes]]:
    raw = block.text.tobytes()
    start = 0
    for end, position in zip(block.ends.tolist(), block.positions.tolist(), strict=True):
        feed = raw.find(b"\n", start, end)
        tag = raw[start:feed].rstrip()
        if not tag.endswith(b">"):
            raise UsageError(
                f"{path}: the <doc> tag at byte {position} does not end on its line; "
                "expected <doc id=… url=… title=…>"
            )
        close = raw.rfind(_END, feed, end)
        yield position, _without_title(raw[feed + 1 : end if close < 0 else close], tag)
        start = end


def _without_title(body: bytes, tag: bytes) -> bytes:
    title = _TITLE.search(tag)
    first, _, rest = body.partition(b"\n")
    return rest if title and first.strip() == title[1].strip() else body


READER = Reader(read=read, line_break="paragraph", splittable=True, from_html=True)
