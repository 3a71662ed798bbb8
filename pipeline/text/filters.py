"""Quality filters: which documents are dropped, and why.

In:  cleaned documents, without the lines that line rules remove (line_rules.py).
Out: a `Reason` for each, usually `KEPT`.

The rules are Gopher's (Rae et al. 2021, arXiv 2112.11446, A.1.1 and Table A1), C4's (Raffel et al.
2020, arXiv 1910.10683, 2.2) and FineWeb's (Penedo et al. 2024, arXiv 2406.17557, 3.6), each a row
of `RULES`, all off by default. Dropped documents are counted and listed. Near-duplicates have their
own stage (pipeline/dedup.py).
"""

import re
from collections.abc import Callable
from enum import IntEnum
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Mask, Offsets, offsets_of
from cloze.pipeline.config.rules import RulesConfig
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import LINE_FEED, SPACE
from cloze.pipeline.text.languages import Shares, language_shares
from cloze.pipeline.text.scripts import UNITS_PER_WORD, decode, units
from cloze.pipeline.text.words import (
    DUPLICATE_SIZES,
    TOP_SIZES,
    LineMeasures,
    WordMeasures,
    measure_lines,
    measure_words,
)

Reasons = npt.NDArray[np.uint8]


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
    DUPLICATE_LINES = 21
    TOP_N_GRAM = 22
    DUPLICATE_N_GRAMS = 23
    UNTERMINATED_LINES = 24
    SHORT_LINES = 25
    LINE_BREAKS = 26
    FEW_SENTENCES = 27
    BLOCKED_WORD = 28
    LANGUAGE = 29
    REMOVED_LINES = 30
    """Line rules remove all of its lines."""
    LOW_SCORE = 31
    """Its score of quality is below that which `keep` asks for."""


class TextMeasures:
    """Per-document counts over a block: arrays of shape (D,), computed on first use.

    cleaning:    what else the counts depend on.
    sentences_D: sentences in each document, if they are known.
    """

    def __init__(
        self,
        block: DocumentBlock,
        cleaning: RulesConfig | None = None,
        sentences_D: Offsets | None = None,
    ) -> None:
        self._block, self._text, self._ends = block, block.text, block.ends
        self._cleaning = cleaning or RulesConfig()
        self._sentences_D = sentences_D

    @cached_property
    def words(self) -> WordMeasures:
        """What is counted over words."""
        cleaning = self._cleaning
        n_grams = any(getattr(cleaning, setting) for setting in _N_GRAM_SETTINGS)
        return measure_words(self._block, n_grams=n_grams)

    @cached_property
    def lines(self) -> LineMeasures:
        """What is counted over lines."""
        return measure_lines(self._block, short_characters=self._cleaning.short_line)

    @cached_property
    def characters(self) -> Offsets:
        """Characters, including white space."""
        # All bytes but those that continue a character, 10xxxxxx in UTF-8.
        characters: Offsets = np.diff(self._ends, prepend=0) - self.marks(
            (self._text & 0xC0) == 0x80
        )
        return characters

    @cached_property
    def sentences(self) -> Offsets:
        """Sentences; where nobody has cut them, lines."""
        return self.lines.lines if self._sentences_D is None else self._sentences_D

    @property
    def joined(self) -> Offsets:
        """Characters, without the line feed at the end; at least 1."""
        joined: Offsets = np.maximum(self.lines.characters + self.lines.lines - 1, 1)
        return joined

    @cached_property
    def hashes(self) -> Offsets:
        """Hash signs."""
        return self.marks(self._text == ord("#"))

    @cached_property
    def ellipses(self) -> Offsets:
        """Ellipses: U+2026, and each three full stops of a run."""
        text = self._text
        starts = np.flatnonzero(text[:-2] == 0xE2)
        one = starts[(text[starts + 1] == 0x80) & (text[starts + 2] == 0xA6)]
        # Of the edges of runs of full stops, those with even numbers are where a run begins. No run
        # crosses the end of a document, which is a line feed.
        edges = np.flatnonzero(np.diff(text == ord("."), prepend=False, append=False))
        dots, threes = edges[::2], np.diff(edges)[::2] // 3
        before = offsets_of(threes)[np.searchsorted(dots, self._ends)]
        ellipses: Offsets = self.places(one) + np.diff(before, prepend=0)
        return ellipses

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
        """Words between white space, or counted by characters, that contain a letter."""
        # A word ends at a white-space character, and has a letter if there are more letters before
        # this one than before the last one.
        spaces = np.flatnonzero(self._text <= SPACE)
        before = np.cumsum(self._letters)[spaces]
        has_letter = np.diff(before, prepend=0) > 0
        return self.places(spaces[has_letter]) + self._unspaced

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

    @cached_property
    def blocked(self) -> Offsets:
        """Blocked words and phrases, as whole words in any case."""
        # The longest first: alternatives are tried in order, and a word must not hide a phrase that
        # begins with it.
        words = sorted(self._cleaning.blocked_words, key=len, reverse=True)
        pattern = rf"(?<!\w)(?:{'|'.join(re.escape(word.lower()) for word in words)})(?!\w)"
        found = re.compile(pattern)
        raw = self._text.tobytes()
        counts = [
            len(found.findall(raw[start:end].decode().lower()))
            for start, end in pairwise([0, *self._ends.tolist()])
        ]
        return np.array(counts, dtype=np.int64)

    @property
    def least_language_share(self) -> float:
        """The share of a document's text that should be in one of `languages`."""
        return self._cleaning.min_language_share

    @cached_property
    def language_shares(self) -> Shares:
        """The share of each document's text in `languages`."""
        return language_shares(self._block, self._cleaning.languages)


class Rule(NamedTuple):
    """A rule that drops documents."""

    reason: Reason
    setting: str
    """The setting of `RulesConfig` that turns it on, and is its limit."""
    source: str
    """Where the rule comes from."""
    breaks: Callable[[TextMeasures, float | npt.NDArray[np.float64]], Mask]
    """Which documents of a block are beyond the limit, or each beyond its own: (D,)."""


GOPHER, TABLE_A1, C4, FINEWEB = "Gopher A.1.1", "Gopher Table A1", "C4 2.2", "FineWeb 3.6"


def _top(n: int) -> Rule:
    return Rule(
        Reason.TOP_N_GRAM,
        f"max_top_{n}_gram_text",
        TABLE_A1,
        lambda of, limit: of.words.top[n] / of.joined > limit,
    )


def _duplicate(n: int) -> Rule:
    return Rule(
        Reason.DUPLICATE_N_GRAMS,
        f"max_duplicate_{n}_gram_text",
        TABLE_A1,
        lambda of, limit: of.words.duplicated[n] / of.joined > limit,
    )


# Limits are multiplied by counts, or counts divided by at least 1, so that a document without words
# or lines is judged without dividing by 0.
RULES: tuple[Rule, ...] = (
    Rule(Reason.SHORT, "min_words", GOPHER, lambda of, limit: of.words.words < limit),
    Rule(Reason.LONG, "max_words", GOPHER, lambda of, limit: of.words.words > limit),
    Rule(
        Reason.WORD_LENGTH,
        "min_mean_word_length",
        GOPHER,
        lambda of, limit: of.words.characters < limit * of.words.words,
    ),
    Rule(
        Reason.WORD_LENGTH,
        "max_mean_word_length",
        GOPHER,
        lambda of, limit: of.words.characters > limit * of.words.words,
    ),
    Rule(
        Reason.SYMBOLS,
        "max_symbol_to_word_ratio",
        GOPHER,
        lambda of, limit: np.maximum(of.hashes, of.ellipses) > limit * of.words.tokens,
    ),
    Rule(
        Reason.BULLETS,
        "max_bullet_line_share",
        GOPHER,
        lambda of, limit: of.bullet_lines > limit * of.lines.lines,
    ),
    Rule(
        Reason.ELLIPSES,
        "max_ellipsis_line_share",
        GOPHER,
        lambda of, limit: of.ellipsis_lines > limit * of.lines.lines,
    ),
    Rule(
        Reason.FEW_LETTERS,
        "min_alphabetic_share",
        GOPHER,
        lambda of, limit: of.words.with_letters < limit * of.words.tokens,
    ),
    Rule(
        Reason.FEW_STOP_WORDS,
        "min_stop_words",
        GOPHER,
        lambda of, limit: of.words.stop_words < limit,
    ),
    Rule(
        Reason.DUPLICATE_LINES,
        "max_duplicate_line_share",
        TABLE_A1,
        lambda of, limit: of.lines.duplicates / np.maximum(of.lines.lines, 1) > limit,
    ),
    Rule(
        Reason.DUPLICATE_LINES,
        "max_duplicate_line_text",
        TABLE_A1,
        lambda of, limit: of.lines.duplicated_characters / of.joined > limit,
    ),
    *map(_top, TOP_SIZES),
    *map(_duplicate, DUPLICATE_SIZES),
    Rule(Reason.CURLY_BRACKET, "drop_curly_brackets", C4, lambda of, _: of.matches(rb"{") > 0),
    Rule(Reason.LOREM_IPSUM, "drop_lorem_ipsum", C4, lambda of, _: of.matches(rb"lorem ipsum") > 0),
    Rule(Reason.FEW_SENTENCES, "min_sentences", C4, lambda of, limit: of.sentences < limit),
    Rule(Reason.BLOCKED_WORD, "blocked_words", C4, lambda of, _: of.blocked > 0),
    Rule(
        Reason.UNTERMINATED_LINES,
        "min_terminated_line_share",
        FINEWEB,
        lambda of, limit: of.lines.terminated / np.maximum(of.lines.lines, 1) < limit,
    ),
    Rule(
        Reason.SHORT_LINES,
        "max_short_line_share",
        FINEWEB,
        lambda of, limit: of.lines.short / np.maximum(of.lines.lines, 1) > limit,
    ),
    Rule(
        Reason.DUPLICATE_LINES,
        "max_repeated_line_text",
        FINEWEB,
        lambda of, limit: (
            of.lines.duplicated_characters / np.maximum(of.lines.characters, 1) > limit
        ),
    ),
    Rule(
        Reason.LINE_BREAKS,
        "max_line_break_share",
        FINEWEB,
        lambda of, limit: (of.lines.lines - 1) / np.maximum(of.words.tokens, 1) > limit,
    ),
    Rule(
        Reason.LANGUAGE,
        "languages",
        "FineWeb 3.3",
        lambda of, _: of.language_shares < of.least_language_share,
    ),
)
"""In the order in which they are applied."""

_N_GRAM_SETTINGS = tuple(rule.setting for rule in RULES if "_gram_" in rule.setting)


def filter_documents(
    block: DocumentBlock,
    replaced: Offsets,
    cleaning: RulesConfig,
    sentences_D: Offsets | None = None,
) -> Reasons:
    """The first reason to drop each document of `block`, or `KEPT`.

    replaced: U+FFFD in each document. sentences_D: its sentences, or else lines count.
    """
    counts = TextMeasures(block, cleaning, sentences_D)
    empty = np.diff(block.ends, prepend=0) == 0
    reasons = np.where(empty, Reason.EMPTY, Reason.KEPT).astype(np.uint8)
    # Each rule marks documents; the first that does so gives the reason.
    broken: list[tuple[Reason, Mask]] = []
    if replaced.any():
        share = cleaning.max_replacement_share
        limit = share * np.maximum(counts.characters, 1)
        broken.append((Reason.NOT_TEXT, replaced > limit))
    # Measures are computed when a rule first asks for them: those of rules that are off cost
    # nothing.
    broken += (
        (rule.reason, rule.breaks(counts, limit))
        for rule in RULES
        if (limit := getattr(cleaning, rule.setting))
    )
    for reason, holds in broken:
        reasons[holds & (reasons == Reason.KEPT)] = reason
    return reasons
