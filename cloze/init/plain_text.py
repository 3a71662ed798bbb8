"""Guess the layout and language of plain text from samples, and whether it contains HTML.

In:  samples of the text; for the layout, also its total size and number of files.
Out: a suitable reader; settings for line breaks and HTML, each with the reason for the guess; a
     language, or the script if several languages share it.

In plain text, blank lines may separate documents or paragraphs. The guess depends on the number of
blocks of lines and the length of their lines; its reason mentions the alternative.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Sequence

from pipeline.config.settings import LineBreak, Reader

BLANK_LINE = r"\n\s*\n"

MANY_BLOCKS = 200
"""Per file; an article rarely has so many paragraphs."""
SOME_BLOCKS = 12
"""Minimum number of blocks whose lines distinguish paragraphs from documents."""
FEW_FILES = 16
"""With more files, each is taken as a document: so many collections of documents are rare."""
SHORT_LINE, WRAPPED_WIDTH = 40, 100
"""Characters: most lines of hard-wrapped text have at least the former, hardly any exceeds the
latter."""
MOST, SOME, HARDLY_ANY = 0.5, 0.2, 0.02
"""Shares of lines."""
NEARLY_ALL = 0.95
FEWEST_LINES = 20
"""Minimum number of lines for which line breaks are interpreted."""

ONE_SENTENCE = re.compile(
    r"(?!.*[.!?][\"')\]”’»]* +[A-ZÀ-Þ])"  # no other sentence ends in it
    r".*[.!?。！？][\"')\]”’»]*$"
)
HTML = re.compile(r"<br ?/?>|</?[pib]>|&(amp|lt|gt|quot|nbsp|apos|#\d+);")
HTML_PER_CHARACTER = 1e-4
"""Minimum HTML entities and tags per character, so that isolated ones do not count."""

COMMON_WORDS = {
    "English": "the of and to in that is was for with",
    "German": "der die und das nicht ist von den mit ein",
    "French": "le la les et des est dans que pour une",
    "Spanish": "el los las una que por con para del como",
    "Italian": "il che di della per con una sono gli non",
    "Portuguese": "os uma que não para com do da em mais",
    "Dutch": "de het een van en dat niet zijn met voor",
    "Polish": "nie się jest na że do jak ale tak przez",
    "Swedish": "och att det som en på är av för med",
    "Turkish": "ve bir bu için ile olarak çok daha gibi olan",
}
LEAST_SHARE = 0.04
"""Minimum share of words among a language's ten most common ones; a quarter in English text."""


def plain_layout(samples: Sequence[str], *, files: int, text_bytes: float) -> tuple[Reader, str]:
    """The reader for plain text, and the reason for the guess."""
    lines = _lines(samples)
    blank_lines = sum(len(re.findall(BLANK_LINE, text)) for text in samples)
    sampled = sum(len(text.encode()) for text in samples)
    blocks = blank_lines * text_bytes / max(sampled, 1) / files
    many = f"about {blocks:,.0f} blocks of lines per file"
    sentences = _share(lines, ONE_SENTENCE.match) > MOST
    wrapped = _is_wrapped(lines)
    if blocks < MANY_BLOCKS:
        # blocks of several long lines or sentences are more than paragraphs
        several = blocks >= SOME_BLOCKS and len(lines) >= 2 * blank_lines
        if several and files < FEW_FILES and sentences:
            return "sentence_lines", f"{many}, each of several lines, most of them one sentence"
        if several and files < FEW_FILES and _share(lines, _is_long) > SOME:
            return "blank_line_text", (
                f"{many}, each of several long lines, taken as documents; if they are sections of "
                "one: text"
            )
        other = "; if blank lines separate documents: blank_line_text" if blank_lines else ""
        return "text", f"plain text: each file is taken as one document{other}"
    if sentences:
        return "sentence_lines", f"{many}, most lines one sentence: blank lines separate documents"
    if files >= FEW_FILES or wrapped:
        return "text", f"{many}, taken as paragraphs; if they are documents: blank_line_text"
    return "blank_line_text", f"{many}, taken as documents; if they are paragraphs: text"


def line_breaks(documents: Sequence[str]) -> tuple[LineBreak, str] | None:
    """The meaning of line breaks in the documents, and why; None if there are too few."""
    lines = [line for text in documents for line in _lines([text]) if "\n" in text.strip()]
    if len(lines) < FEWEST_LINES:
        return None
    if _share(lines, ONE_SENTENCE.match) >= NEARLY_ALL:
        return "sentence", "nearly every line is one sentence"
    several = [found for found in map(_lines, ([text] for text in documents)) if len(found) > 1]
    wrapped = sum(map(_is_wrapped, several))
    if _share(lines, _is_long) > SOME and wrapped > SOME * len(several):
        return "detect", "lines are wrapped in some documents, whole paragraphs in others"
    if _share(lines, _is_long) > SOME:
        return "paragraph", "lines are whole paragraphs"
    if _is_wrapped(lines):
        return "detect", "lines are wrapped"
    return None


def is_html(documents: Sequence[str]) -> bool:
    """Whether the text contains HTML entities or tags."""
    found = sum(len(HTML.findall(text)) for text in documents)
    return found > 1 and found >= HTML_PER_CHARACTER * sum(map(len, documents))


def language(text: str) -> str:
    """A guess at the language of `text`; `no text` if there are no letters."""
    # the first word of a letter's Unicode name is its script
    names = (unicodedata.name(letter, "unnamed") for letter in text if letter.isalpha())
    scripts = Counter(name.partition(" ")[0].capitalize() for name in names)
    if not scripts:
        return "no text"
    script, _ = scripts.most_common(1)[0]
    if script != "Latin":
        return f"{script} script"
    words = re.findall(r"\w+", text.lower())
    counts = Counter(words)
    found = {
        name: sum(counts[word] for word in common.split()) for name, common in COMMON_WORDS.items()
    }
    best = max(found, key=lambda name: found[name])
    return best if found[best] > LEAST_SHARE * len(words) else "another language"


def _lines(samples: Sequence[str]) -> list[str]:
    return [line.strip() for text in samples for line in text.splitlines() if line.strip()]


def _share(lines: Sequence[str], holds: Callable[[str], object]) -> float:
    return sum(bool(holds(line)) for line in lines) / max(len(lines), 1)


def _is_long(line: str) -> bool:
    return len(line) > WRAPPED_WIDTH


def _is_wrapped(lines: Sequence[str]) -> bool:
    fills = _share(lines, lambda line: len(line) >= SHORT_LINE) > MOST
    return fills and _share(lines, _is_long) <= HARDLY_ANY
