"""Files as streams of bytes: decompressed, checked to their end, converted to UTF-8.

In:  a path or URL, and a byte to begin at (0 for compressed files).
Out: chunks of bytes; `IntegrityError` where a compressed file is damaged or cut short.

A file's first bytes say what it is. Several streams in one file (parallel gzip and bzip2,
Wikipedia's multistream dumps) are read one after another. A kilobyte can unpack to a gigabyte, so
the output of one call is bounded.

The standard library's file objects would be shorter, but those for bzip2 and xz take whatever
follows an end mark for padding: a dump whose second stream is damaged would pass for a short one.
Here a stream without its end mark, and bytes behind one, are errors.
"""

import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import IO, Protocol

import zstandard

from artifacts.errors import IntegrityError, UsageError
from artifacts.filesystem import open_to_read
from pipeline.readers.encodings import DECLARED, HEAD_BYTES, UTF_8, encoding_of

READ_BYTES = 1 << 20
"""Read at a time, and also what may come out of a compressed file at a time."""

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""These can only be read whole; a file with such a name must have that format."""

ZSTD_BYTES = 1 << 9
"""What zstd is given at a time; one byte of it can stand for 32,768."""

BOMB_BYTES = 64 << 20
BOMB_RATIO = 250
"""Beyond the first, about two seconds of work, what comes out may be so many times as long as what
went in. Prose shrinks to a fourth, logs and markup to a tenth or a hundredth, every version of
every article of Wikipedia to a hundredth; bombs go to a thousandth (gzip) or a 30,000th (zstd)."""

_DAMAGE = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError)


class _Decompressor(Protocol):
    """One compressed stream, in the form that `bz2` and `lzma` give it."""

    @property
    def eof(self) -> bool:
        """Whether the end mark was met."""

    @property
    def needs_input(self) -> bool:
        """Whether all input has been decompressed."""

    @property
    def unused_data(self) -> bytes:
        """Input after the end mark."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Decompress `data`, to about `max_length` bytes at most."""


class _Gzip:
    """zlib's decompressor, which returns the input that it has not consumed."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        content = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(content) < max_length
        return content


class _Zstd:
    """zstd's decompressor, which takes no limit and so is fed little at a time."""

    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor().decompressobj()
        self._waiting = memoryview(b"")

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        return not self._waiting

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data + bytes(self._waiting)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        self._waiting = memoryview(bytes(self._waiting) + data)
        contents: list[bytes] = []
        left = max_length
        while self._waiting and left > 0 and not self.eof:
            some, self._waiting = self._waiting[:ZSTD_BYTES], self._waiting[ZSTD_BYTES:]
            contents.append(self._inner.decompress(some))
            left -= len(contents[-1])
        return b"".join(contents)


_BZIP2_MARKS = tuple(
    b"BZh%d%b" % (level, block)
    for level in range(1, 10)
    for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
)
"""Level and the first block's mark, or the end's of an empty file; a text may begin with "BZh"."""

_FORMATS: dict[bytes, tuple[str, Callable[[], _Decompressor]]] = {
    b"\x1f\x8b": (".gz", _Gzip),
    **dict.fromkeys(_BZIP2_MARKS, (".bz2", bz2.BZ2Decompressor)),
    b"\xfd7zXZ\x00": (".xz", lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ)),
    b"\x28\xb5\x2f\xfd": (".zst", _Zstd),
}


def stream(
    path: str, start: int = 0, *, lookback: int = 0, at_a_time: int = READ_BYTES
) -> Iterator[bytes]:
    """The content of a file from `lookback` bytes before `start` on, read `at_a_time` bytes.

    A file that is compressed or not UTF-8 has no meaningful middle: `start` > 0 gives nothing
    there, because whoever reads from 0 reads all of it. Archives, which hold files, and bombs:
    a `UsageError`; other files that hold no text: a `NotText`.
    """
    with open_to_read(path) as file:
        content = _look(file, path, at_a_time)
        if start and not content.can_be_cut:
            return
        if start:
            file.seek(start - lookback)
        if content.encoding == UTF_8:
            yield from content.chunks
            return
        decoder = codecs.getincrementaldecoder(content.encoding)(errors="replace")
        for chunk in content.chunks:
            yield decoder.decode(chunk).encode()
        yield decoder.decode(b"", final=True).encode()


def converted_from(path: str) -> str:
    """The encoding that a file's text was found to be in; empty if it is UTF-8 or has a mark."""
    with open_to_read(path) as file:
        encoding = _look(file, path, READ_BYTES).encoding
    return "" if encoding in DECLARED else encoding


def require_plausible_size(path: str, unpacked: int, packed: int) -> None:
    """`UsageError` where `unpacked` bytes from `packed` can only be a decompression bomb."""
    if unpacked > max(BOMB_BYTES, BOMB_RATIO * packed):
        raise UsageError(
            f"{path}: {packed:,} bytes unpack to {unpacked:,} and more, expected at most "
            f"{BOMB_RATIO} times as many, as of any text; if it is meant, unpack it yourself "
            "and name the result"
        )


def can_be_cut(path: str) -> bool:
    """Whether a file can be read from its middle: it is neither compressed nor converted."""
    with open_to_read(path) as file:
        return _look(file, path, READ_BYTES).can_be_cut


@dataclass(frozen=True)
class _Content:
    """What is in a file: `chunks` of bytes in an `encoding`."""

    chunks: Iterator[bytes]
    encoding: str
    can_be_cut: bool


def _look(file: IO[bytes], path: str, at_a_time: int) -> _Content:
    """The content of an open file, from its beginning."""
    head = file.read(HEAD_BYTES)
    file.seek(0)
    chunks: Iterator[bytes] = iter(lambda: file.read(at_a_time), b"")
    mark = next((mark for mark in _FORMATS if head.startswith(mark)), None)
    if head and mark is None and path.endswith(COMPRESSED_SUFFIXES):
        raise IntegrityError(
            f"{path}: begins with {head[:4].hex(' ')}, which is not the format its name "
            "promises; if it is plain text, rename it, otherwise copy it again"
        )
    if mark:
        chunks = _decompressed(chunks, path, *_FORMATS[mark])
        head = b""
        while len(head) < HEAD_BYTES and (chunk := next(chunks, b"")):
            head += chunk
        chunks = chain([head], chunks) if head else chunks
    encoding = encoding_of(head[:HEAD_BYTES], path)
    return _Content(chunks, encoding, can_be_cut=not mark and encoding == UTF_8)


def _decompressed(
    chunks: Iterator[bytes], path: str, suffix: str, decompressor: Callable[[], _Decompressor]
) -> Iterator[bytes]:
    """The content of the compressed streams in `chunks`, one after another."""
    current = decompressor()
    position = unpacked = 0
    for chunk in chunks:
        rest = chunk
        while rest or not (current.eof or current.needs_input):
            if current.eof:
                rest = rest.lstrip(b"\0")  # tapes and block devices pad with zeros
                if not rest:
                    break
                current = decompressor()
            try:
                content = current.decompress(rest, READ_BYTES)
            except _DAMAGE as error:
                raise IntegrityError(
                    f"{path}: damaged {suffix} data near byte {position}: {error}; copy it again"
                ) from None
            rest = current.unused_data if current.eof else b""
            unpacked += len(content)
            require_plausible_size(path, unpacked, position + len(chunk))
            if content:
                yield content
        position += len(chunk)
    if not current.eof:
        raise IntegrityError(
            f"{path}: the {suffix} data ends at byte {position} without its end mark: "
            "the file is cut short, copy it again"
        )
