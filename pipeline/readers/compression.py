"""Files as streams of UTF-8: decompressed, checked for truncation, decoded from any encoding.

In:  a path or URL, and a byte offset (0 for compressed files).
Out: chunks of bytes; `IntegrityError` for damaged or truncated compressed files, `NotText` and
     `UsageError` for files that hold no text.

The compression format is recognised by the first bytes. Concatenated streams (parallel gzip and
bzip2, Wikipedia's multistream dumps) are read in sequence. The output of each call is bounded,
because a kilobyte can unpack to a gigabyte. The standard library's file objects would be shorter,
but for bzip2 and xz they treat anything after an end mark as padding, so a dump with a damaged
second stream would silently be truncated. Here a missing end mark and trailing garbage are errors.

UTF-16 and UTF-32 are recognised by their byte order mark or by the position of zero bytes; other
text that is not UTF-8 is read as it declares (HTML, XML), or as charset-normalizer finds likeliest.
UTF-8 with a few broken characters is still UTF-8, as is all JSON: cleaning replaces and counts
them.
"""

import bz2
import codecs
import lzma
import re
import zlib
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from typing import IO

import zstandard
from charset_normalizer import from_bytes

from cloze.artifacts.errors import IntegrityError, NotText, UsageError
from cloze.artifacts.filesystem import open_to_read, require_plausible_size

READ_BYTES = 1 << 20
"""Bytes read at a time, and the limit on the output of one decompression call."""

COMPRESSED_SUFFIXES = (".gz", ".bz2", ".xz", ".zst")
"""Files with these suffixes must have that format; they cannot be split."""

ZSTD_BYTES = 1 << 9
"""Bytes fed to zstd at a time; one byte can expand to 32,768."""

_DAMAGE = (zlib.error, lzma.LZMAError, zstandard.ZstdError, OSError, EOFError)


class _Gzip:
    """zlib's decompressor with the interface of `bz2` and `lzma`."""

    def __init__(self) -> None:
        # 31: zlib's largest window, and a gzip header and trailer around the data
        self._inner = zlib.decompressobj(wbits=31)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        # zlib keeps what it has read but not unpacked; it comes first in the next call.
        content = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self.needs_input = len(content) < max_length
        return content


class _Zstd:
    """zstd's decompressor with the interface of `bz2` and `lzma`.

    It takes no output limit, so it is fed a few bytes at a time.
    """

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
        # Each turn adds at most 512 × 32,768 bytes to the limit (`ZSTD_BYTES`).
        while self._waiting and left > 0 and not self.eof:
            some, self._waiting = self._waiting[:ZSTD_BYTES], self._waiting[ZSTD_BYTES:]
            contents.append(self._inner.decompress(some))
            left -= len(contents[-1])
        return b"".join(contents)


_Decompressor = bz2.BZ2Decompressor | lzma.LZMADecompressor | _Gzip | _Zstd

_BZIP2_SIGNATURES = tuple(
    b"BZh%d%b" % (level, block)
    for level in range(1, 10)
    for block in (b"1AY&SY", b"\x17\x72\x45\x38\x50\x90")
)
"""Level and the mark of the first block, or of the end; "BZh" alone may begin a text file."""

_FORMATS: dict[bytes, tuple[str, Callable[[], _Decompressor]]] = {
    b"\x1f\x8b": (".gz", _Gzip),
    **dict.fromkeys(_BZIP2_SIGNATURES, (".bz2", bz2.BZ2Decompressor)),
    b"\xfd7zXZ\x00": (".xz", lambda: lzma.LZMADecompressor(format=lzma.FORMAT_XZ)),
    b"\x28\xb5\x2f\xfd": (".zst", _Zstd),
}


HEAD_BYTES = 1 << 16
"""Decompressed bytes that show whether a file is UTF-8."""
DOUBTFUL_BYTES = 1 << 20
"""The same if they do not look like it: a few broken characters prove little."""
GUESS_BYTES = 1 << 16
"""Bytes, around the first that is not UTF-8, from which another encoding is guessed."""

UTF_8 = "utf-8"
DECLARED = (UTF_8, "utf-16", "utf-32")
"""Encodings that need no guess: UTF-8, and those with a byte order mark."""

_BYTE_ORDER_MARKS = {  # UTF-32's little-endian mark begins with UTF-16's
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_WIDE_ZEROS = {
    (1, 3, 5, 7): "utf-16-le",
    (0, 2, 4, 6): "utf-16-be",
    (1, 2, 3, 5, 6, 7): "utf-32-le",
    (0, 1, 2, 4, 5, 6): "utf-32-be",
}
"""Positions of zeros in the first eight bytes of Latin text without a byte order mark."""

_LATIN = {"cp1252": 0.0, "cp1258": 0.1, "cp1254": 0.005, "cp1250": 0.02, "iso8859_2": 0.02}
"""Encodings of Latin letters, which share most of their bytes: how much better than cp1252 each
must fit."""
_LEGACY = (
    *_LATIN,
    *("cp1251", "koi8_r", "iso8859_5", "cp866", "cp1253", "cp1255", "cp1256", "iso8859_6"),
    *("tis_620", "gb18030", "big5", "cp932", "euc_jp", "cp949"),
)
"""Candidates for non-Unicode text, most likely first. Latin-1, Shift JIS, EUC-KR, GB 2312 and other
variants are subsets of these."""

TURKISH = 0.1
"""How much worse cp1252 fits a text with Icelandic letters that is not Icelandic."""
MESS_WEIGHT = 6
"""Weight of charset-normalizer's mess against its coherence: with 6, 413 of the 424 files that the
detector chardet is tested with are read correctly, with mess alone 311."""

_ESCAPES = {b"\x1b$B": "iso2022_jp_ext", b"\x1b$@": "iso2022_jp_ext", b"\x1b$)C": "iso2022_kr"}
"""Encodings of seven bits, recognised by their escape sequences."""

_DECLARATION = re.compile(rb"""(?:charset|encoding)\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
_SUPERSETS = {"iso8859-1": "cp1252", "ascii": "cp1252", "shift_jis": "cp932"} | {
    **{"gb2312": "gb18030", "gbk": "gb18030", "euc_kr": "cp949", "iso8859-9": "cp1254"}
}
"""What a declared encoding means in practice, as browsers read it."""

_BINARY_SIGNATURES = (
    *(b"%PDF-", b"\x89PNG", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"),
    *(b"RIFF", b"OggS", b"ID3", b"fLaC", b"\x7fELF", b"\xca\xfe\xba\xbe", b"{\\rtf"),
    *(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"SQLite format 3\0", b"wOFF", b"wOF2"),
    *(b"PAR1", b"ARROW1", b"\x93NUMPY", b"\x80\x04\x95"),
)
"""Office documents, images, audio, executables, fonts and tables."""

MAX_ZERO_SHARE = 0.1
"""Share of zero bytes above which a file that is not UTF-16 or UTF-32 is binary."""

MIN_BROKEN_BYTES = 3
_BROKEN = re.compile("[\udc80-\udcff]")
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_SIGN_IN_WORD = re.compile(r"(?<=[^\W\d_])[^\w\s\x00-\x7f\u0300-\u036f’‑·](?=[^\W\d_])|[¹²³]")
_RARE, _ACUTE = re.compile("[ðýþÐÝÞ]"), re.compile("[áéíóúÁÉÍÓÚ]")
"""Letters of Icelandic, which cp1254 replaces by letters of Turkish; and others of Icelandic."""
_TONES = re.compile("[\u0300-\u0323]")
_BROKEN_IN_WORD = re.compile("[A-Za-z][\udc80-\udcff]|[\udc80-\udcff][A-Za-z]")
"""An invalid byte next to a letter, as in `café`. A few elsewhere are damage."""


def stream(
    path: str,
    start: int = 0,
    *,
    lookback: int = 0,
    at_a_time: int = READ_BYTES,
    is_json: bool = False,
) -> Iterator[bytes]:
    """The content of a file as UTF-8, from `lookback` bytes before `start` to its end.

    Compressed files and other encodings cannot be read from the middle: with `start` > 0 they yield
    nothing, because whoever reads from 0 reads all of it. The encoding of JSON is not guessed: it
    is UTF-8, unless the file shows that it is UTF-16 or UTF-32. Raises `UsageError` for archives
    and bombs, `NotText` for other files without text.
    """
    with open_to_read(path) as file:
        content = _inspect(file, path, at_a_time, is_json=is_json)
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


def unpacked(path: str) -> Iterator[bytes]:
    """The content of a file, decompressed, whether it is text or not."""
    with open_to_read(path) as file:
        head = file.read(HEAD_BYTES)
        file.seek(0)
        chunks: Iterator[bytes] = iter(lambda: file.read(READ_BYTES), b"")
        mark = next((mark for mark in _FORMATS if head.startswith(mark)), None)
        yield from _decompressed(chunks, path, *_FORMATS[mark]) if mark else chunks


def converted_from(path: str, *, is_json: bool = False) -> str:
    """The guessed encoding of a file; empty for UTF-8 or where a byte order mark declares it."""
    with open_to_read(path) as file:
        encoding = _inspect(file, path, READ_BYTES, is_json=is_json).encoding
    return "" if encoding in DECLARED else encoding


def can_be_cut(path: str, *, is_json: bool = False) -> bool:
    """Whether a file can be read from the middle: it is uncompressed UTF-8."""
    with open_to_read(path) as file:
        return _inspect(file, path, READ_BYTES, is_json=is_json).can_be_cut


@dataclass(frozen=True)
class _Content:
    """Decompressed `chunks` of bytes in an `encoding`."""

    chunks: Iterator[bytes]
    encoding: str
    can_be_cut: bool


def _inspect(file: IO[bytes], path: str, at_a_time: int, *, is_json: bool = False) -> _Content:
    """Detect the format and encoding of an open file and read it from the beginning."""
    head = file.read(HEAD_BYTES)
    file.seek(0)
    chunks: Iterator[bytes] = iter(lambda: file.read(at_a_time), b"")
    mark = next((mark for mark in _FORMATS if head.startswith(mark)), None)
    # Taken for plain text, a damaged header would yield garbage that is tokenised like any other
    # text.
    if head and mark is None and path.endswith(COMPRESSED_SUFFIXES):
        raise IntegrityError(
            f"{path}: begins with {head[:4].hex(' ')}, which is not the format its name "
            "promises; if it is plain text, rename it, otherwise copy it again"
        )
    if mark:
        chunks = _decompressed(chunks, path, *_FORMATS[mark])
        head = _gathered(chunks, HEAD_BYTES)
    encoding = encoding_of(head[:HEAD_BYTES], path, is_json=is_json)
    # A doubt: look at more of the file before guessing. Compressed chunks cannot be read again, so
    # those that were taken are put back in front below.
    if encoding in _LEGACY:
        if mark:
            head += _gathered(chunks, DOUBTFUL_BYTES - len(head))
        else:
            head = file.read(DOUBTFUL_BYTES)
            file.seek(0)
        encoding = encoding_of(head[:DOUBTFUL_BYTES], path, is_json=is_json)
    if mark and head:
        chunks = chain([head], chunks)
    return _Content(chunks, encoding, can_be_cut=not mark and encoding == UTF_8)


def _gathered(chunks: Iterator[bytes], size: int) -> bytes:
    """The next chunks, of at least `size` bytes together."""
    found = b""
    while len(found) < size and (chunk := next(chunks, b"")):
        found += chunk
    return found


def _decompressed(
    chunks: Iterator[bytes], path: str, suffix: str, decompressor: Callable[[], _Decompressor]
) -> Iterator[bytes]:
    """The content of the concatenated compressed streams in `chunks`."""
    current = decompressor()
    position = unpacked = 0
    for chunk in chunks:
        rest = chunk
        # Until the chunk is used up and the decompressor has given out all that it holds.
        while rest or not (current.eof or current.needs_input):
            if current.eof:
                # After an end mark, either the next stream follows or padding.
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


def encoding_of(head: bytes, path: str, *, is_json: bool = False) -> str:
    """The encoding of the content that begins with `head`; `UTF_8` unless another one is likely.

    Of JSON only UTF-16 and UTF-32 are likely. Raises `NotText` for binary content and `UsageError`
    for archives.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    # In text that is mostly ASCII, every second byte of UTF-16 is zero, and three of four of
    # UTF-32.
    zeros = tuple(place for place, byte in enumerate(head[:8]) if not byte)
    if len(head) >= 8 and zeros in _WIDE_ZEROS:
        return _WIDE_ZEROS[zeros]
    # zip (and office documents), and tar, whose mark stands at byte 257
    if head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar":
        raise UsageError(
            f"{path}: an archive of files; unpack it and give the folder, or its files one by one"
        )
    if head.startswith(_BINARY_SIGNATURES) or head.count(0) > MAX_ZERO_SHARE * len(head):
        raise NotText(
            f"{path}: no text (begins with {head[:4]!r}); convert it to text, or remove it"
        )
    if is_json:
        return UTF_8
    escaped = (encoding for escape, encoding in _ESCAPES.items() if escape in head)
    return next(escaped, "") or _damaged_or_legacy(head)


def _damaged_or_legacy(head: bytes) -> str:
    """`UTF_8` for valid or slightly damaged UTF-8, otherwise a declared or likely encoding."""
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder(UTF_8)().decode(head)  # the last character may be truncated
        return UTF_8
    if declared := _declared(head):
        return declared
    # damaged UTF-8 has fewer broken than valid non-ASCII characters, or none next to letters
    text = head.decode(UTF_8, "surrogateescape")
    broken = [found.start() for found in _BROKEN.finditer(text)]
    valid = len(_BEYOND_ASCII.findall(text)) - len(broken)
    in_words = len(broken) >= MIN_BROKEN_BYTES or _BROKEN_IN_WORD.search(text)
    if len(broken) <= valid or not in_words:
        return UTF_8
    first = len(text[: broken[0]].encode(UTF_8, "surrogateescape"))
    return _guess(head[max(first - GUESS_BYTES // 2, 0) :][:GUESS_BYTES])


def _declared(head: bytes) -> str:
    """The encoding that an HTML page or XML file declares; empty if there is none."""
    # Only markup: prose may well contain the words `encoding = …`.
    if not head.lstrip().startswith(b"<"):
        return ""
    for found in _DECLARATION.finditer(head[:1024]):
        with suppress(LookupError, ValueError):
            name = codecs.lookup(found[1].decode()).name
            return "" if name == UTF_8 else _SUPERSETS.get(name, name)
    return ""


def _guess(sample: bytes) -> str:
    """The likeliest of the `_LEGACY` encodings; `UTF_8` if there is none."""
    found: dict[str, float] = {}
    # A lower number is a better fit: mess in the text, signs within words, less coherence of
    # letters.
    for match in from_bytes(sample, cp_isolation=list(_LEGACY)):
        for name in (match.encoding, *match.could_be_from_charset):
            text = sample.decode(name, "replace") if name in _LEGACY else ""
            beyond = len(_BEYOND_ASCII.findall(text))
            # Candidates that decode to pure ASCII explain nothing; Vietnamese without a tone mark
            # is none.
            if not beyond or (name == "cp1258" and not _TONES.search(text)):
                continue
            misfit = len(_SIGN_IN_WORD.findall(text)) / beyond
            if name == "cp1252" and len(_RARE.findall(text)) > len(_ACUTE.findall(text)):
                misfit += TURKISH
            found[name] = (
                MESS_WEIGHT * match.chaos + misfit - match.coherence + _LATIN.get(name, 0.0)
            )
    return min(found, key=lambda name: (found[name], _LEGACY.index(name))) if found else UTF_8
