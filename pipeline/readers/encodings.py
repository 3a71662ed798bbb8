"""What a file's first bytes are: text in which encoding, an archive, or no text at all.

In:  the first `HEAD_BYTES` of a file's content, decompressed.
Out: the name of the encoding to decode it from; errors for what holds no text.

UTF-16 and UTF-32 are recognised by their byte order mark or by the zeros in their letters. What is
not UTF-8 either is left to charset-normalizer. A file of UTF-8 with a few broken characters stays
UTF-8: they are replaced and counted when it is cleaned.
"""

import codecs
import re
from contextlib import suppress

from charset_normalizer import from_bytes

from artifacts.errors import NotText, UsageError

HEAD_BYTES = 1 << 16

UTF_8 = "utf-8"
DECLARED = (UTF_8, "utf-16", "utf-32")
"""Encodings that are not guessed: UTF-8, and those with a byte order mark."""

_WIDE_MARKS = {  # UTF-32's little-endian mark begins with UTF-16's
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
"""Where the first eight bytes of a Latin text without a byte order mark are zero."""

_LEGACY = (
    *("cp1252", "cp1251", "koi8_r", "cp1250", "cp1253", "cp1254", "cp1255", "cp1256"),
    *("gb18030", "big5", "shift_jis", "euc_jp", "euc_kr"),
)
"""What text that is no Unicode is in, the likelier first: Western European text is as good in
cp1250 as in cp1252. They contain Latin-1 and its like."""

_BINARY_MARKS = (
    *(b"%PDF-", b"\x89PNG", b"\xff\xd8\xff", b"GIF87a", b"GIF89a", b"II*\0", b"MM\0*"),
    *(b"RIFF", b"OggS", b"ID3", b"fLaC", b"\x7fELF", b"\xca\xfe\xba\xbe", b"{\\rtf"),
    *(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"SQLite format 3\0", b"wOFF", b"wOF2"),
    *(b"PAR1", b"ARROW1", b"\x93NUMPY", b"\x80\x04\x95"),
)
"""Documents of offices, images, sound, programs, fonts, tables: some hold text, none are text."""

MOST_ZEROS = 0.1
"""Share of zero bytes above which a file that is not UTF-16 or UTF-32 is not text."""


FEWEST_BROKEN = 3
_BROKEN_IN_WORD = re.compile("[A-Za-z][\udc80-\udcff]|[\udc80-\udcff][A-Za-z]")
"""An invalid byte beside a letter, as in `café`: a few that are not beside one are damage."""


def encoding_of(head: bytes, path: str) -> str:
    """The encoding of the content that begins with `head`; `UTF_8` where nothing else is likely.

    A `NotText` for what is no text, and a `UsageError` for archives, which hold files.
    """
    for mark, encoding in _WIDE_MARKS.items():
        if head.startswith(mark):
            return encoding
    zeros = tuple(place for place, byte in enumerate(head[:8]) if not byte)
    if len(head) >= 8 and zeros in _WIDE_ZEROS:
        return _WIDE_ZEROS[zeros]
    if head.startswith(b"PK\x03\x04") or head[257:262] == b"ustar":
        raise UsageError(
            f"{path}: an archive of files; unpack it and name the folder, or its files one by one"
        )
    if head.startswith(_BINARY_MARKS) or head.count(0) > MOST_ZEROS * len(head):
        raise NotText(
            f"{path}: no text (begins with {head[:4]!r}); convert it to text, or take it away"
        )
    with suppress(UnicodeDecodeError):
        codecs.getincrementaldecoder(UTF_8)().decode(head)  # the last character may be cut
        return UTF_8
    # damaged UTF-8 has fewer broken characters than others beyond ASCII, or none beside letters
    text = head.decode(UTF_8, "surrogateescape")
    beyond = sum(not character.isascii() for character in text)
    broken = sum("\udc80" <= character <= "\udcff" for character in text)
    in_words = broken >= FEWEST_BROKEN or _BROKEN_IN_WORD.search(text)
    if 2 * broken <= beyond or not in_words:
        return UTF_8
    likely = [
        (match.chaos, _LEGACY.index(name))
        for match in from_bytes(head, cp_isolation=list(_LEGACY))
        for name in (match.encoding, *match.could_be_from_charset)
        if name in _LEGACY
    ]
    return _LEGACY[min(likely)[1]] if likely else UTF_8
