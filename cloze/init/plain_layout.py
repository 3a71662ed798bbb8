"""How plain text lies in its files: a document a file, or many parted by blank lines.

In:  the beginnings of some files, the number of files, the bytes of text.
Out: the reader that fits, and why.

A blank line parts documents in one file and paragraphs in another, and nothing in it says which. So
it is guessed, from how many blocks of lines there are and what their lines look like, and the
reason says what else it could be.
"""

import re
from collections.abc import Callable

from pipeline.config import Reader

BLANK_LINE = r"\n\s*\n"

MANY_BLOCKS = 200
"""In a file; an article hardly has so many paragraphs."""
FEW_FILES = 16
"""Of more files each is a document: as many books as that are a corpus."""
SHORT_LINE, WRAPPED_WIDTH = 40, 100
"""Characters: most lines of hard-wrapped text are not shorter, hardly any is longer."""
MOST = 0.5
HARDLY_ANY = 0.02

_LAST = re.compile(r"[.!?。！？][\"')\]”’»]*$")
_INNER = re.compile(r"[.!?][\"')\]”’»]* +[A-ZÀ-Þ]")


def plain_layout(samples: tuple[str, ...], *, files: int, text_bytes: float) -> tuple[Reader, str]:
    """The reader, and what the guess rests on."""
    lines = [line.strip() for text in samples for line in text.splitlines() if line.strip()]
    found = sum(len(re.findall(BLANK_LINE, text)) for text in samples)
    sampled = sum(len(text.encode()) for text in samples)
    blocks = found * text_bytes / max(sampled, 1) / files
    many = f"about {blocks:,.0f} blocks of lines a file"
    if blocks < MANY_BLOCKS:
        return "text", "plain text: each file is taken as one document"
    if _share(lines, _is_sentence) > MOST:
        return "sentence_lines", f"{many}, most lines one sentence: blank lines part documents"
    if files >= FEW_FILES or _is_wrapped(lines):
        return "text", f"{many}, taken as paragraphs; if they are documents: blank_line_text"
    return "blank_line_text", f"{many}, taken as documents; if they are paragraphs: text"


def _share(lines: list[str], holds: Callable[[str], bool]) -> float:
    return sum(map(holds, lines)) / max(len(lines), 1)


def _is_sentence(line: str) -> bool:
    """Whether a line ends like a sentence and no other one ends in it."""
    return bool(_LAST.search(line)) and not _INNER.search(line)


def _is_wrapped(lines: list[str]) -> bool:
    """Whether lines end for want of room; a blank line then ends a paragraph."""
    long = _share(lines, lambda line: len(line) > WRAPPED_WIDTH)
    return long <= HARDLY_ANY and _share(lines, lambda line: len(line) >= SHORT_LINE) > MOST
