r"""Files of text in whatever encoding, read line by line and as often as needed.

In:  a path or URL; gzip, bzip2, xz and zstd are unpacked.
Out: `TextFile`: its lines, and remarks on what had to be guessed.

Text is UTF-8 with or without a byte order mark, UTF-16, UTF-32 or Windows-1252; lines end in \n,
\r\n or \r. Which it is, only the whole file tells, so it is read once before its first line is
given.
"""

import codecs
import io
import lzma
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import PurePath
from typing import IO

import pyarrow as pa

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import require_plausible_size

LONGEST_LINE = 1 << 26
"""Characters of a line or cell; a longer one has to be held in memory and is hardly one row."""

BYTES_AT_A_TIME = 1 << 20

COMPRESSED = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz"}
"""Formats of compression by suffix: Arrow's, which finds out damage and missing ends, and xz."""

MOST_ACCENTED = 0.3
"""Share of letters outside ASCII in Western European languages is well below this."""

SHOWN_LETTERS = 5

UTF_16, UTF_32 = (
    (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE),
    (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE),
)
"""The byte order marks of each."""


@dataclass(frozen=True)
class TextFile:
    """A file whose encoding is known."""

    path: str
    source: Callable[[], AbstractContextManager[IO[bytes]]]
    """Opens it."""

    encoding: str
    ends_in_returns: bool
    """Whether carriage returns alone end its lines."""

    remarks: tuple[str, ...]
    """What had to be guessed."""

    marked: bool = False
    """Whether it begins with a byte order mark."""

    def beginning(self, characters: int) -> str:
        """The first characters, fewer if the file ends before."""
        with self._opened(newline="") as stream:
            return stream.read(characters)

    def lines(self, *, newline: str = "\n") -> Iterator[str]:
        """The lines with their ends; `newline` as for `open`."""
        with self._opened(newline) as stream:
            lines = iter(partial(stream.readline, LONGEST_LINE + 1), "")
            for number, line in enumerate(lines, start=1):
                if len(line) > LONGEST_LINE:
                    raise UsageError(
                        f"{self.path}:{number}: longer than {LONGEST_LINE:,} characters; expected "
                        "one row per line: divide it"
                    )
                yield line

    def chunks(self) -> Iterator[str]:
        """The text in pieces of any length."""
        with self._opened("\n") as stream:
            yield from iter(partial(stream.read, BYTES_AT_A_TIME), "")

    @contextmanager
    def _opened(self, newline: str) -> Iterator[io.TextIOWrapper]:
        with self.source() as file:
            how = None if self.ends_in_returns else newline
            yield io.TextIOWrapper(file, self.encoding, newline=how)


def text_file(path: str) -> TextFile:
    """The file with its encoding; `UsageError` if it has none of those expected."""
    is_packed = PurePath(path).suffix.lower() in COMPRESSED
    packed = filesystem.size_of(path) if is_packed else None
    return _recognised(path, partial(unpacked, path), packed=packed)


def suffix_of(path: str) -> str:
    """The last suffix in lower case, `.csv`; before that of compression."""
    name = PurePath(path.lower())
    return PurePath(name.stem).suffix if name.suffix in COMPRESSED else name.suffix


@contextmanager
def unpacked(path: str) -> Iterator[IO[bytes]]:
    """The content of a file, unpacked if its name says that it is compressed."""
    form = COMPRESSED.get(PurePath(path).suffix.lower())
    with opened(path) as file:
        if not form:
            yield file
            return
        arrow = pa.PythonFile(file, mode="r")
        try:
            with (
                lzma.open(file) if form == "xz" else pa.CompressedInputStream(arrow, form) as plain
            ):
                yield io.BufferedReader(plain)
        except (OSError, EOFError, lzma.LZMAError) as error:
            raise UsageError(
                f"{path}: damaged or incomplete ({error}); copy it again, or unpack it"
            ) from None


def opened(path: str) -> IO[bytes]:
    """The file, which may be read in any order; one of an object store is copied into memory."""
    if not filesystem.exists(path):
        raise UsageError(f"{path}: no such file")
    if not filesystem.is_file(path):
        raise UsageError(
            f"{path}: a folder, pipe or device; expected a file, which can be read twice"
        )
    if filesystem.is_local(path):
        return filesystem.open_to_read(path)
    return io.BytesIO(filesystem.read_bytes(path))


def decoded(path: str, content: bytes, *, is_whole: bool = True) -> tuple[str, tuple[str, ...]]:
    r"""The text of `content`, its lines ended by \n or \r\n, and remarks on its encoding.

    `is_whole`: otherwise `content` is only the beginning of the file `path`, and may end within a
    character.
    """
    found = _recognised(path, partial(io.BytesIO, content), is_whole=is_whole)
    text = codecs.getincrementaldecoder(found.encoding)().decode(content, final=False)
    return text.replace("\r", "\n") if found.ends_in_returns else text, found.remarks


def text_in(path: str, text: str) -> TextFile:
    """`text` as if it were all of the file `path`."""
    return TextFile(path, partial(io.BytesIO, text.encode()), "utf-8", False, ())


def _recognised(
    path: str,
    source: Callable[[], AbstractContextManager[IO[bytes]]],
    *,
    is_whole: bool = True,
    packed: int | None = None,
) -> TextFile:
    """`packed`: bytes of a compressed file."""

    def chunks() -> Iterator[bytes]:
        with source() as file:
            yield from iter(partial(file.read, BYTES_AT_A_TIME), b"")

    encoding, remarks = "utf-8-sig", tuple[str, ...]()
    start = next(iter(chunks()), b"")[:1024]
    # first, as UTF-32's mark begins like that of UTF-16
    if start.startswith(UTF_32):
        encoding = "utf-32"
    elif start.startswith(UTF_16):
        encoding = "utf-16"
    elif 4 * start.count(0) > len(start):  # ASCII letters have one in their first or second byte
        encoding = "utf-16-be" if start[::2].count(0) > start[1::2].count(0) else "utf-16-le"
    characters = returns = feeds = place = 0
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in chain(chunks(), [b""] if is_whole else []):
            place += len(chunk)
            if packed:
                require_plausible_size(path, place, packed)
            text = decoder.decode(chunk, final=is_whole and not chunk)
            characters += len(text)
            returns += text.count("\r")
            feeds += text.count("\n")
    except UnicodeDecodeError as error:
        place += error.start - len(error.object)
        if encoding != "utf-8-sig":
            raise UsageError(
                f"{path}: not {encoding.upper()} at byte {place}, although it begins like it; copy "
                "the file again, or save it as UTF-8"
            ) from None
        encoding = "cp1252"
        remarks, returns, feeds = _western(path, chunks, place)
    else:
        if encoding != "utf-8-sig":
            remarks = (f"{path}: read as {encoding.upper()}, {characters:,} characters",)
    if returns and not feeds:
        remarks += (f"{path}: its {returns:,} lines end in carriage returns",)
    marked = start.startswith((codecs.BOM_UTF8, *UTF_16, *UTF_32))
    return TextFile(path, source, encoding, bool(returns and not feeds), remarks, marked)


def _western(
    path: str, chunks: Callable[[], Iterable[bytes]], place: int
) -> tuple[tuple[str, ...], int, int]:
    """Remarks, returns and feeds as Windows-1252, unless no Western European language is so."""
    tolerant = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    letters = foreign = accented = returns = feeds = 0
    examples: dict[str, None] = {}
    is_western = True
    for chunk in chunks():
        # Valid characters beyond ASCII in other lines: the file is UTF-8 with a broken line, not
        # another encoding.
        if any(not a.isascii() and not "\udc80" <= a <= "\udcff" for a in tolerant.decode(chunk)):
            raise UsageError(
                f"{path}:{_line_of(chunks(), place)}: not UTF-8 at byte {place}, although other "
                "lines are; correct the line"
            )
        try:
            text = chunk.decode("cp1252")
        except UnicodeDecodeError:
            is_western, text = False, ""
        known = [letter for letter in text if letter.isalpha()]
        letters += len(known)
        foreign += sum(not letter.isascii() for letter in known)
        odd = [letter for letter in text if not letter.isascii()]
        accented += len(odd)
        examples |= dict.fromkeys(odd[:BYTES_AT_A_TIME] if len(examples) < SHOWN_LETTERS else ())
        returns += text.count("\r")
        feeds += text.count("\n")
    if not is_western or not letters or foreign > MOST_ACCENTED * letters:
        raise UsageError(
            f"{path}:{_line_of(chunks(), place)}: not UTF-8 at byte {place}, and not Windows-1252 "
            "either; convert the file from its encoding, for example with iconv -f GB18030 -t UTF-8"
        )
    shown = " ".join([*examples][:SHOWN_LETTERS])
    remark = (
        f"{path}: not UTF-8; read as Windows-1252, with {accented:,} characters such as {shown}"
    )
    return (remark,), returns, feeds


def _line_of(chunks: Iterable[bytes], place: int) -> int:
    line = 1
    for chunk in chunks:
        line += chunk[:place].count(b"\n")
        place -= len(chunk)
        if place <= 0:
            break
    return line
