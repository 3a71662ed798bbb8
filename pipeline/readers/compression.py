"""Files as streams of bytes: decompressed, whole to the end, UTF-16 turned into UTF-8.

In:  a path or URL, and a byte to begin at (0 for compressed files).
Out: chunks of bytes; `IntegrityError` where a compressed file is damaged or cut short.

What a file is, its first bytes say. Beam's own reading, like several libraries, takes a truncated
archive for a short one; here a stream without its end mark is an error. Several streams in one file
(parallel gzip and bzip2, Wikipedia's multistream dumps) are read one after another.
"""

import bz2
import codecs
import lzma
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

import fsspec
import zstandard

from artifacts.errors import IntegrityError, UsageError
from pipeline.readers.decompressors import Decompressor, Gzip, Zstd

READ_BYTES = 1 << 20
"""Read at a time, and also what may come out of a compressed file at a time."""

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""Only whole files can be read of these; what is called so must be so."""

_FORMATS: dict[bytes, tuple[str, Callable[[], Decompressor]]] = {
    b"\x1f\x8b": (".gz", Gzip),
    b"BZh": (".bz2", bz2.BZ2Decompressor),
    b"\xfd7zXZ\x00": (".xz", lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ)),
    b"\x28\xb5\x2f\xfd": (".zst", Zstd),
}
_DAMAGE = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError)
_LONGEST_MAGIC = 6
_UTF_16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


def stream(
    path: str, start: int = 0, *, lookback: int = 0, at_a_time: int = READ_BYTES
) -> Iterator[bytes]:
    """The content of a file from `lookback` bytes before `start` on, read `at_a_time` bytes.

    A compressed or UTF-16 file has no meaningful middle: `start` > 0 gives nothing there, because
    whoever reads from 0 reads all of it.
    """
    with fsspec.open(path, "rb") as file:
        magic = file.read(_LONGEST_MAGIC)
        suffix, decompressor = _format(path, magic)
        whole = bool(suffix) or magic.startswith(_UTF_16_MARKS)
        if whole and start:
            return
        file.seek(start - lookback)
        chunks = _chunks(file, at_a_time)
        if decompressor:
            chunks = _decompress(path, chunks, suffix=suffix, decompressor=decompressor)
        first = next(chunks, b"")
        _refuse_archive(path, first)
        yield from _as_utf_8(chain([first], chunks))


def _refuse_archive(path: str, first: bytes) -> None:
    """Archives hold files, not text; they are never unpacked here."""
    if first.startswith(b"PK\x03\x04") or first[257:262] == b"ustar":
        raise UsageError(
            f"{path}: an archive of files; unpack it and name the folder, or its files one by one"
        )


def _format(path: str, magic: bytes) -> tuple[str, Callable[[], Decompressor] | None]:
    """What the first bytes say a file is; an error if its name says otherwise."""
    for mark, (suffix, decompressor) in _FORMATS.items():
        if magic.startswith(mark):
            return suffix, decompressor
    if magic and path.endswith(COMPRESSED_SUFFIXES):
        raise IntegrityError(
            f"{path}: begins with {magic[:4].hex(' ')}, which is not the format its name promises; "
            "if it is plain text, rename it, otherwise copy it again"
        )
    return "", None


def _chunks(file: Any, at_a_time: int) -> Iterator[bytes]:
    while chunk := file.read(at_a_time):
        yield chunk


def _decompress(
    path: str, chunks: Iterator[bytes], *, suffix: str, decompressor: Callable[[], Decompressor]
) -> Iterator[bytes]:
    current = decompressor()
    position = 0
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
            if content:
                yield content
        position += len(chunk)
    if not current.eof:
        raise IntegrityError(
            f"{path}: the {suffix} data ends at byte {position} without its end mark: "
            "the file is cut short, copy it again"
        )


def _as_utf_8(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """The same chunks, or their UTF-8 if they begin with UTF-16's byte order mark."""
    first = next(chunks, b"")
    if not first.startswith(_UTF_16_MARKS):
        if first:
            yield first
        yield from chunks
        return
    decoder = codecs.getincrementaldecoder("utf-16")(errors="replace")
    yield decoder.decode(first).encode()
    for chunk in chunks:
        yield decoder.decode(chunk).encode()
    yield decoder.decode(b"", final=True).encode()
