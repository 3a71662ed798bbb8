"""Web pages: HTML files, and the archives of crawls (WARC, and WET with their text).

In:  an HTML file; or a WARC file, whose responses of HTML and text and whose conversions to text
     are documents. Compressed or not.
Out: the main content of each page, one paragraph per line.

Both formats are read by well-kept libraries, the extra `web`: warcio, and resiliparse for HTML,
which parses as browsers do and leaves out scripts, styles, menus and footers.
"""

import io
import re
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from cloze.artifacts.arrays import concatenated
from cloze.artifacts.errors import ClozeError, IntegrityError, UsageError
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.compression import stream, unpacked
from cloze.pipeline.readers.documents import (
    MAX_RECORD_BYTES,
    BrokenRecord,
    DocumentBlock,
    Piece,
    Reader,
    pack,
)

BLOCK_TAG = re.compile(
    rb"<(?:script|style|/(?:p|div|body|html|li|ul|td|table|span|a|h[1-6]))\b", re.IGNORECASE
)
"""Tags of pages, unlike `<br>`, `<b>` and `<i>` in otherwise plain text."""


def read_html(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The main content of the page."""
    page = b"".join(_bounded(stream(piece.path), piece.path)).decode("utf-8", "replace")
    yield from pack([(0, shown_text(page, main_content=True))])


def shown_text(page: str, *, main_content: bool) -> bytes | BrokenRecord:
    """The text that a browser shows of an HTML page, or only its main content."""
    html2text = _library("resiliparse.extract.html2text")
    options = {"alt_texts": False, "list_bullets": False}
    try:
        text = html2text.extract_plain_text(page, main_content=main_content, **options)
        # Its main content was not found: better menus than no text.
        if main_content and not text.strip():
            text = html2text.extract_plain_text(page, **options)
    except BaseException as error:
        if type(error).__name__ != "PanicException" and not isinstance(error, Exception):
            raise
        return BrokenRecord(f"HTML that cannot be parsed ({error})")  # Rust's panics included
    return bytes(text.encode("utf-8", "replace"))


def without_tags(block: DocumentBlock) -> DocumentBlock:
    """Documents with tags of blocks or scripts as a browser shows them; the others as they are.

    A document that cannot be parsed becomes a broken record.
    """
    # One search over the whole block settles the usual case, in which no document has tags.
    if not BLOCK_TAG.search(block.text.tobytes()):
        return block
    found = [
        (position, _shown(raw) if BLOCK_TAG.search(raw) else raw)
        for position, raw in block.documents()
    ]
    texts = [b"\n" if isinstance(text, BrokenRecord) else text for _, text in found]
    texts = [text if text.endswith(b"\n") else text + b"\n" for text in texts]
    broken = {n: text.why for n, (_, text) in enumerate(found) if isinstance(text, BrokenRecord)}
    return DocumentBlock(*concatenated(texts), block.positions, {**block.broken, **broken})


def _shown(raw: bytes) -> bytes | BrokenRecord:
    return shown_text(raw.decode("utf-8", "replace"), main_content=False)


def read_warc(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The pages and texts of the archive; a position is the number of the record.

    `piece.stop` counts decompressed bytes: records that begin there or behind it are left out.
    """
    yield from pack(_texts(piece.path, piece.stop))


def _texts(path: str, stop: int | None) -> Iterator[tuple[int, bytes | BrokenRecord]]:
    archives = _library("warcio.archiveiterator")
    archive = archives.ArchiveIterator(io.BufferedReader(_File(unpacked(path))))
    found = 0
    try:
        for number, record in enumerate(archive):
            if stop is not None and archive.offset >= stop:
                break
            found += 1
            # Requests and metadata are no documents.
            if record.rec_type in ("response", "resource", "conversion"):
                text = _text(record)
                if text is not None:
                    yield number, text
    except ClozeError:
        raise
    except Exception as error:  # warcio checks little: headers without an address, for example
        raise IntegrityError(
            f"{path}: damaged after {found} records ({str(error).strip()}); copy it again"
        ) from None
    if not found:
        raise UsageError(f"{path}: no WARC record in it; expected a WARC or WET file")


def _text(record: Any) -> bytes | BrokenRecord | None:
    """The text of a record; None if it is neither HTML nor text."""
    headers = record.http_headers or record.rec_headers
    kind, _, parameters = (headers.get_header("Content-Type") or "").lower().partition(";")
    if kind.strip() not in ("text/html", "application/xhtml+xml", "text/plain"):
        return None
    # One byte more than is allowed tells a page that is too long from one that just fits.
    content = record.content_stream().read(MAX_RECORD_BYTES + 1)
    if len(content) > MAX_RECORD_BYTES:
        return BrokenRecord(f"more than {MAX_RECORD_BYTES:,} bytes, the limit for one page")
    encoding = _library("resiliparse.parse.encoding")
    # As browsers do: what the server declares comes first, and only where it is silent is the
    # encoding guessed.
    declared = parameters.partition("charset=")[2].strip(" \"';")
    page = encoding.bytes_to_str(content, declared or encoding.detect_encoding(content))
    if kind.strip() == "text/plain":
        return bytes(page.encode("utf-8", "replace"))
    return shown_text(page, main_content=True)


def _library(name: str) -> Any:
    """A module of the extra; `UsageError` where it is not installed."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UsageError(
            f"{name.partition('.')[0]} is not installed, which reads web pages; "
            "pip install 'cloze-encoder[web]'"
        ) from None


def _bounded(chunks: Iterator[bytes], path: str) -> Iterator[bytes]:
    size = 0
    for chunk in chunks:
        size += len(chunk)
        if size > MAX_RECORD_BYTES:
            raise UsageError(f"{path}: a page of more than {MAX_RECORD_BYTES:,} bytes, the limit")
        yield chunk


class _File(io.RawIOBase):
    """Chunks of bytes as a file."""

    def __init__(self, chunks: Iterator[bytes]) -> None:
        self._chunks, self._rest = chunks, memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._rest:
            chunk = next(self._chunks, None)
            if chunk is None:
                return 0
            self._rest = memoryview(chunk)
        size = min(len(buffer), len(self._rest))
        buffer[:size], self._rest = self._rest[:size], self._rest[size:]
        return size


HTML = Reader(read=read_html, line_break="paragraph")
WARC = Reader(read=read_warc, line_break="paragraph", is_encoded=False, unit="document")
