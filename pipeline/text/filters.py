"""Quality filters: which documents are dropped, and why.

In:  cleaned documents.
Out: a `Reason` for each, usually `KEPT`.

The rules are Gopher's (Rae et al. 2021, arXiv 2112.11446, A.1.1) and C4's (Raffel et al. 2020,
arXiv 1910.10683, 2.2), all off by default. Dropped documents are counted and listed.

Only rules that count something in a document are implemented: not Gopher's repetition filters
(Table A1), nor C4's line filters (no final punctuation, few words, "javascript"), its blocklist,
language detection and three-sentence spans. Near-duplicates have their own stage
(pipeline/dedup.py).
"""

import re
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Mask, Offsets, offsets_of
from cloze.pipeline.config.settings import CleaningConfig
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import LINE_FEED, SPACE
from cloze.pipeline.text.scripts import UNITS_PER_WORD, decode, units

Reasons = npt.NDArray[np.uint8]

STOP_WORDS = (b"the", b"be", b"to", b"of", b"and", b"that", b"have", b"with")
"""Common English words (Gopher's list)."""


class Reason(IntEnum):
    """Why a document was dropped; manifests and records use these names."""

    KEPT = 0
    EMPTY = 1
    NOT_TEXT = 2
    """Its share of invalid bytes exceeds `max_replacement_share`."""
    SHORT = 3
    SYMBOLS = 4
    FEW_LETTERS = 5
    NO_TOKENS = 6
    """It has only characters that the tokenizer removes."""
    DROP_LIST = 7
    DUPLICATE = 8
    HELD_OUT = 9
    """A training document identical to a held-out one."""
    LONG = 10
    WORD_LENGTH = 11
    BULLETS = 12
    ELLIPSES = 13
    FEW_STOP_WORDS = 14
    CURLY_BRACKET = 15
    LOREM_IPSUM = 16
    BINARY_FILE = 17
    """A whole file without text, such as an image or a PDF."""
    BAD_FILE = 18
    """The unreadable part of a file, if `on_bad_file` is `skip`."""
    BAD_RECORD = 19
    """A single malformed line, row or article, if `on_bad_file` is `skip`."""
    BOILERPLATE = 20
    """All of its lines recur in other documents."""


class TextMeasures:
    """Per-document counts over a block: arrays of shape (D,), computed on first use."""

    def __init__(self, block: DocumentBlock) -> None:
        self._text, self._ends = block.text, block.ends

    @cached_property
    def characters(self) -> Offsets:
        """Characters, including white space."""
        # All bytes but those that continue a character, 10xxxxxx in UTF-8.
        characters: Offsets = np.diff(self._ends, prepend=0) - self.marks(
            (self._text & 0xC0) == 0x80
        )
        return characters

    @cached_property
    def words(self) -> Offsets:
        """Words; each is followed by one white-space character, or counted by characters."""
        return self.marks(self._text <= SPACE) + self._unspaced

    @cached_property
    def lines(self) -> Offsets:
        """Lines."""
        return self.marks(self._text == LINE_FEED)

    @cached_property
    def symbols(self) -> Offsets:
        """Hash signs and ellipses: `#`, U+2026, and three full stops in a row."""
        symbols: Mask = self._text == ord("#")
        # found at each byte but the last two
        symbols[:-2] |= self._ellipses
        return self.marks(symbols)

    @cached_property
    def bullet_lines(self) -> Offsets:
        """Lines that start with `-`, `*` or U+2022."""
        feeds = np.flatnonzero(self._text == LINE_FEED)
        # Every line ends with a line feed, so none begins behind the last one.
        starts = np.concatenate(([0], feeds + 1))[: len(feeds)]
        first = self._text[starts]
        bullet = (first == ord("-")) | (first == ord("*"))
        wide = starts[first == 0xE2]
        # U+2022 is E2 80 A2
        bullet[first == 0xE2] = (self._text[wide + 1] == 0x80) & (self._text[wide + 2] == 0xA2)
        return self.places(starts[bullet])

    @cached_property
    def ellipsis_lines(self) -> Offsets:
        """Lines that end with an ellipsis."""
        # An ellipsis has three bytes, whether it is full stops or U+2026.
        return self.places(np.flatnonzero(self._ellipses[:-1] & (self._text[3:] == LINE_FEED)))

    @cached_property
    def words_with_letters(self) -> Offsets:
        """Words that contain a letter."""
        # A word ends at a white-space character, and has a letter if there are more letters before
        # this one than before the last one.
        spaces = np.flatnonzero(self._text <= SPACE)
        before = np.cumsum(self._letters)[spaces]
        has_letter = np.diff(before, prepend=0) > 0
        return self.places(spaces[has_letter]) + self._unspaced

    @cached_property
    def stop_words(self) -> Offsets:
        """Distinct `STOP_WORDS`, in any case."""
        # Where runs of letters begin and end, in turns.
        edges = np.flatnonzero(np.diff(self._letters, prepend=False, append=False))
        starts, lengths = edges[::2], np.diff(edges)[::2]
        # Runs of letters as long as the word, narrowed down letter by letter.
        found = np.zeros(len(self._ends), dtype=np.int64)
        for word in STOP_WORDS:
            places = starts[lengths == len(word)]
            for offset, letter in enumerate(word):
                # Bit 0x20 makes ASCII letters lower-case.
                places = places[self._text[places + offset] | 0x20 == letter]
            found += self.places(places) > 0
        return found

    def matches(self, pattern: bytes) -> Offsets:
        """Matches of a regular expression, in any case."""
        matches = re.finditer(pattern, self._text.tobytes(), re.IGNORECASE)
        return self.places(np.array([match.start() for match in matches], dtype=np.int64))

    def marks(self, marks: Mask) -> Offsets:
        """The number of marked bytes in each document."""
        return self.places(np.flatnonzero(marks))

    def places(self, places: Offsets) -> Offsets:
        """The number of the ascending `places` in each document."""
        # Ascending places: how many precede each document's end, and the differences.
        return np.diff(np.searchsorted(places, self._ends), prepend=0)

    @cached_property
    def _unspaced(self) -> Offsets:
        """Words in scripts without spaces between them, such as Chinese and Thai."""
        # First bytes of characters of three or four bytes.
        leads = np.flatnonzero(self._text >= 0xE0)
        code, _ = decode(np.concatenate((self._text, np.zeros(3, dtype=np.uint8))), leads)
        before = offsets_of(units(code))[np.searchsorted(leads, self._ends)]
        words: Offsets = np.diff(before, prepend=0) // UNITS_PER_WORD
        return words

    @cached_property
    def _letters(self) -> Mask:
        """Bytes of letters; all bytes of non-ASCII characters count."""
        folded = self._text | 0x20
        letters: Mask = ((folded >= ord("a")) & (folded <= ord("z"))) | (self._text >= 0x80)
        return letters

    @cached_property
    def _ellipses(self) -> Mask:
        """Whether three full stops or U+2026 begin at each byte but the last two."""
        text = self._text
        full_stop = text == ord(".")
        three = full_stop[:-2] & full_stop[1:-1] & full_stop[2:]
        one = (text[:-2] == 0xE2) & (text[1:-1] == 0x80) & (text[2:] == 0xA6)
        found: Mask = three | one
        return found


Rule = tuple[Reason, str, Callable[[TextMeasures, float], Mask]]
"""A reason, the setting that enables it, and which documents of a block exceed that limit."""

RULES: tuple[Rule, ...] = (
    (Reason.SHORT, "min_words", lambda of, limit: of.words < limit),
    (Reason.LONG, "max_words", lambda of, limit: of.words > limit),
    (
        Reason.WORD_LENGTH,
        "min_mean_word_length",
        lambda of, limit: of.characters - of.words < limit * of.words,
    ),
    (
        Reason.WORD_LENGTH,
        "max_mean_word_length",
        lambda of, limit: of.characters - of.words > limit * of.words,
    ),
    (Reason.SYMBOLS, "max_symbol_to_word_ratio", lambda of, limit: of.symbols > limit * of.words),
    (Reason.BULLETS, "max_bullet_line_share", lambda of, limit: of.bullet_lines > limit * of.lines),
    (
        Reason.ELLIPSES,
        "max_ellipsis_line_share",
        lambda of, limit: of.ellipsis_lines > limit * of.lines,
    ),
    (
        Reason.FEW_LETTERS,
        "min_alphabetic_share",
        lambda of, limit: of.words_with_letters < limit * of.words,
    ),
    (Reason.FEW_STOP_WORDS, "min_stop_words", lambda of, limit: of.stop_words < limit),
    (Reason.CURLY_BRACKET, "drop_curly_brackets", lambda of, _: of.matches(rb"{") > 0),
    (Reason.LOREM_IPSUM, "drop_lorem_ipsum", lambda of, _: of.matches(rb"lorem ipsum") > 0),
)
"""In the order in which they are applied."""


def filter_documents(block: DocumentBlock, replaced: Offsets, cleaning: CleaningConfig) -> Reasons:
    """The first reason to drop each document of `block`, or `KEPT`."""
    counts = TextMeasures(block)
    empty = np.diff(block.ends, prepend=0) == 0
    reasons = np.where(empty, Reason.EMPTY, Reason.KEPT).astype(np.uint8)
    # Each rule marks documents; the first that does so gives the reason.
    broken: list[tuple[Reason, Mask]] = []
    if replaced.any():
        share = cleaning.max_replacement_share
        limit = share * np.maximum(counts.characters, 1)
        broken.append((Reason.NOT_TEXT, replaced > limit))
    for reason, setting, breaks in RULES:
        if limit := getattr(cleaning, setting):
            broken.append((reason, breaks(counts, limit)))
    for reason, holds in broken:
        reasons[holds & (reasons == Reason.KEPT)] = reason
    return reasons
