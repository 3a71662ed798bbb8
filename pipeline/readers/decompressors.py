"""Decompressors in one form, that of `bz2` and `lzma`: what comes out at once is bounded.

In:  compressed bytes, and how many bytes may come out of them at once.
Out: content; `needs_input` says that nothing more waits inside, `eof` that the end mark was met.

A kilobyte can stand for a gigabyte.
"""

import zlib
from typing import Protocol

import zstandard

ZSTD_BYTES = 1 << 9
"""What zstd is given at a time; one byte of it can stand for 32,768."""


class Decompressor(Protocol):
    """One stream."""

    @property
    def eof(self) -> bool:
        """Whether its end mark was met."""

    @property
    def needs_input(self) -> bool:
        """Whether everything has come out that was put in."""

    @property
    def unused_data(self) -> bytes:
        """What was put in behind the end mark."""

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Put `data` in, take about `max_length` bytes out at most."""


class Gzip:
    """zlib's decompressor, which gives back what it has not read yet."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        """Whether the end mark was met."""
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        """What was put in behind the end mark."""
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Put `data` in, take `max_length` bytes out at most."""
        content = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(content) < max_length
        return content


class Zstd:
    """zstd's decompressor, which knows no limit and so gets little at a time."""

    def __init__(self) -> None:
        self._inner = zstandard.ZstdDecompressor().decompressobj()
        self._waiting = memoryview(b"")

    @property
    def eof(self) -> bool:
        """Whether the end mark was met."""
        return self._inner.eof

    @property
    def needs_input(self) -> bool:
        """Whether everything has come out that was put in."""
        return not self._waiting

    @property
    def unused_data(self) -> bytes:
        """What was put in behind the end mark."""
        return self._inner.unused_data + bytes(self._waiting)

    def decompress(self, data: bytes, max_length: int) -> bytes:
        """Put `data` in, take out hardly more than `max_length` bytes."""
        self._waiting = memoryview(bytes(self._waiting) + data)
        contents: list[bytes] = []
        left = max_length
        while self._waiting and left > 0 and not self.eof:
            some, self._waiting = self._waiting[:ZSTD_BYTES], self._waiting[ZSTD_BYTES:]
            contents.append(self._inner.decompress(some))
            left -= len(contents[-1])
        return b"".join(contents)
