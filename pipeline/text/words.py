"""Words and lines of documents, and how much of them is repeated: what quality rules count.

In:  a block of cleaned documents, one paragraph per line.
Out: counts for each document: words, words with letters, characters in n-grams that recur; lines,
     lines that recur, that end like a sentence, that are short.

Words are cut as in the studies whose thresholds the rules have (Gopher's and FineWeb's filters as
datatrove applies them): punctuation around a word is a word of its own, and so is what joins the
halves of `well-known`, while `U.S.`, `3.5` and `O'Brien` are whole, and a contraction (`'ll`,
`n't`, `'s`) and a unit behind its number (`5km`) are cut off. Where scripts have no spaces,
characters are words by themselves and count as fractions (scripts.py), and an n-gram has as many of
them as n words.

With a C compiler the counting is done in words.c; the Python here counts the same, and says what.
"""

import ctypes
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Int64s
from cloze.artifacts.runtime.native import compiled, pointer
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.scripts import (
    CODES,
    COMPLEX_UNITS,
    IDEOGRAPH_UNITS,
    SENTENCE_TERMINALS,
    UNITS_PER_WORD,
    is_mark,
    units,
)

STOP_WORDS = frozenset(("the", "be", "to", "of", "and", "that", "have", "with"))
"""Common English words (Gopher's list)."""

TOP_SIZES, DUPLICATE_SIZES = range(2, 5), range(5, 11)
"""Words in n-grams of which the most frequent counts, and of which all that recur do (Gopher)."""

LOWER, UPPER, DIGIT, EITHER_END, BEGIN_ONLY, QUOTE, HYPHEN = (1 << bit for bit in range(7))
ICON, MARK, PUNCTUATION, IDEOGRAPH, COMPLEX, TERMINAL = (1 << bit for bit in range(7, 13))
"""Classes of characters; letters without case are `LOWER` and `UPPER`."""
LETTER, ALONE = LOWER | UPPER, IDEOGRAPH | COMPLEX

_NOT_AT_ENDS = set(".%/\\@§•-") | set("†‡‰′″‧⁎⁑")
"""Punctuation that stays with the word before or after it."""
_AT_ENDS = set("<>_`´—–")
_LINE_TERMINALS = SENTENCE_TERMINALS + ".?!‼‽⁇⁈⁉．﹒"
_UNITS = (
    "km m dm cm mm ha nm yd in ft kg g mg t lb oz m/s km/h kmh mph hPa Pa mbar mb MB kb KB gb GB "
    "tb TB T G M K %"
)
_ABBREVIATIONS = (
    "Mr. Mrs. Ms. Dr. St. Mt. Rev. Gen. Gov. Sen. Rep. Adm. Prof. Inc. Co. co. Corp. Ltd. Jr. "
    "Bros. vs. i.e. e.g. a.m. p.m. Jan. Feb. Mar. Apr. Jun. Jul. Aug. Sep. Sept. Oct. Nov. Dec."
)
UNITS_OF_MEASURE, ABBREVIATIONS = frozenset(_UNITS.split()), frozenset(_ABBREVIATIONS.split())

# D documents, M measures


@cache
def classes() -> npt.NDArray[np.uint16]:
    """The classes of every character below `CODES`."""
    table = np.zeros(CODES, dtype=np.uint16)
    for code in chain(range(0xD800), range(0xE000, CODES)):
        character = chr(code)
        category = unicodedata.category(character)
        # Unassigned code points have no class, so that a new version of Unicode changes only texts
        # that use its characters.
        if category == "Cn":
            continue
        kind = 0
        if character.isalpha():
            # Letters of scripts without case count as both, so that no rule about capitals finds
            # them odd.
            lower, upper = character.islower(), character.isupper()
            kind |= LOWER * (lower or not upper) | UPPER * (upper or not lower)
        if category[0] in "PSC":
            kind |= PUNCTUATION
        if category in ("Ps", "Pe", "Pi", "Pf", "So") or character in _AT_ENDS:
            kind |= EITHER_END
        if category == "Po" and character not in _NOT_AT_ENDS:
            kind |= EITHER_END
        if category == "So":
            kind |= ICON
        if category == "Sc" or character in "§%=":
            kind |= BEGIN_ONLY
        table[code] = kind
    for characters, bit in (
        ("0123456789", DIGIT),
        ("'\"”“`‘´’‚„»«「」『』（）〔〕【】《》〈〉", QUOTE),
        ("-–—~", HYPHEN),
        (_LINE_TERMINALS, TERMINAL),
        ("…", ICON),
    ):
        table[[ord(character) for character in characters]] |= bit
    table[np.flatnonzero(is_mark())] |= MARK
    alone = units(np.arange(CODES))
    table[alone == IDEOGRAPH_UNITS] |= IDEOGRAPH
    table[alone == COMPLEX_UNITS] |= COMPLEX
    return table


@dataclass(frozen=True)
class WordMeasures:
    """Counts over the words of D documents, each (D,).

    tokens:       words and marks.
    words:        words: what has another character than punctuation and symbols.
    with_letters: those with a letter.
    characters:   characters of the words.
    stop_words:   distinct `STOP_WORDS`, in any case.
    top:          by n of `TOP_SIZES`, the characters of the most frequent n-gram, with a space
                  between two words, times its occurrences.
    duplicated:   by n of `DUPLICATE_SIZES`, the characters, without spaces, of n-grams that came
                  earlier in the document; those that overlap with one counted already do not count.
    """

    tokens: Int64s
    words: Int64s
    with_letters: Int64s
    characters: Int64s
    stop_words: Int64s
    top: dict[int, Int64s]
    duplicated: dict[int, Int64s]


@dataclass(frozen=True)
class LineMeasures:
    """Counts over the lines of D documents, each (D,).

    lines:                 lines.
    duplicates:            those that came earlier in the document.
    duplicated_characters: the characters of these.
    terminated:            lines that end with a mark that ends sentences, in any script.
    short:                 lines of at most so many characters.
    characters:            characters without line feeds.
    """

    lines: Int64s
    duplicates: Int64s
    duplicated_characters: Int64s
    terminated: Int64s
    short: Int64s
    characters: Int64s


@cache
def words_library() -> ctypes.CDLL | None:
    """The functions of words.c; None without a C compiler."""
    return compiled(Path(__file__).with_name("words.c"))


def measure_words(block: DocumentBlock, *, n_grams: bool = True) -> WordMeasures:
    """Count over the words; without `n_grams`, `top` and `duplicated` are 0."""
    documents, table = len(block.ends), classes()
    width = 4 + len(TOP_SIZES) + len(DUPLICATE_SIZES) + 1
    found_DM = np.zeros((documents, width), dtype=np.int64)
    kernel = words_library()
    text, ends = np.ascontiguousarray(block.text), np.ascontiguousarray(block.ends, dtype=np.int64)
    if kernel is None:
        texts = _decoded(block)
        # Without documents the list has no second dimension, so the empty array is assigned to
        # itself.
        found_DM[:] = [_plain_words(one, n_grams=n_grams) for one in texts] or found_DM
    elif kernel.measure_words(
        *(pointer(text), pointer(ends), documents, pointer(table), n_grams), pointer(found_DM)
    ):
        raise MemoryError(f"no memory to count the words of {len(text):,} bytes of text")
    tokens, words, with_letters, characters, *columns, stop_words = found_DM.T
    tops, rest = columns[: len(TOP_SIZES)], columns[len(TOP_SIZES) :]
    return WordMeasures(
        *(tokens, words, with_letters, characters, stop_words),
        top=dict(zip(TOP_SIZES, tops, strict=True)),
        duplicated=dict(zip(DUPLICATE_SIZES, rest, strict=True)),
    )


def measure_lines(block: DocumentBlock, *, short_characters: int) -> LineMeasures:
    """Count over the lines; those of at most `short_characters` are short."""
    documents, table = len(block.ends), classes()
    found_DM = np.zeros((documents, 6), dtype=np.int64)
    kernel = words_library()
    text, ends = np.ascontiguousarray(block.text), np.ascontiguousarray(block.ends, dtype=np.int64)
    if kernel is None:
        texts = _decoded(block)
        found_DM[:] = [_plain_lines(one, short_characters) for one in texts] or found_DM
    elif kernel.measure_lines(
        *(pointer(text), pointer(ends), documents, pointer(table), short_characters),
        pointer(found_DM),
    ):
        raise MemoryError(f"no memory to count the lines of {len(text):,} bytes of text")
    return LineMeasures(*found_DM.T)


def _decoded(block: DocumentBlock) -> Iterator[str]:
    raw = block.text.tobytes()
    return (raw[start:end].decode() for start, end in pairwise([0, *block.ends.tolist()]))


def _plain_lines(text: str, short_characters: int) -> list[int]:
    lines = text.split("\n")[:-1]
    repeated: list[str] = []
    seen: set[str] = set()
    for line in lines:
        repeated += [line] * (line in seen)
        seen.add(line)
    return [
        len(lines),
        len(repeated),
        sum(map(len, repeated)),
        sum(bool(_kind(line[-1:]) & TERMINAL) for line in lines),
        sum(len(line) <= short_characters for line in lines),
        sum(map(len, lines)),
    ]


def _plain_words(text: str, *, n_grams: bool) -> list[int]:
    words = list(cut_words(text))
    # Sizes are in units, of which `UNITS_PER_WORD` make a word. They are divided only as sums, so
    # that the fractions that single characters count as add up.
    sizes = [_units(word) for word in words]
    kinds = [[_kind(character) for character in word] for word in words]
    is_word = [any(not kind & PUNCTUATION for kind in of_word) for of_word in kinds]
    has_letter = [any(kind & LETTER for kind in of_word) for of_word in kinds]
    counts = [
        sum(sizes) // UNITS_PER_WORD,
        sum(size for size, counted in zip(sizes, is_word, strict=True) if counted)
        // UNITS_PER_WORD,
        sum(size for size, counted in zip(sizes, has_letter, strict=True) if counted)
        // UNITS_PER_WORD,
        sum(len(word) for word, counted in zip(words, is_word, strict=True) if counted),
    ]
    stop_words = len(STOP_WORDS & {word.lower() for word in words if word.isascii()})
    if not n_grams:
        return [*counts, *[0] * (len(TOP_SIZES) + len(DUPLICATE_SIZES)), stop_words]
    # The units in front of each word: the size of a run of words is then a difference.
    before = [0, *accumulate(sizes)]
    for n in TOP_SIZES:
        grams = Counter(tuple(words[a:b]) for a, b in _windows(before, n))
        # Of equally frequent n-grams the earliest, as a Counter keeps the order of first
        # occurrence.
        top, times = next(iter(grams.most_common(1)), ((), 0))
        counts.append(len(" ".join(top)) * times)
    for n in DUPLICATE_SIZES:
        seen: set[tuple[str, ...]] = set()
        characters = following = 0
        for a, b in _windows(before, n):
            if a < following:
                continue
            gram = tuple(words[a:b])
            if gram in seen:
                characters, following = characters + len("".join(gram)), b
            seen.add(gram)
        counts.append(characters)
    return [*counts, stop_words]


def _windows(before: Sequence[int], n: int) -> Iterator[tuple[int, int]]:
    """The runs of words that have just as many as `n` words: where they begin and end."""
    end = 0
    # Both ends only move forward. Among single characters a run has more than n words, elsewhere n.
    for begin in range(len(before) - 1):
        while end < len(before) - 1 and before[end] - before[begin] < n * UNITS_PER_WORD:
            end += 1
        if before[end] - before[begin] < n * UNITS_PER_WORD:
            return
        yield begin, end


def _kind(character: str) -> int:
    return int(classes()[ord(character)]) if character and ord(character) < CODES else 0


def _units(word: str) -> int:
    kind = _kind(word[0])
    if kind & IDEOGRAPH:
        return IDEOGRAPH_UNITS
    return COMPLEX_UNITS if kind & COMPLEX else UNITS_PER_WORD


def cut_words(text: str) -> Iterator[str]:
    """The words of cleaned text, with punctuation marks as words of their own."""
    for run in re.split("[ \n]+", text):
        yield from _cut_run(run)


def _cut_run(run: str) -> Iterator[str]:
    """Cut a run of characters without white space."""
    # From the outside in: marks before the run, marks behind it (taken from the end, so they are
    # given in reverse), a short form such as n't, then the marks within what is left.
    while size := _prefix(run):
        yield run[:size]
        run = run[size:]
    ending: list[str] = []
    # Looked up again after each mark: of `e.g.)` the bracket is cut off, and the full stop stays.
    while run not in ABBREVIATIONS and (size := _suffix(run)):
        ending.append(run[-size:])
        run = run[:-size]
    plain = run.replace("’", "'")
    short = re.search(r"(n't|'re|'ve|'ll|'d|'m)$", plain, re.IGNORECASE | re.ASCII)
    is_short = short and short.start() and _kind(plain[short.start() - 1]) & LETTER
    middle = short.start() if short and is_short else len(run)
    if run in ("cannot", "Cannot"):
        middle = len("can")
    start = at = 0
    while at < middle and not _is_address(plain):
        size = _infix(plain[:middle], at)
        # A mark with which a part begins stays there, unless it is a word by itself.
        if not size or (at == start and not _kind(run[at]) & ALONE):
            at += 1
            continue
        if at > start:
            yield run[start:at]
        yield run[at : at + size]
        start = at = at + size
    if start < middle:
        yield run[start:middle]
    if middle < len(run):
        yield run[middle:]
    yield from reversed(ending)


def _is_address(run: str) -> bool:
    """Whether it is the address of a page or of mail, which is a word as a whole."""
    letters = next((i for i, one in enumerate(run) if not _kind(one) & LETTER), 0)
    is_page = (letters and run[letters:].startswith("://") and len(run) > letters + 3) or (
        run.startswith("www.") and len(run) > 4
    )
    return bool(is_page) or "@" in run[1:-2]


def _prefix(run: str) -> int:
    dots = len(run) - len(run.lstrip("."))
    if dots > 1 or not run:
        return dots
    if _kind(run[0]) & (EITHER_END | BEGIN_ONLY):
        return 1
    return int(run[0] == "+" and not _kind(run[1:2]) & DIGIT)


def _suffix(run: str) -> int:
    if not run:
        return 0
    kind, before = _kind(run[-1]), _kind(run[-2:-1])
    dots = len(run) - len(run.rstrip("."))
    if dots > 1:
        return dots
    if run[-2:].replace("’", "'") in ("'s", "'S"):
        return 2
    if kind & EITHER_END or (
        before & DIGIT and (run[-1] == "+" or (kind & BEGIN_ONLY and run[-1] != "="))
    ):
        return 1
    return _unit(run) or int(run[-1] == "." and _is_full_stop(run))


def _unit(run: str) -> int:
    for size in (4, 3, 2, 1):
        if len(run) > size and run[-size:] in UNITS_OF_MEASURE and _kind(run[-size - 1]) & DIGIT:
            return size
    return 0


def _is_full_stop(run: str) -> bool:
    """Whether the last character ends a sentence, not an initial or a short form like `U.S.`."""
    if len(run) < 2:
        return False
    before = _kind(run[-2])
    if before & (DIGIT | EITHER_END | QUOTE) or run[-2] in "%-+":
        return True
    if before & LETTER != UPPER:
        return before & LETTER != 0
    # One capital may be an initial (`J.`) or the end of `U.S.`; after two, in `USA.`, a sentence
    # ends.
    return _kind(run[-3:-2]) & UPPER != 0


def _infix(run: str, at: int) -> int:
    kind, rest = _kind(run[at]), run[at:]
    if kind & ICON:
        return 1
    if kind & ALONE:
        marks = (i for i, one in enumerate(rest[1:], 1) if not _kind(one) & MARK)
        return next(marks, len(rest))
    dots = len(rest) - len(rest.lstrip("."))
    if dots > 1:
        return dots
    return _between(run, at) if 0 < at < len(run) - 1 else 0


def _between(run: str, at: int) -> int:
    """The same for a mark with a character on either side."""
    kind, character, rest = _kind(run[at]), run[at], run[at:]
    left, right = _kind(run[at - 1]), _kind(run[at + 1])
    parts = False
    if character in "+-*^" and left & DIGIT and (right & DIGIT or run[at + 1] == "-"):
        parts = True
    elif character == ".":
        parts = left & (LOWER | QUOTE) != 0 and right & (UPPER | QUOTE) != 0
    elif character == ",":
        parts = left & LETTER != 0 and right & LETTER != 0
    elif kind & HYPHEN and left & (LETTER | DIGIT):
        # Up to three hyphens are one dash, which only parts words: a letter has to follow.
        dashes = min(len(rest) - len(rest.lstrip("-")), 3) if character == "-" else 1
        return dashes if _kind(rest[dashes : dashes + 1]) & LETTER else 0
    else:
        parts = character in ":<>=/" and left & (LETTER | DIGIT) != 0 and right & LETTER != 0
    return int(parts)
