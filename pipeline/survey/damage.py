"""Damage of a text: what wrong encodings, and programs that extracted it, have left.

In:  documents as they were read, and cleaned.
Out: for each kind of damage the places in a block where it is.

Each kind is a pattern of bytes, and has a cause: when in the life of the text it arose. Text that
was UTF-8, but was read as an older encoding and written as UTF-8 again (mojibake), is found by its
shape: characters that stand for the bytes of one character in UTF-8. Two such characters may stand
beside each other by chance, so a pair counts only if it begins with one that hardly any word has
inside (`Ã`, `Â`), and others in runs. If the mended text is mojibake again, it was converted twice.
"""

import re
from collections.abc import Callable, Sequence
from functools import cache
from typing import Literal, NamedTuple

import numpy as np

from cloze.artifacts.arrays import Bytes, Int64s, Offsets
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.readers.web import BLOCK_TAG

CODECS = {
    "Windows-1252": "cp1252",
    "Mac OS Roman": "mac_roman",
    "DOS code page 850": "cp850",
    "Windows-1251": "cp1251",
}
"""Encodings as which UTF-8 is often read: of Western Windows, Macs before 2001, DOS, and Cyrillic
Windows."""

State = Literal["raw", "whole"]
Candidates = Callable[[Bytes], Offsets]


class Kind(NamedTuple):
    """A kind of damage."""

    name: str
    cause: str
    """What has made it, and when."""
    state: State
    """Whether it is looked for as read, or after cleaning."""
    pattern: re.Pattern[bytes]
    candidates: Candidates
    """Where in a text it may begin: a search for the pattern alone would take ten times as long."""
    line: str = ""
    """The line of configuration that removes it, of the source; empty if there is none."""


def _meaning(byte: int, codec: str) -> bytes:
    """The character that a byte is in `codec`, in UTF-8."""
    # Bytes without a meaning become control characters of the same number, as browsers read them.
    return (bytes([byte]).decode(codec, "ignore") or chr(byte)).encode()


def _any_of(codec: str, first: int, last: int) -> bytes:
    characters = (re.escape(_meaning(byte, codec)) for byte in range(first, last))
    return b"(?:%s)" % b"|".join(characters)


def _mojibake(name: str, codec: str) -> Kind:
    follows = _any_of(codec, 0x80, 0xC0)
    two = _any_of(codec, 0xC2, 0xE0) + follows
    three = _any_of(codec, 0xE0, 0xF0) + follows * 2
    four = _any_of(codec, 0xF0, 0xF5) + follows * 3
    runs = [b"(?:%s|%s|%s)+" % (four, three, two * 2)]
    if codec == "cp1251":
        # There the first of three are ordinary letters, and two pairs may be letters and quotes.
        runs = [two * 3 + b"(?:%s)*" % two]
    if codec == "cp1252":
        # After a capital letter it may be the end of a word in capitals, before a quotation mark.
        runs.append(b"(?<![A-Z])(?<!\xc3[\x80-\x9e])(?:\xc3\x82|\xc3\x83)" + follows)
    elif codec in _OWN_LEADS:
        runs.append(_OWN_LEADS[codec].encode() + follows)
    # Candidates are cheap to find by two bytes, as the first character of mojibake has two or
    # three; the pattern decides.
    leads = [_meaning(byte, codec) for byte in range(0xC2, 0xF5)]
    one, next_ = (np.array(sorted({lead[at] for lead in leads}), dtype=np.uint8) for at in (0, 1))

    def candidates(text: Bytes) -> Offsets:
        places = np.flatnonzero(np.isin(text[:-3], one))
        places = places[np.isin(text[places + 1], next_)]
        width = np.where(text[places] < 0xE0, 2, 3)
        found: Offsets = places[text[places + width] >= 0x80]  # what follows is no ASCII
        return found

    cause = "before the text came here, a program took UTF-8 for an older encoding"
    return Kind(f"UTF-8 read as {name}", cause, "raw", re.compile(b"|".join(runs)), candidates)


_OWN_LEADS = {"mac_roman": "\N{SQUARE ROOT}", "cp850": "\N{BOX DRAWINGS LIGHT VERTICAL AND RIGHT}"}
"""What the first byte of accented Latin letters is there: in words it means nothing else."""


def _starting_with(first: bytes, pattern: bytes) -> tuple[re.Pattern[bytes], Candidates]:
    """A pattern whose matches start with one of these bytes, and where these are."""
    wanted = np.zeros(256, dtype=np.bool_)
    wanted[[*first]] = True
    return re.compile(pattern, re.IGNORECASE), lambda text: np.flatnonzero(wanted[text])


@cache
def kinds() -> tuple[Kind, ...]:
    """All kinds, those of encodings first."""
    return (*(_mojibake(name, codec) for name, codec in CODECS.items()), *_LOST, *_EXTRACTED)


ENTITIES = "HTML entities"

CONTROLS = bytes([*range(0x09), *range(0x0E, 0x20), 0x7F])


def _not_utf8(text: Bytes) -> Offsets:
    """Where bytes are that are not UTF-8."""
    # Python gives such a byte a code of its own, and all other characters have their usual width.
    decoded = text.tobytes().decode("utf-8", "surrogateescape")
    codes = np.frombuffer(decoded.encode("utf-32-le", "surrogatepass"), dtype="<u4")
    is_byte = (codes >= 0xDC80) & (codes <= 0xDCFF)
    if not is_byte.any():
        return np.zeros(0, dtype=np.int64)
    widths = 1 + (codes >= 0x80) + (codes >= 0x800) + (codes >= 0x10000)
    stops: Offsets = np.cumsum(np.where(is_byte, 1, widths), dtype=np.int64)
    return stops[is_byte] - 1


_LOST = (
    Kind(
        "bytes that are not UTF-8",
        "the file is in another encoding than most of it seems to be, or damaged: convert it "
        "(iconv); cleaning puts U+FFFD in their place",
        "raw",
        re.compile(rb"[\x80-\xff]"),
        _not_utf8,
    ),
    Kind(
        "replacement characters",
        "before the text came here, a program replaced what it could not read by U+FFFD; what "
        "stood there is lost",
        "raw",
        *_starting_with(b"\xef", b"\xef\xbf\xbd"),
    ),
    Kind(
        "controls U+0080 to U+009F",
        "Windows-1252 that was declared as Latin-1: curly quotes and dashes, which cleaning "
        "removes with the controls",
        "raw",
        *_starting_with(b"\xc2", b"\xc2[\x80-\x84\x86-\x9f]"),
    ),
    Kind(
        "other control characters",
        "a binary format or a terminal left them in; cleaning removes them",
        "raw",
        *_starting_with(CONTROLS, b"[%s]" % re.escape(CONTROLS)),
    ),
    Kind(
        "invisible characters",
        "soft hyphens, zero-width spaces and marks of direction; cleaning removes them",
        "raw",
        *_starting_with(
            b"\xc2\xe2\xef",
            b"\xc2\xad|\xe2\x80[\x8b-\x8f\xaa-\xae]|\xe2\x81[\xa0-\xaf]|(?<=.)\xef\xbb\xbf",
        ),
    ),
    Kind(
        "private characters",
        "U+E000 to U+F8FF mean something in one font only: symbols, or a PDF's own encoding",
        "whole",
        *_starting_with(b"\xee\xef", b"\xee[\x80-\xbf][\x80-\xbf]|\xef[\x80-\xa3][\x80-\xbf]"),
    ),
    Kind(
        "letters apart from their accents",
        "decomposed Unicode (NFD), as file systems of Macs and some PDFs have it",
        "whole",
        *_starting_with(b"\xcc\xcd", b"(?<=[a-z])(?:\xcc[\x80-\xbf]|\xcd[\x80-\xaf])"),
    ),
)
"""What was lost or changed between encodings."""

_EXTRACTED = (
    Kind(
        "ligatures",
        "extracted from a PDF, where fi is one character; a vocabulary has no such words",
        "whole",
        *_starting_with(b"\xef", b"\xef\xac[\x80-\x86]"),
    ),
    Kind(
        "words divided at line ends",
        "typeset text, scanned or extracted with its hyphens; cleaning joins the lines, but "
        "cannot know whether the hyphen belongs to the word",
        "raw",
        *_starting_with(b"-", rb"(?<=[a-z])-\r?\n[a-z]+"),
    ),
    Kind(
        ENTITIES,
        "left after cleaning: the text is HTML, or was escaped more often than decoded",
        "whole",
        *_starting_with(
            b"&",
            rb"&(?:#\d{2,7}|#x[0-9a-f]{2,6}|amp|lt|gt|quot|apos|nbsp|[a-z]{1,6}(?:acute|grave|uml|"
            rb"circ|tilde|dash|quo|lig)|hellip);",
        ),
        line="html = true",
    ),
    Kind(
        "HTML pages",
        "tags of paragraphs, tables or scripts are left after cleaning: the text is HTML",
        "whole",
        *_starting_with(b"<", rb"%s[^<>\n]{0,300}>?" % BLOCK_TAG.pattern),
        line="html = true",
    ),
    Kind(
        "stray tags",
        "left by whatever extracted the text from HTML or a wiki; in plain text tags stay",
        "whole",
        *_starting_with(
            b"<",
            rb"</?(?:p|br|div|span|a|b|i|u|em|strong|td|tr|th|table|ul|ol|li|ref|sup|sub|font|img|"
            rb"script|style|center|small|blockquote|h[1-6])(?:\s[^<>\n]{0,300})?/?>",
        ),
    ),
    Kind(
        "wiki markup",
        "left by whatever extracted the text from a wiki",
        "whole",
        *_starting_with(
            b"[{'_",
            rb"\[\[[^\[\]\n]{0,200}\]\]|\{\{[^{}\n]{0,200}\}\}|'''|__(?:notoc|toc|noeditsection)__",
        ),
    ),
    Kind(
        "formulas left out",
        "an extractor put a name and a number where a formula stood",
        "whole",
        *_starting_with(b"f", rb"(?<!\w)formula_\d+"),
    ),
    Kind(
        "emptied brackets",
        "an extractor removed what stood in them: pronunciations, foreign names, references",
        "whole",
        *_starting_with(b"([", rb"\(\s*[,;:]*\s*\)|\([,;:] |\[\s*\]"),
    ),
)
"""What programs that extract text have left, or left out."""


def places(kind: Kind, block: DocumentBlock) -> Int64s:
    """Where in a block's text the damage begins and ends: (M, 2)."""
    raw, found, done = block.text.tobytes(), [], 0
    for place in kind.candidates(block.text).tolist():
        if place >= done and (match := kind.pattern.match(raw, place)):
            found.append(match.span())
            done = match.end()
    return np.array(found, dtype=np.int64).reshape(-1, 2)


def mended(text: str) -> tuple[str, int]:
    """Mojibake as it was meant, and how often it was converted; other text as it is, and 0.

    Of several encodings it is the first that makes UTF-8 of it.
    """
    layers = 0
    while layers < MOST_LAYERS and (better := _decoded(text, list(CODECS.values()))):
        text, layers = better, layers + 1
    return text, layers


MOST_LAYERS = 4
"""Conversions of mojibake that are undone."""


def _decoded(text: str, codecs: Sequence[str]) -> str:
    for codec in codecs:
        try:
            raw = b"".join(
                bytes([ord(one)]) if 0x80 <= ord(one) < 0xA0 else one.encode(codec) for one in text
            )
            better = raw.decode("utf-8")
        except UnicodeError:
            continue
        if len(better) < len(text):
            return better
    return ""
