"""MediaWiki's XML dumps: the text passages of articles.

In:  `pages-articles.xml`, compressed or not; UTF-16 too.
Out: a document for every page in the main namespace; redirects come out empty. Other namespaces
     (templates, talk, categories) hold no articles and give no documents.

The XML is not parsed: every page is found by its tags, so that damage costs one page and a dump can
be read from the middle.
"""

import html
import re
from collections.abc import Iterator

import numpy as np

from artifacts.errors import UsageError
from pipeline.config import SourceConfig
from pipeline.readers.documents import DocumentBlock, Offsets, Piece, Reader, pack
from pipeline.readers.scanning import is_beginning, scan
from pipeline.readers.wikitext import plain_text

_PAGE = re.compile(rb"<page>")
_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_TEXT = re.compile(rb"<text\b[^>]*?(?:/>|>(?P<text>.*?)</text>)", re.DOTALL)
_REDIRECT = re.compile(rb"<redirect\b")


def document_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Where a page begins."""
    return np.array([match.start() for match in _PAGE.finditer(buffer)], dtype=np.int64)


def read(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The articles that begin in the piece."""
    found = 0
    for block in scan(piece, document_starts, cuttable=False):
        found += len(block.ends)
        yield from pack(_articles(block))
    if not found and is_beginning(piece):
        raise UsageError(f"{piece.path}: no <page> in it; expected a MediaWiki XML dump")


def _articles(block: DocumentBlock) -> Iterator[tuple[int, bytes]]:
    raw = block.text.tobytes()
    start = 0
    for end, position in zip(block.ends.tolist(), block.positions.tolist(), strict=True):
        page = raw[start:end]
        start = end
        namespace = _NAMESPACE.search(page)
        if namespace is None or int(namespace[1]) == 0:
            yield position, b"" if _REDIRECT.search(page) else _article(page)


def _article(page: bytes) -> bytes:
    text = _TEXT.search(page)
    if text is None or text["text"] is None:
        return b""
    return plain_text(html.unescape(text["text"].decode("utf-8", "replace"))).encode()


READER = Reader(read=read, line_break="paragraph", splittable=True, from_html=True)
