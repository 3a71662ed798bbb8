"""Which documents are dropped, and why.

In:  cleaned documents.
Out: a `Reason` for each; `KEPT` for most.

The rules are Gopher's (Rae et al. 2021, arXiv 2112.11446, A.1.1) and C4's (Raffel et al. 2020,
arXiv 1910.10683, 2.2), all off by default. What is dropped is counted and listed, never just gone.

Left out are the rules that do not judge a document by counting in it: Gopher's repetitions (Table
A1), C4's rules that drop lines (no final punctuation, few words, "javascript"), its list of bad
words, its language detection and its three-sentence spans. Near-duplicates have a stage of their
own (pipeline/dedup.py).
"""

import re
from collections.abc import Callable
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from pipeline.config import CleaningConfig
from pipeline.readers.documents import Bytes, Offsets
from pipeline.text.cleaning import CleanBlock
from pipeline.text.lines import LINE_FEED, SPACE, Mask

Reasons = npt.NDArray[np.uint8]

STOP_WORDS = (b"the", b"be", b"to", b"of", b"and", b"that", b"have", b"with")
"""English words of which a text has some (Gopher's list)."""


class Reason(IntEnum):
    """What became of a document; the names are the manifest's and the record's."""

    KEPT = 0
    EMPTY = 1
    NOT_TEXT = 2
    """More invalid bytes than `max_replacement_share`."""
    SHORT = 3
    SYMBOLS = 4
    FEW_LETTERS = 5
    NO_TOKENS = 6
    """Only characters that the tokenizer leaves out."""
    DROP_LIST = 7
    DUPLICATE = 8
    HELD_OUT = 9
    """A training document that equals a held-out one."""
    LONG = 10
    WORD_LENGTH = 11
    BULLETS = 12
    ELLIPSES = 13
    FEW_STOP_WORDS = 14
    CURLY_BRACKET = 15
    LOREM_IPSUM = 16


def filter_documents(block: CleanBlock, cleaning: CleaningConfig) -> Reasons:
    """Why each document of `block` is dropped; the first reason that holds is given."""
    lengths = np.diff(block.ends, prepend=0)
    reasons = np.zeros(len(lengths), dtype=np.uint8)
    _give(reasons, Reason.EMPTY, lengths == 0)
    if block.replaced.any():
        characters = np.maximum(_characters(block), 1)
        too_many = block.replaced > cleaning.max_replacement_share * characters
        _give(reasons, Reason.NOT_TEXT, too_many)
    for reason, setting, breaks in RULES:
        if limit := getattr(cleaning, setting):
            _give(reasons, reason, breaks(block, limit))
    return reasons


def _give(reasons: Reasons, reason: Reason, holds: Mask) -> None:
    reasons[holds & (reasons == Reason.KEPT)] = reason


def _marks(block: CleanBlock, marks: Mask) -> Offsets:
    """How many marked bytes each document has."""
    return _places(block, np.flatnonzero(marks))


def _places(block: CleanBlock, places: Offsets) -> Offsets:
    """How many of the ascending `places` each document has."""
    return np.diff(np.searchsorted(places, block.ends), prepend=0)


def _characters(block: CleanBlock) -> Offsets:
    lengths = np.diff(block.ends, prepend=0)
    characters: Offsets = lengths - _marks(block, (block.text & 0xC0) == 0x80)
    return characters


def _words(block: CleanBlock) -> Offsets:
    return _marks(block, block.text <= SPACE)  # one after each word


def _letters_of_words(block: CleanBlock) -> Offsets:
    """Characters of each document but white space."""
    letters: Offsets = _characters(block) - _words(block)
    return letters


def _symbols(block: CleanBlock) -> Offsets:
    """Hashes and ellipses: `#`, the character U+2026, and three full stops in a row."""
    text = block.text
    symbols: Mask = text == ord("#")
    symbols[:-2] |= _ellipses(text)
    return _marks(block, symbols)


def _ellipses(text: Bytes) -> Mask:
    """Where three full stops or U+2026 begin; all but the last two bytes are told."""
    full_stop = text == ord(".")
    three = full_stop[:-2] & full_stop[1:-1] & full_stop[2:]
    one = (text[:-2] == 0xE2) & (text[1:-1] == 0x80) & (text[2:] == 0xA6)
    found: Mask = three | one
    return found


def _lines(block: CleanBlock) -> Offsets:
    return _marks(block, block.text == LINE_FEED)


def _lines_with_bullet(block: CleanBlock) -> Offsets:
    """Lines of each document that begin with `-`, `*` or the character U+2022."""
    feeds = np.flatnonzero(block.text == LINE_FEED)
    starts = np.concatenate(([0], feeds + 1))[: len(feeds)]
    first = block.text[starts]
    bullet = (first == ord("-")) | (first == ord("*"))
    wide = starts[first == 0xE2]
    bullet[first == 0xE2] = (block.text[wide + 1] == 0x80) & (block.text[wide + 2] == 0xA2)
    return _places(block, starts[bullet])


def _lines_with_ellipsis(block: CleanBlock) -> Offsets:
    """Lines of each document that end with an ellipsis."""
    text = block.text
    return _places(block, np.flatnonzero(_ellipses(text)[:-1] & (text[3:] == LINE_FEED)))


def _letters(text: Bytes) -> Mask:
    """Letters; every byte of a non-ASCII character passes for one."""
    folded = text | 0x20
    letters: Mask = ((folded >= ord("a")) & (folded <= ord("z"))) | (text >= 0x80)
    return letters


def _words_with_letters(block: CleanBlock) -> Offsets:
    """Words of each document that hold a letter."""
    spaces = np.flatnonzero(block.text <= SPACE)
    before = np.searchsorted(np.flatnonzero(_letters(block.text)), spaces)
    has_letter = np.diff(before, prepend=0) > 0
    return _places(block, spaces[has_letter])


def _stop_words(block: CleanBlock) -> Offsets:
    """How many different ones of `STOP_WORDS` each document has, in whatever case."""
    edges = np.flatnonzero(np.diff(_letters(block.text), prepend=False, append=False))
    starts, lengths = edges[::2], np.diff(edges)[::2]
    found = np.zeros(len(block.ends), dtype=np.int64)
    for word in STOP_WORDS:
        places = starts[lengths == len(word)]
        for offset, letter in enumerate(word):
            places = places[block.text[places + offset] | 0x20 == letter]
        found += _places(block, places) > 0
    return found


def _lorem_ipsum(block: CleanBlock) -> Offsets:
    matches = re.finditer(rb"lorem ipsum", block.text.tobytes(), re.IGNORECASE)
    return _places(block, np.array([match.start() for match in matches], dtype=np.int64))


Rule = tuple[Reason, str, Callable[[CleanBlock, float], Mask]]
"""A reason, the setting that turns it on, and which documents of a block break that limit."""

RULES: tuple[Rule, ...] = (
    (Reason.SHORT, "min_words", lambda block, limit: _words(block) < limit),
    (Reason.LONG, "max_words", lambda block, limit: _words(block) > limit),
    (
        Reason.WORD_LENGTH,
        "min_mean_word_length",
        lambda block, limit: _letters_of_words(block) < limit * _words(block),
    ),
    (
        Reason.WORD_LENGTH,
        "max_mean_word_length",
        lambda block, limit: _letters_of_words(block) > limit * _words(block),
    ),
    (
        Reason.SYMBOLS,
        "max_symbol_to_word_ratio",
        lambda block, limit: _symbols(block) > limit * _words(block),
    ),
    (
        Reason.BULLETS,
        "max_bullet_line_share",
        lambda block, limit: _lines_with_bullet(block) > limit * _lines(block),
    ),
    (
        Reason.ELLIPSES,
        "max_ellipsis_line_share",
        lambda block, limit: _lines_with_ellipsis(block) > limit * _lines(block),
    ),
    (
        Reason.FEW_LETTERS,
        "min_alphabetic_share",
        lambda block, limit: _words_with_letters(block) < limit * _words(block),
    ),
    (Reason.FEW_STOP_WORDS, "min_stop_words", lambda block, limit: _stop_words(block) < limit),
    (
        Reason.CURLY_BRACKET,
        "drop_curly_brackets",
        lambda block, _: _marks(block, block.text == ord("{")) > 0,
    ),
    (Reason.LOREM_IPSUM, "drop_lorem_ipsum", lambda block, _: _lorem_ipsum(block) > 0),
)
"""In the order in which they are asked."""
