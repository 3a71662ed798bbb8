"""Which documents are dropped, and why.

In:  cleaned documents.
Out: a `Reason` for each; `KEPT` for most.

The heuristics are Gopher's (Rae et al. 2021, A.1.1), all off by default. What is dropped is counted
and listed, never just gone.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from pipeline.cleaning import CleanBlock
from pipeline.config import CleaningConfig
from pipeline.lines import SPACE
from pipeline.readers.documents import Bytes, Offsets

Reasons = npt.NDArray[np.uint8]


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


def filter_documents(block: CleanBlock, cleaning: CleaningConfig) -> Reasons:
    """Why each document of `block` is dropped; the first reason that holds is given."""
    lengths = np.diff(block.ends, prepend=0)
    reasons = np.zeros(len(lengths), dtype=np.uint8)
    _give(reasons, Reason.EMPTY, lengths == 0)
    if block.replaced.any():
        characters = lengths - _per_document(block, (block.text & 0xC0) == 0x80)
        too_many = block.replaced > cleaning.max_replacement_share * np.maximum(characters, 1)
        _give(reasons, Reason.NOT_TEXT, too_many)
    if cleaning.min_words or cleaning.max_symbol_to_word_ratio or cleaning.min_alphabetic_share:
        _filter_by_words(reasons, block, cleaning)
    return reasons


def _filter_by_words(reasons: Reasons, block: CleanBlock, cleaning: CleaningConfig) -> None:
    words = _per_document(block, block.text <= SPACE)
    _give(reasons, Reason.SHORT, words < cleaning.min_words)
    if cleaning.max_symbol_to_word_ratio:
        symbols = _per_document(block, _symbols(block.text))
        _give(reasons, Reason.SYMBOLS, symbols > cleaning.max_symbol_to_word_ratio * words)
    if cleaning.min_alphabetic_share:
        with_letter = _words_with_letters(block)
        _give(reasons, Reason.FEW_LETTERS, with_letter < cleaning.min_alphabetic_share * words)


def _give(reasons: Reasons, reason: Reason, holds: npt.NDArray[np.bool_]) -> None:
    reasons[holds & (reasons == Reason.KEPT)] = reason


def _per_document(block: CleanBlock, marks: npt.NDArray[np.bool_]) -> Offsets:
    """How many marked bytes each document has."""
    return np.diff(np.searchsorted(np.flatnonzero(marks), block.ends), prepend=0)


def _symbols(text: Bytes) -> npt.NDArray[np.bool_]:
    """Hashes and ellipses: `#`, the character U+2026, and three full stops in a row."""
    hashes: npt.NDArray[np.bool_] = text == ord("#")
    full_stop = text == ord(".")
    hashes[:-2] |= full_stop[:-2] & full_stop[1:-1] & full_stop[2:]
    hashes[:-2] |= (text[:-2] == 0xE2) & (text[1:-1] == 0x80) & (text[2:] == 0xA6)
    return hashes


def _words_with_letters(block: CleanBlock) -> Offsets:
    """Words of each document that hold a letter; every non-ASCII character passes for one."""
    folded = block.text | 0x20
    letters = ((folded >= ord("a")) & (folded <= ord("z"))) | (block.text >= 0x80)
    spaces = np.flatnonzero(block.text <= SPACE)  # one after each word
    before = np.searchsorted(np.flatnonzero(letters), spaces)
    has_letter = np.diff(before, prepend=0) > 0
    return np.diff(np.searchsorted(spaces[has_letter], block.ends), prepend=0)
