"""Sentences: where a paragraph is cut.

In:  cleaned text, one paragraph a line.
Out: the same text with a line feed in place of the space after each sentence.

Rules on the places where a terminal mark is followed by a space, for all places of a block at once:
what comes after must not begin with a small letter, and the word before a full stop must not be an
abbreviation or an initial, unless a word follows that mostly begins sentences. How this compares
with other segmenters in speed and accuracy: docs/decisions/sentences.md.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.readers.documents import Bytes, Offsets
from pipeline.text.lines import LINE_FEED, SPACE

Keys = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]

_MARGIN = 16
"""Spaces put round the text, so that looking back and ahead needs no care at its ends."""
_KEY_BYTES = 8


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


NEVER_LAST = _set(
    """mr mrs ms mx dr drs prof st rev hon gen col maj capt cpt lt sgt cmdr cdr adm gov sen rep pres
    supt fr messrs mme mlle msgr vs cf viz e.g i.e eg ie approx est incl pvt ps p.s"""
)
"""Abbreviations that something always follows."""

RARELY_LAST = _set(
    """inc ltd co corp llc bros jr sr etc al esq ave blvd rd dept univ assn bldg mt ft u.s u.k u.n
    u.s.a e.u a.m p.m b.c a.d ph.d m.d b.a m.a d.c jan feb mar apr jun jul aug sep sept oct nov dec
    mon tue tues wed thu thurs fri sat sun ed eds trans vols"""
)
"""Abbreviations that end a sentence only if a word follows that mostly begins one."""

BEFORE_NUMBERS = _set("no nos nr p pp c ca fig figs vol ch sec art eq op para ref refs v ext tel")
"""Abbreviations before a digit, ordinary words or sentence ends before anything else."""

STARTERS = _set(
    """the this that these those he she it they we you there here in on at by for from with as if
    when while after before although because since however but and so then thus what who how why
    where his her its their our my your a an one some many most all both each no not yes also
    another during despite let please i i'm it's"""
)
"""Words that, with a capital, mostly begin a sentence."""

LONGEST_SENTENCE = 4096
"""Bytes; a longer one is a list or a table in disguise and is cut at spaces."""

_MOST_MARKS = 3
"""Closing or opening marks looked past, as in `."')`."""

_BEGINNER, _TERMINAL, _CLOSER, _OPENER, _BOTH, _OTHER = range(6)
"""What a byte can be beside a sentence's end; a beginner is a letter, a digit, or no ASCII."""


def _kinds() -> npt.NDArray[np.uint8]:
    kinds = np.full(256, _OTHER, dtype=np.uint8)
    kinds[[byte for byte in range(256) if byte >= 0x80 or chr(byte).isalnum()]] = _BEGINNER
    kinds[list(b"$#@&")] = _BEGINNER
    for characters, kind in ((b".!?", _TERMINAL), (b")]}", _CLOSER), (b"([{<", _OPENER)):
        kinds[list(characters)] = kind
    kinds[list(b"\"'*_")] = _BOTH
    return kinds


_KINDS = _kinds()
_WIDE_CLOSERS, _WIDE_OPENERS = "\u2019\u201d\u203a", "\u2018\u201c\u2039\u201e\u2013\u2014"
"""Marks of three bytes each."""
_WIDE_LEADS = (0xE3, 0xEF)
"""First bytes of the CJK terminals."""
_WIDE_TERMINALS, _CJK_CLOSERS = "\u3002\uff01\uff1f", "\u300d\u300f\u201d\u2019\uff09"


def _small_letters() -> Mask:
    """Which characters of one or two bytes are small letters."""
    return np.array([chr(code).islower() for code in range(1 << 11)], dtype=np.bool_)


_SMALL = _small_letters()


def _keys(words: frozenset[str]) -> Keys:
    """Words of at most 8 bytes as integers, sorted."""
    return np.array(
        sorted(
            int.from_bytes(word.encode(), "little") for word in words if len(word) <= _KEY_BYTES
        ),
        dtype=np.uint64,
    )


_NEVER_LAST, _RARELY_LAST, _BEFORE_NUMBERS = map(_keys, (NEVER_LAST, RARELY_LAST, BEFORE_NUMBERS))
_STARTERS = _keys(STARTERS)
_FOLD = np.uint64(0x2020202020202020)
_LENGTH_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(_KEY_BYTES + 1)], dtype=np.uint64)


def split_sentences(text: Bytes, ends: Offsets) -> tuple[Bytes, Offsets]:
    """`text` with line feeds between sentences, and document ends moved along."""
    if not len(text):
        return text, ends
    text, ends = _after_wide_terminals(text, ends)
    margin = np.full(_MARGIN, SPACE, dtype=np.uint8)
    padded = np.concatenate((margin, text, margin))
    terminals, spaces = _candidates(padded)
    nexts = _past_openers(padded, spaces + 1)
    padded[spaces[_ends_sentence(padded, terminals, nexts)]] = LINE_FEED
    split = padded[_MARGIN:-_MARGIN]
    _cut_long_lines(split)
    return split, ends


def _after_wide_terminals(text: Bytes, ends: Offsets) -> tuple[Bytes, Offsets]:
    """Line feeds inserted after CJK full stops and marks, which no space follows."""
    padded = np.concatenate((text, np.zeros(_MARGIN, dtype=np.uint8)))
    leads = np.concatenate([np.flatnonzero(text == lead) for lead in _WIDE_LEADS])
    places = leads[_is_one_of(padded, leads, _WIDE_TERMINALS)] + 3
    if not len(places):
        return text, ends
    for _ in range(_MOST_MARKS):
        places = places + 3 * _is_one_of(padded, places, _WIDE_TERMINALS + _CJK_CLOSERS)
    places = np.unique(places[padded[places] > SPACE])
    return np.insert(text, places, LINE_FEED), ends + np.searchsorted(places, ends)


def _is_one_of(text: Bytes, places: Offsets, characters: str) -> Mask:
    """Which places hold one of the `characters`, each of three bytes."""
    code = text[places].astype(np.int64)
    for ahead in (1, 2):
        code = code << 8 | text[places + ahead]
    found = np.zeros(len(places), dtype=np.bool_)
    for character in characters:
        found |= code == int.from_bytes(character.encode(), "big")
    return found


def _cut_long_lines(text: Bytes) -> None:
    """Put line feeds into lines that no sentence is as long as, at spaces."""
    feeds = np.flatnonzero(text == LINE_FEED)
    starts = np.concatenate(([0], feeds + 1))[: len(feeds)]
    for line in np.flatnonzero(feeds - starts > LONGEST_SENTENCE).tolist():
        start, end = int(starts[line]), int(feeds[line])
        while end - start > LONGEST_SENTENCE:
            spaces = np.flatnonzero(text[start : start + LONGEST_SENTENCE] == SPACE)
            if len(spaces):
                text[start + spaces[-1]] = LINE_FEED
            start += int(spaces[-1]) + 1 if len(spaces) else LONGEST_SENTENCE


def _candidates(text: Bytes) -> tuple[Offsets, Offsets]:
    """Terminal marks that a space follows, closing marks between them aside; and those spaces."""
    marks = (text == ord(".")) | (text == ord("?")) | (text == ord("!"))
    terminals = np.flatnonzero(marks)
    spaces = terminals + 1
    for _ in range(_MOST_MARKS):
        kinds = _KINDS[text[spaces]]
        width = ((kinds == _CLOSER) | (kinds == _BOTH)).astype(np.int64)
        width += 3 * _is_one_of(text, spaces, _WIDE_CLOSERS)
        if not width.any():
            break
        spaces += width
    found = text[spaces] == SPACE
    return terminals[found], spaces[found]


def _past_openers(text: Bytes, places: Offsets) -> Offsets:
    """The places moved past opening marks, to the first letter or digit of what follows."""
    for _ in range(_MOST_MARKS):
        kinds = _KINDS[text[places]]
        width = ((kinds == _OPENER) | (kinds == _BOTH)).astype(np.int64)
        width += 3 * _is_one_of(text, places, _WIDE_OPENERS)
        if not width.any():
            break
        places = places + width
    return places


def _ends_sentence(text: Bytes, terminals: Offsets, nexts: Offsets) -> Mask:
    """Which terminal marks end a sentence."""
    after = text[nexts]
    digit = (after >= ord("0")) & (after <= ord("9"))
    ends: Mask = ~_is_small(text, nexts) & (_KINDS[after] == _BEGINNER)
    stops = np.flatnonzero((text[terminals] == ord(".")) & ends)
    words = _words_before(text, terminals[stops])
    starter = _among(_words_after(text, nexts[stops]), _STARTERS)
    abbreviation = (words.initial | words.dotted | _among(words.keys, _RARELY_LAST)) & ~starter
    abbreviation |= _among(words.keys, _NEVER_LAST) | words.numbering
    abbreviation |= _among(words.keys, _BEFORE_NUMBERS) & digit[stops]
    ends[stops[abbreviation]] = False
    return ends


def _among(keys: Keys, words: Keys) -> Mask:
    """Which of `keys` are in the ascending `words`."""
    found: Mask = words[np.minimum(np.searchsorted(words, keys), len(words) - 1)] == keys
    return found


def _is_small(text: Bytes, places: Offsets) -> Mask:
    """Whether a small letter stands there; of characters above U+07FF none counts as one."""
    first = text[places].astype(np.int64)
    second = text[places + 1].astype(np.int64)
    two_bytes = (first & 0xE0) == 0xC0
    code = np.where(two_bytes, ((first & 0x1F) << 6) | (second & 0x3F), first)
    small: Mask = _SMALL[code] & (two_bytes | (first < 0x80))
    return small


@dataclass(frozen=True)
class _Words:
    """The words before full stops.

    keys:      the word in small letters as an integer, inner full stops included; 0 if too long.
    initial:   a single capital letter.
    dotted:    a full stop inside, as in U.S.
    numbering: a number that begins its line.
    """

    keys: Keys
    initial: Mask
    dotted: Mask
    numbering: Mask


def _words_before(text: Bytes, stops: Offsets) -> _Words:
    length = np.zeros(len(stops), dtype=np.int64)
    inside = np.ones(len(stops), dtype=np.bool_)
    dotted = np.zeros(len(stops), dtype=np.bool_)
    digits = np.ones(len(stops), dtype=np.bool_)
    for back in range(1, _KEY_BYTES + 2):
        before = text[stops - back]
        inside &= _KINDS[before] <= _TERMINAL
        length += inside
        dotted |= inside & (before == ord("."))
        digits &= ~inside | ((before >= ord("0")) & (before <= ord("9")))
    fits = (length > 0) & (length <= _KEY_BYTES)
    raw = _load(text, stops - _KEY_BYTES) | _FOLD
    shift = (8 * (_KEY_BYTES - np.minimum(length, _KEY_BYTES))).astype(np.uint64)
    keys = np.where(fits, raw >> np.minimum(shift, np.uint64(63)), np.uint64(0))
    first = text[stops - np.maximum(length, 1)]
    capital = (first >= ord("A")) & (first <= ord("Z"))
    begins_line = text[stops - length - 1] == LINE_FEED
    begins_line |= stops - length == _MARGIN
    return _Words(
        keys=keys,
        initial=(length == 1) & capital,
        dotted=dotted & fits & ~digits,
        numbering=digits & fits & begins_line,
    )


def _words_after(text: Bytes, places: Offsets) -> Keys:
    """The words that begin at `places`, in small letters; 0 for longer ones than any starter."""
    length = np.zeros(len(places), dtype=np.int64)
    inside = np.ones(len(places), dtype=np.bool_)
    for ahead in range(_KEY_BYTES + 1):
        folded = text[places + ahead] | 0x20
        inside &= ((folded >= ord("a")) & (folded <= ord("z"))) | (folded == ord("'"))
        length += inside
    raw = (_load(text, places) | _FOLD) & _LENGTH_MASKS[np.minimum(length, _KEY_BYTES)]
    return np.where(length <= _KEY_BYTES, raw, np.uint64(0))


def _load(text: Bytes, places: Offsets) -> Keys:
    """The 8 bytes from each place on as an integer."""
    view: Keys = np.ndarray((len(text) - _KEY_BYTES + 1,), "<u8", text, 0, (1,))
    return view[places]
