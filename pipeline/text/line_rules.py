"""Line rules: lines that are removed from documents, and why.

In:  cleaned documents, one paragraph per line.
Out: the same without some lines; how many each rule has removed from each document.

The rules are those of C4 (Raffel et al. 2020, arXiv 1910.10683, 2.2), with those that only its code
has, in its order: the first rule that a line breaks is counted. Whether a line ends like a sentence
is decided after citations are removed, so one that ends in ` [12]` does not, as in C4.
"""

import re
from collections.abc import Callable
from functools import cached_property
from typing import NamedTuple

import numpy as np

from cloze.artifacts.arrays import Bytes, Int64s, Mask, Offsets, offsets_of
from cloze.pipeline.config.rules import RulesConfig
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import LINE_FEED, SPACE, clean

POLICY_PHRASES = (
    *(b"terms of use", b"privacy policy", b"cookie policy"),
    *(b"uses cookies", b"use of cookies", b"use cookies"),
)
"""What makes a line a policy line (C4's code)."""

END_MARKS = b".?!\"'"
"""Bytes with which a line ends like a sentence (C4's code)."""

_CITATION = re.compile(rb"\[(?:\d*|edit|citation needed)\]")

# D documents, L lines


class LineTexts:
    """What the rules ask about the L lines of a block: arrays of shape (L,).

    words_L, longest_L: words between white space, and characters of the longest, if another text
                        than that of `block` is to be asked; counted by this class.
    """

    def __init__(self, block: DocumentBlock, words: "LineWords | None" = None) -> None:
        self._text = block.text
        self.ends_L: Offsets = np.flatnonzero(block.text == LINE_FEED) + 1
        self.words = words or LineWords(block.text, self.ends_L)

    @cached_property
    def is_terminated(self) -> Mask:
        """Whether the line ends like a sentence, and not with an ellipsis."""
        padded = np.concatenate((np.zeros(3, dtype=np.uint8), self._text))
        last_3L = [padded[self.ends_L + 3 - 1 - back] for back in (1, 2, 3)]
        ends = np.isin(last_3L[0], np.frombuffer(END_MARKS, dtype=np.uint8))
        dots: Mask = np.logical_and.reduce([last == ord(".") for last in last_3L])
        terminated: Mask = ends & ~dots
        return terminated

    def mention(self, *phrases: bytes) -> Mask:
        """Which lines contain one of the `phrases`, given in small letters."""
        found = np.zeros(len(self.ends_L), dtype=np.bool_)
        for phrase in phrases:
            places, at = [], self._lower.find(phrase)
            while at >= 0:
                places.append(at)
                at = self._lower.find(phrase, at + len(phrase))
            found[np.searchsorted(self.ends_L, places, side="right")] = True
        return found

    @cached_property
    def _lower(self) -> bytes:
        return self._text.tobytes().lower()


class LineWords:
    """The words between white space of the lines of a text."""

    def __init__(self, text: Bytes, ends_L: Offsets) -> None:
        white = np.flatnonzero(text <= SPACE)
        last_L = np.searchsorted(white, ends_L)
        self.counts_L: Int64s = np.diff(last_L, prepend=0)
        """Words in each line."""
        # A word has no more characters than bytes; continuing ones are counted only if need be.
        self._text, self._white, self._last_L = text, white, last_L

    def longer_than(self, characters: float) -> Mask:
        """Which lines have a word of more `characters`."""
        sizes = np.diff(self._white, prepend=-1) - 1
        long = np.flatnonzero(sizes > characters)
        for at in long.tolist():
            word = self._text[self._white[at] - sizes[at] : self._white[at]]
            sizes[at] = np.count_nonzero((word & 0xC0) != 0x80)
        long = long[sizes[long] > characters]
        found = np.zeros(len(self._last_L), dtype=np.bool_)
        found[np.searchsorted(self._last_L, long, side="right")] = True
        return found


class LineRule(NamedTuple):
    """A rule that removes lines."""

    name: str
    setting: str
    """The setting of `RulesConfig` that turns it on, and is its limit."""
    source: str
    removes: Callable[[LineTexts, float], Mask]


C4, C4_CODE = "C4 2.2", "C4's code"

LINE_RULES: tuple[LineRule, ...] = (
    LineRule(
        *("long_word", "max_line_word_length", C4_CODE),
        lambda of, limit: of.words.longer_than(limit),
    ),
    LineRule("unterminated", "remove_unterminated_lines", C4, lambda of, _: ~of.is_terminated),
    LineRule("few_words", "min_line_words", C4, lambda of, limit: of.words.counts_L < limit),
    LineRule(
        *("javascript", "remove_javascript_lines", C4), lambda of, _: of.mention(b"javascript")
    ),
    LineRule(
        *("policy", "remove_policy_lines", C4_CODE), lambda of, _: of.mention(*POLICY_PHRASES)
    ),
)
"""In the order in which they are applied."""

CITATIONS = "citations"


def apply_line_rules(
    block: DocumentBlock, cleaning: RulesConfig
) -> tuple[DocumentBlock, dict[str, Int64s]]:
    """The documents without the lines and citations that the rules remove; some may become empty.

    Returns also how many lines each rule removes from each document, and citations, (D,) each; only
    of rules that are on.
    """
    rules = [rule for rule in LINE_RULES if getattr(cleaning, rule.setting)]
    if not rules and not cleaning.remove_citations:
        return block, {}
    words = LineTexts(block).words
    removed: dict[str, Int64s] = {}
    if cleaning.remove_citations:
        block, removed[CITATIONS] = _without_citations(block)
    of = LineTexts(block, words)
    lines_before_D = np.searchsorted(of.ends_L, block.ends, side="right")
    gone_L = np.zeros(len(of.ends_L), dtype=np.bool_)
    for rule in rules:
        broken_L = rule.removes(of, getattr(cleaning, rule.setting)) & ~gone_L
        removed[rule.name] = np.diff(
            offsets_of(broken_L.astype(np.int64))[lines_before_D], prepend=0
        )
        gone_L |= broken_L
    if gone_L.any():
        block = without_lines(block, of.ends_L, gone_L)
    if cleaning.remove_citations and removed[CITATIONS].any():
        # white space around them, and lines of nothing else
        block, _ = clean(block, line_break="paragraph")
    return block, removed


def without_lines(block: DocumentBlock, ends_L: Offsets, gone_L: Mask) -> DocumentBlock:
    """The same documents without the lines `gone_L`; `ends_L` are the ends of all."""
    lengths_L = np.diff(ends_L, prepend=0)
    # Lines fill the text without gaps, so a mask of lines, repeated by their lengths, is one of
    # bytes; ends move back by the bytes removed before them.
    text: Bytes = block.text[np.repeat(~gone_L, lengths_L)]
    gone_before_L1 = offsets_of(lengths_L * gone_L)
    lines_before_D = np.searchsorted(ends_L, block.ends, side="right")
    return DocumentBlock(text, block.ends - gone_before_L1[lines_before_D], block.positions)


def _without_citations(block: DocumentBlock) -> tuple[DocumentBlock, Int64s]:
    """The text without citations, spaces around them left; and how many each document had."""
    raw = block.text.tobytes()
    found = [match.span() for match in _CITATION.finditer(raw)]
    if not found:
        return block, np.zeros(len(block.ends), dtype=np.int64)
    starts, stops = np.array(found).T
    text = np.frombuffer(_CITATION.sub(b"", raw), dtype=np.uint8)
    before_D = np.searchsorted(stops, block.ends, side="right")
    ends = block.ends - offsets_of(stops - starts)[before_D]
    return DocumentBlock(text, ends, block.positions), np.diff(before_D, prepend=0)
