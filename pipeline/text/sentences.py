"""Sentence splitting.

In:  cleaned text, one paragraph per line.
Out: the same text with a line feed instead of the space after each sentence.

Rules are applied to all terminal marks of a block that are followed by a space at once: the next
word must not begin with a lower-case letter, and the word before a full stop must not be an
abbreviation or an initial, unless the next word is a common sentence starter. Reference numbers
(`end.[17]`) belong to the sentence they follow. docs/decisions/sentences.md compares speed and
accuracy with other segmenters.
"""

import numpy as np

from cloze.artifacts.arrays import Bytes, Mask, Offsets, UInt64s
from cloze.pipeline.text.cleaning import LINE_FEED, SPACE

_MARGIN = 16
"""Padding on both sides of the text, so that looking back and ahead needs no bounds checks."""
_KEY_BYTES = 8


NEVER_LAST = """
    mr mrs ms mx dr drs prof st rev hon gen col maj capt cpt lt sgt cmdr cdr adm gov sen rep pres
    supt fr messrs mme mlle msgr vs v cf viz e.g i.e eg ie approx est incl pvt ps p.s
"""
"""Abbreviations that never end a sentence; single letters only in lower case."""

RARELY_LAST = """
    inc ltd co corp llc bros jr sr etc al esq ave blvd rd dept univ assn bldg mt ft u.s u.k u.n
    u.s.a e.u a.m p.m b.c a.d ph.d m.d b.a m.a d.c jan feb mar apr jun jul aug sep sept oct nov
    dec mon tue tues wed thu thurs fri sat sun ed eds trans vols lit
"""
"""Abbreviations that end a sentence only before a sentence starter."""

RARELY_LAST_CAPITALISED = """
    rul proc fed reg regs supp civ crim evid pub stat ann const amend cong sess cir dist app treas
    assoc asst natl cal tex fla ill mich minn wis tenn okla ariz colo conn ala kan neb nev mont
"""
"""The same for law, offices and places, if capitalised; many are words in lower case."""

BEFORE_NUMBERS = "no nos nr p pp c ca fig figs vol ch sec art eq op para ref refs v ext tel pop"
"""Abbreviations if a digit follows, ordinary words otherwise."""

STARTERS = """
    the this that these those he she it they we you there here in on at by for from with as if
    when while after before although because since however but and so then thus what who how why
    where his her its their our my your a an one some many most all both each no not yes also
    another during despite let please i i'm it's
"""
"""Sentence starters: words that, if capitalised, usually begin a sentence."""

MAX_SENTENCE_BYTES = 4096
"""Bytes; anything longer is really a list or a table and is cut at spaces."""

_MAX_MARKS = 3
"""Closing or opening marks to skip, as in `."')`."""

_MAX_REFERENCE_DIGITS = 3

_BEGINNER, _TERMINAL, _CLOSER, _OPENER, _BOTH, _OTHER = range(6)
"""Classes of bytes around a sentence end; a beginner is a letter, a digit or non-ASCII."""


_KINDS = np.full(256, _OTHER, dtype=np.uint8)
_KINDS[[byte for byte in range(256) if byte >= 0x80 or chr(byte).isalnum()]] = _BEGINNER
for _characters, _kind in (
    (b"$#@&", _BEGINNER),
    (b".!?", _TERMINAL),
    (b")]}", _CLOSER),
    (b"([{<", _OPENER),
    (b"\"'*_", _BOTH),
):
    _KINDS[list(_characters)] = _kind
_WIDE_CLOSERS, _WIDE_OPENERS = "\u2019\u201d\u203a", "\u2018\u201c\u2039\u201e\u2013\u2014"
"""Three-byte quotation marks and dashes."""
_WIDE_LEADS = (0xE3, 0xEF)
"""First bytes of CJK terminal marks."""
_WIDE_TERMINALS, _CJK_CLOSERS = "\u3002\uff01\uff1f", "\u300d\u300f\u201d\u2019\uff09"


_SMALL = np.array([chr(code).islower() for code in range(1 << 11)], dtype=np.bool_)
"""Which characters of one or two bytes are lower-case letters."""


def _keys(words: str) -> UInt64s:
    """Words of up to 8 bytes as sorted integers."""
    return np.array(
        sorted(
            int.from_bytes(word.encode(), "little")
            for word in set(words.split())
            if len(word) <= _KEY_BYTES
        ),
        dtype=np.uint64,
    )


_NEVER_LAST, _RARELY_LAST, _BEFORE_NUMBERS = map(_keys, (NEVER_LAST, RARELY_LAST, BEFORE_NUMBERS))
_RARELY_LAST_CAPITALISED = _keys(RARELY_LAST_CAPITALISED)
_STARTERS = _keys(STARTERS)
_FOLD = np.uint64(0x2020202020202020)
_LENGTH_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(_KEY_BYTES + 1)], dtype=np.uint64)


def split_sentences(text: Bytes, ends: Offsets) -> tuple[Bytes, Offsets]:
    """`text` with line feeds between sentences, and the adjusted document ends."""
    if not len(text):
        return text, ends
    text, ends = _after_wide_terminals(text, ends)
    margin = np.full(_MARGIN, SPACE, dtype=np.uint8)
    padded = np.concatenate((margin, text, margin))
    terminals = np.flatnonzero((padded == ord(".")) | (padded == ord("?")) | (padded == ord("!")))
    spaces = _past_marks(padded, terminals + 1, _CLOSER, _WIDE_CLOSERS)
    spaces = _past_references(padded, spaces)
    followed = padded[spaces] == SPACE
    terminals, spaces = terminals[followed], spaces[followed]
    nexts = _past_marks(padded, spaces + 1, _OPENER, _WIDE_OPENERS)  # to a letter or digit
    padded[spaces[_ends_sentence(padded, terminals, nexts)]] = LINE_FEED
    split = padded[_MARGIN:-_MARGIN]
    # lines too long to be sentences are cut at spaces
    feeds = np.flatnonzero(split == LINE_FEED)
    starts = np.concatenate(([0], feeds + 1))[: len(feeds)]
    for line in np.flatnonzero(feeds - starts > MAX_SENTENCE_BYTES).tolist():
        start, end = int(starts[line]), int(feeds[line])
        while end - start > MAX_SENTENCE_BYTES:
            blanks = np.flatnonzero(split[start : start + MAX_SENTENCE_BYTES] == SPACE)
            if len(blanks):
                split[start + blanks[-1]] = LINE_FEED
            start += int(blanks[-1]) + 1 if len(blanks) else MAX_SENTENCE_BYTES
    return split, ends


def _after_wide_terminals(text: Bytes, ends: Offsets) -> tuple[Bytes, Offsets]:
    """Insert line feeds after CJK terminal marks, which no space follows."""
    padded = np.concatenate((text, np.zeros(_MARGIN, dtype=np.uint8)))
    leads = np.concatenate([np.flatnonzero(text == lead) for lead in _WIDE_LEADS])
    places = leads[_is_one_of(padded, leads, _WIDE_TERMINALS)] + 3
    if not len(places):
        return text, ends
    for _ in range(_MAX_MARKS):
        places = places + 3 * _is_one_of(padded, places, _WIDE_TERMINALS + _CJK_CLOSERS)
    places = np.unique(places[padded[places] > SPACE])
    return np.insert(text, places, LINE_FEED), ends + np.searchsorted(places, ends)


def _is_one_of(text: Bytes, places: Offsets, characters: str) -> Mask:
    """Which places hold one of the three-byte `characters`."""
    code = text[places].astype(np.int64)
    for ahead in (1, 2):
        code = code << 8 | text[places + ahead]
    found = np.zeros(len(places), dtype=np.bool_)
    for character in characters:
        found |= code == int.from_bytes(character.encode(), "big")
    return found


def _past_marks(text: Bytes, places: Offsets, kind: int, wide: str) -> Offsets:
    """Advance the places past marks of a `kind` or `_BOTH`, and past `wide` ones."""
    for _ in range(_MAX_MARKS):
        kinds = _KINDS[text[places]]
        width = ((kinds == kind) | (kinds == _BOTH)).astype(np.int64)
        width += 3 * _is_one_of(text, places, wide)
        if not width.any():
            break
        places = places + width
    return places


def _past_references(text: Bytes, places: Offsets) -> Offsets:
    """Advance the places past numbers in brackets, as in `end.[17]` or `end. [3] [4]`."""
    for _ in range(_MAX_MARKS):
        opening = places + (text[places] == SPACE)
        some = np.flatnonzero(text[opening] == ord("["))
        closing = opening[some] + 1
        for _ in range(_MAX_REFERENCE_DIGITS):
            closing += (text[closing] >= ord("0")) & (text[closing] <= ord("9"))
        found = (text[closing] == ord("]")) & (closing > opening[some] + 1)
        if not found.any():
            break
        places = places.copy()
        places[some[found]] = closing[found] + 1
    return places


def _ends_sentence(text: Bytes, terminals: Offsets, nexts: Offsets) -> Mask:
    """Which terminal marks end a sentence."""
    after = text[nexts]
    number_follows = (after >= ord("0")) & (after <= ord("9"))
    # no lower-case letter may follow; characters above U+07FF never count as lower case
    two_bytes = (after & 0xE0) == 0xC0
    code = after.astype(np.int64)
    code[two_bytes] = ((code[two_bytes] & 0x1F) << 6) | (text[nexts[two_bytes] + 1] & 0x3F)
    small = (two_bytes | (after < 0x80)) & _SMALL[code]
    ends: Mask = ~small & (_KINDS[after] == _BEGINNER)
    # the word before each full stop, including inner full stops: lower-cased, as an integer, 0 if
    # it is too long
    which = np.flatnonzero((text[terminals] == ord(".")) & ends)
    stops = terminals[which]
    length = np.zeros(len(stops), dtype=np.int64)
    inside = np.ones(len(stops), dtype=np.bool_)
    dotted = np.zeros(len(stops), dtype=np.bool_)  # as U.S
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
    initial = (length == 1) & capital
    begins_line = (text[stops - length - 1] == LINE_FEED) | (stops - length == _MARGIN)
    numbering = digits & fits & begins_line
    # most abbreviations may end a sentence if the next word is a sentence starter
    abbreviation = initial | (dotted & fits & ~digits) | _among(keys, _RARELY_LAST)
    abbreviation |= capital & _among(keys, _RARELY_LAST_CAPITALISED)
    abbreviation &= ~_among(_words_after(text, nexts[which]), _STARTERS)
    abbreviation |= (_among(keys, _NEVER_LAST) & ~initial) | numbering
    abbreviation |= _among(keys, _BEFORE_NUMBERS) & number_follows[which]
    ends[which[abbreviation]] = False
    return ends


def _among(keys: UInt64s, words: UInt64s) -> Mask:
    """Which of `keys` are among the ascending `words`."""
    found: Mask = words[np.minimum(np.searchsorted(words, keys), len(words) - 1)] == keys
    return found


def _words_after(text: Bytes, places: Offsets) -> UInt64s:
    """The words that begin at `places`, lower-cased, as integers.

    0 for words longer than any starter, and for abbreviations and initials: the A of `A. W.` is
    not an article.
    """
    length = np.zeros(len(places), dtype=np.int64)
    inside = np.ones(len(places), dtype=np.bool_)
    for ahead in range(_KEY_BYTES + 1):
        folded = text[places + ahead] | 0x20
        inside &= ((folded >= ord("a")) & (folded <= ord("z"))) | (folded == ord("'"))
        length += inside
    raw = (_load(text, places) | _FOLD) & _LENGTH_MASKS[np.minimum(length, _KEY_BYTES)]
    abbreviated = text[places + length] == ord(".")
    return np.where((length <= _KEY_BYTES) & ~abbreviated, raw, np.uint64(0))


def _load(text: Bytes, places: Offsets) -> UInt64s:
    """The 8 bytes from each place as an integer."""
    view: UInt64s = np.ndarray((len(text) - _KEY_BYTES + 1,), "<u8", text, 0, (1,))
    return view[places]
