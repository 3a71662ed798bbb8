"""Sentence splitting.

In:  cleaned text, one paragraph per line.
Out: the same text with a line feed instead of the space after each sentence.

Rules are applied to all terminal marks of a block that are followed by a space at once: the next
word must not begin with a lower-case letter, and the word before a full stop must not be an
abbreviation or an initial, unless the next word is a common sentence starter. Reference numbers
(`end.[17]`) belong to the sentence they follow. docs/decisions/sentences.md compares speed and
accuracy with other segmenters.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from cloze.artifacts.arrays import Bytes, Int64s, Mask, Offsets, UInt16s, UInt64s, concatenated
from cloze.pipeline.text.abbreviations import NUMBERS
from cloze.pipeline.text.cleaning import LINE_FEED, SPACE
from cloze.pipeline.text.scripts import (
    CLOSER,
    CLOSER_OR_OPENER,
    CODES,
    CONTINUER,
    FULL_STOP,
    IDEOGRAPHIC,
    LAST_CAPITAL,
    OPENER,
    SPACED_TERMINAL,
    TERMINAL,
    UNMARKED,
    decode,
    in_ranges,
    is_alphanumeric_of_latin,
    is_capital,
    is_digit,
    is_small,
    sentence_classes,
    terminal_pairs,
)

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

_BEGINNER, _TERMINAL, _OTHER = range(3)
"""Classes of bytes in the word before a mark; a beginner is a letter, a digit or non-ASCII."""

_KINDS = np.full(256, _OTHER, dtype=np.uint8)
_KINDS[[byte for byte in range(256) if byte >= 0x80 or chr(byte).isalnum()]] = _BEGINNER
_KINDS[list(b"$#@&")] = _BEGINNER
_KINDS[list(b".!?")] = _TERMINAL
_IN_WORD = _KINDS <= _TERMINAL

_LOOKALIKES = ((ord(";"), (0xCE, 0xCF)), (ord(":"), (0xD4, 0xD5, 0xD6)))
"""ASCII characters that end sentences beside letters with these first bytes: the Greek question
mark, and the colon for the Armenian full stop."""
_ELLIPSIS = 0x2026
_FIRST_IDEOGRAPHIC_LEAD = 0xE3
"""First byte of kana and ideographs, or a larger one."""
_TITLE_MARKS, _TITLE_OPENS, _TITLE_CLOSES = 0xE380, 0x8A, 0x8B
"""First two bytes of 《 and 》, and their third."""
_THAI_AND_LAO_PAIRS = range(0xE0B8, 0xE0BC)
"""First two bytes of their letters."""
_REPEATS_OR_SHORTENS = (0x0E2F, 0x0E46, 0x0EAF, 0x0EC6)
"""Thai and Lao signs that are followed by a space inside a phrase."""


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


_STARTERS = _keys(STARTERS)
_FOLD = np.uint64(0x2020202020202020)
_LENGTH_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(_KEY_BYTES + 1)], dtype=np.uint64)
_LAST_BITS = np.array([(1 << n) - 1 for n in range(_KEY_BYTES + 1)], dtype=np.uint8)
_BITS_AT_END = np.array([f"0{bits:b}"[::-1].index("0") for bits in range(256)], dtype=np.int64)
"""How many of the lowest bits of a byte are 1 without a gap."""


class Sentences(NamedTuple):
    """Text with a line feed after every sentence.

    text:  one sentence per line.
    ends:  offset of each document's end in `text`.
    glued: offsets of the line feeds that stand for nothing, ascending; the others stand for a space
           or were there before.
    """

    text: Bytes
    ends: Offsets
    glued: Offsets


def split_sentences(text: Bytes, ends: Offsets, abbreviations: tuple[str, ...] = ()) -> Sentences:
    """`text` with line feeds between sentences, and the adjusted document ends.

    `abbreviations` are those of the corpus, in addition to the English ones.
    """
    if not len(text):
        return Sentences(text, ends, np.zeros(0, dtype=np.int64))
    # Each step works on all marks of the block at once, as arrays of places, of which ever fewer
    # remain; a loop over characters in Python would be a hundred times slower. With white space on
    # both sides, every step may look a few bytes back or ahead of any place without asking.
    margin = np.full(_MARGIN, SPACE, dtype=np.uint8)
    padded = np.concatenate((margin, text, margin))
    is_terminal = padded == ord(".")
    is_terminal |= padded == ord("?")
    is_terminal |= padded == ord("!")
    terminals = np.flatnonzero(is_terminal)
    leads = np.flatnonzero(padded >= 0xC2)
    spaces = glued = np.zeros(0, dtype=np.int64)
    if len(leads):
        terminals, spaces, glued = _other_terminals(padded, leads, terminals)
    # Where a space follows, the line feed replaces it, and no offset moves. Only scripts without
    # spaces need bytes inserted, which moves the document ends behind them.
    padded[_ends_at_spaces(padded, terminals, abbreviations)] = LINE_FEED
    padded[spaces] = LINE_FEED
    if len(glued):
        padded = np.insert(padded, glued, LINE_FEED)
        ends = ends + np.searchsorted(glued - _MARGIN, ends)
        glued = glued - _MARGIN + np.arange(len(glued))
    split = padded[_MARGIN:-_MARGIN]
    _cut_long_lines(split)
    return Sentences(split, ends, glued)


def count_sentences(lines: Sequence[str]) -> list[int]:
    """The number of sentences into which each line is split."""
    raw = [f"{' '.join(line.split())}\n".encode("utf-8", "replace") for line in lines]
    text, ends, _ = split_sentences(*concatenated(raw))
    feeds = np.searchsorted(np.flatnonzero(text == LINE_FEED), ends)
    counts: list[int] = np.diff(feeds, prepend=0).tolist()
    return counts


def _cut_long_lines(split: Bytes) -> None:
    """Cut lines too long to be sentences at spaces."""
    feeds = np.flatnonzero(split == LINE_FEED)
    starts = np.concatenate(([0], feeds + 1))[: len(feeds)]
    for line in np.flatnonzero(feeds - starts > MAX_SENTENCE_BYTES).tolist():
        start, end = int(starts[line]), int(feeds[line])
        while end - start > MAX_SENTENCE_BYTES:
            blanks = np.flatnonzero(split[start : start + MAX_SENTENCE_BYTES] == SPACE)
            if len(blanks):
                split[start + blanks[-1]] = LINE_FEED
            start += int(blanks[-1]) + 1 if len(blanks) else MAX_SENTENCE_BYTES


def _other_terminals(
    text: Bytes, leads: Offsets, terminals: Offsets
) -> tuple[Offsets, Offsets, Offsets]:
    """Sentence ends that need more than ASCII, given where its characters begin.

    Returns the `terminals` that need a space after them with those that are not ASCII, and where a
    sentence surely ends: at spaces that become line feeds, and places where one is inserted.
    """
    # The first bytes of a character tell whether it can be a mark at all. So only a handful of
    # characters per block are decoded, however much of the text is not ASCII.
    pairs = _pairs(text, leads)
    begins, goes_on = terminal_pairs()
    marks = leads[begins[pairs]]
    marks = marks[goes_on[_pairs(text, marks + 1)]]
    code, width = decode(text, marks)
    kinds = sentence_classes()[np.minimum(code, CODES - 1)]
    # three dots are common before capitals in Latin text, where they end no sentence
    is_spaced = (kinds == SPACED_TERMINAL) & ((code != _ELLIPSIS) | (text[marks + 4] >= 0xC2))
    spaced = marks[is_spaced] + width[is_spaced] - 1
    occurs = np.zeros(256, dtype=np.bool_)
    occurs[pairs >> 8] = True
    for mark, alphabet in _LOOKALIKES:
        if occurs[list(alphabet)].any():
            letters = leads[np.isin(pairs >> 8, alphabet)]
            after, before = letters + 2, letters - 2  # a letter has two bytes; or it and a space
            before = before[(text[before] == mark) & (_KINDS[text[before - 1]] != _BEGINNER)]
            spaced = np.concatenate((spaced, np.union1d(after[text[after] == mark], before)))
    if len(spaced):
        terminals = np.sort(np.concatenate((terminals, spaced)))
    sure = (kinds == TERMINAL) | (kinds == FULL_STOP)
    marks, code, width = marks[sure], code[sure], width[sure]
    if occurs[_FIRST_IDEOGRAPHIC_LEAD:].any():
        glued = terminals[text[terminals] != ord(".")]
        following, _ = decode(text, glued + 1)
        glued = glued[in_ranges(following, IDEOGRAPHIC)]
        marks, code = np.concatenate((marks, glued)), np.concatenate((code, text[glued]))
        width = np.concatenate((width, np.ones_like(glued)))
    spaces, glued = _after_sure_terminals(text, marks, code, width)
    if titles := _titles(text, leads[pairs == _TITLE_MARKS]):
        spaces, glued = (ends[~titles.hold(ends)] for ends in (spaces, glued))
    thai = leads[(pairs >= _THAI_AND_LAO_PAIRS[0]) & (pairs <= _THAI_AND_LAO_PAIRS[-1])]
    if len(thai):
        spaces = np.concatenate((spaces, _ends_of_phrases(text, thai)))
    return terminals, spaces, glued


def _pairs(text: Bytes, places: Offsets) -> UInt16s:
    """The byte at each place times 256, plus the next."""
    pairs: UInt16s = text[places].astype(np.uint16) << np.uint16(8) | text[places + 1]
    return pairs


def _after_sure_terminals(
    text: Bytes, marks: Offsets, code: Int64s, width: Int64s
) -> tuple[Offsets, Offsets]:
    """The spaces after terminal marks of scripts without case, and places without a space."""
    # Step past closing quotes, brackets and further marks after each terminal; one that could as
    # well open the next sentence counts as closing if white space follows. Steps are of all places
    # at once, those that have arrived taking steps of 0, until none moves.
    is_full_stop = sentence_classes()[code] == FULL_STOP
    places, classes = marks + width, sentence_classes()
    for _ in range(2 * _MAX_MARKS):
        following, width = decode(text, places)
        kinds = classes[np.minimum(following, CODES - 1)]
        after = text[places + width]
        passed = (kinds == TERMINAL) | (kinds == CLOSER) | (following == ord(")"))
        passed |= ((kinds == SPACED_TERMINAL) | (kinds == CLOSER_OR_OPENER)) & (after <= SPACE)
        straight = np.flatnonzero((following == ord('"')) & ~passed)
        if len(straight):
            passed[straight] = _closes_quotation(text, places[straight])
        if not passed.any():
            break
        places = places + width * passed
    following, _ = decode(text, places)
    kinds = classes[np.minimum(following, CODES - 1)]
    goes_on = (kinds == CONTINUER) | (kinds == CLOSER) | (kinds == SPACED_TERMINAL)
    goes_on |= is_full_stop & is_alphanumeric_of_latin(following)
    # several marks, as in ?!, lead to the same place
    places, following = np.unique(places[~goes_on], return_index=True)
    after = text[places]
    return places[after == SPACE], places[after > SPACE]


def _closes_quotation(text: Bytes, places: Offsets) -> Mask:
    """Which of these straight quotation marks close one: an odd number precedes in their line."""
    marks, feeds = np.flatnonzero(text == ord('"')), np.flatnonzero(text == LINE_FEED)
    starts = np.concatenate(([0], feeds))[np.searchsorted(feeds, places)]
    odd: Mask = (np.searchsorted(marks, places) - np.searchsorted(marks, starts)) % 2 == 1
    return odd


class _Titles(NamedTuple):
    """Titles of works in Chinese, as 《摔跤吧！爸爸》: where they open and where they close."""

    opens: Offsets
    closes: Offsets

    def hold(self, places: Offsets) -> Mask:
        """Which places are inside of a title."""
        before = np.searchsorted(self.opens, places) - 1
        inside: Mask = (before >= 0) & (places <= self.closes[before])
        return inside


def _titles(text: Bytes, marks: Offsets) -> _Titles | None:
    """The titles between these marks of the ideographic block, if there are any."""
    marks = marks[(text[marks + 2] == _TITLE_OPENS) | (text[marks + 2] == _TITLE_CLOSES)]
    closes = text[marks + 2] == _TITLE_CLOSES
    first = np.flatnonzero(~closes[:-1] & closes[1:])
    opening, closing = marks[first], marks[first + 1]
    feeds = np.flatnonzero(text == LINE_FEED) if len(first) else first
    in_line = np.searchsorted(feeds, opening) == np.searchsorted(feeds, closing)
    return _Titles(opening[in_line], closing[in_line]) if in_line.any() else None


def _ends_of_phrases(text: Bytes, thai: Offsets) -> Offsets:
    """The spaces between two Thai or Lao letters."""
    # Thai and Lao write no marks: a space between two of their letters ends a phrase, which serves
    # as a sentence, unless one of the signs beside it wants a space for itself. A letter has three
    # bytes, the first of them 0xE0, so the letter before the space begins four bytes back.
    after = thai[(text[thai - 1] == SPACE) & (text[thai - 4] == 0xE0)]
    before, _ = decode(text, after - 4)
    following, _ = decode(text, after)
    ends = in_ranges(before, UNMARKED) & in_ranges(following, UNMARKED)
    ends &= ~np.isin(before, _REPEATS_OR_SHORTENS) & ~np.isin(following, _REPEATS_OR_SHORTENS)
    spaces: Offsets = after[ends] - 1
    return spaces


def _past_marks(text: Bytes, places: Offsets, kind: int) -> Offsets:
    """Advance the places past marks of a `kind` or of both kinds."""
    classes = sentence_classes()
    passed = (classes == kind) | (classes == CLOSER_OR_OPENER)
    places, moving = places.copy(), np.arange(len(places))
    for _ in range(_MAX_MARKS):
        first = text[places[moving]]
        steps = passed[first].astype(np.int64)
        wide = np.flatnonzero(first >= 0xC2)  # the classes of these bytes mean nothing
        if len(wide):
            code, width = decode(text, places[moving[wide]])
            steps[wide] = width * passed[np.minimum(code, CODES - 1)]
        moved = np.flatnonzero(steps)
        if not len(moved):
            break
        moving = moving[moved]
        places[moving] += steps[moved]
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


def _ends_at_spaces(text: Bytes, terminals: Offsets, abbreviations: tuple[str, ...]) -> Offsets:
    """The spaces at which a sentence ends, after terminal marks that need one."""
    spaces = _past_references(text, _past_marks(text, terminals + 1, CLOSER))
    followed = text[spaces] == SPACE
    terminals, spaces = terminals[followed], spaces[followed]
    nexts = _past_marks(text, spaces + 1, OPENER)  # to a letter or digit
    ends: Offsets = spaces[_ends_sentence(text, terminals, nexts, abbreviations)]
    return ends


def _ends_sentence(
    text: Bytes, terminals: Offsets, nexts: Offsets, abbreviations: tuple[str, ...]
) -> Mask:
    """Which terminal marks end a sentence."""
    # A mark ends a sentence if what follows can begin one: a capital, a digit, a sign that stands
    # for a word, or a letter of a script without case.
    after = text[nexts]
    number_follows = (after >= ord("0")) & (after <= ord("9"))
    ends: Mask = (_KINDS[after] == _BEGINNER) & ~((after >= ord("a")) & (after <= ord("z")))
    wide = np.flatnonzero(after >= 0xC2)
    if len(wide):
        code, _ = decode(text, nexts[wide])
        ends[wide] &= ~is_small()[np.minimum(code, CODES - 1)]
    # the word before each full stop, including inner full stops: lower-cased, as an integer, 0 if
    # it is too long
    # Only full stops can belong to the word before them; ? and ! are done.
    which = np.flatnonzero((text[terminals] == ord(".")) & ends)
    stops = terminals[which]
    ellipsis = (text[stops - 1] == ord(".")) & (after[which] >= 0x80)
    # A word of up to 8 bytes is an integer, so that looking it up among sorted integers is a binary
    # search on whole arrays. What is known of its bytes is an integer too, a bit for each of them.
    raw = _load(text, stops - _KEY_BYTES)
    before = raw.view(np.uint8).reshape(-1, _KEY_BYTES)
    length = _BITS_AT_END[_bits(_IN_WORD[before])]
    # one byte more than a key has tells words that fit from longer ones
    length += (length == _KEY_BYTES) & _IN_WORD[text[stops - _KEY_BYTES - 1]]
    fits = (length > 0) & (length <= _KEY_BYTES)
    inside = _LAST_BITS[np.minimum(length, _KEY_BYTES)]
    dotted = _bits(before == ord(".")) & inside != 0  # as U.S
    digits = _bits((before < ord("0")) | (before > ord("9"))) & inside == 0
    # The word ends at the stop: of the 8 bytes before that, shift out those that precede it.
    shift = (8 * (_KEY_BYTES - np.minimum(length, _KEY_BYTES))).astype(np.uint64)
    keys = np.where(fits, (raw | _FOLD) >> np.minimum(shift, np.uint64(63)), np.uint64(0))
    first = text[stops - np.maximum(length, 1)]
    capital = (first >= ord("A")) & (first <= ord("Z"))
    initial = (length == 1) & capital
    two = np.flatnonzero(length == 2)  # bytes, perhaps of one letter
    letter, width = decode(text, stops[two] - 2)
    initial[two] = (width == 2) & is_capital()[np.minimum(letter, LAST_CAPITAL)]
    begins_line = (text[stops - length - 1] == LINE_FEED) | (stops - length == _MARGIN)
    numbering = digits & fits & begins_line
    other = np.flatnonzero(begins_line & fits & (first >= 0xC2))
    numbering[other] = _is_number(text, stops[other] - length[other], stops[other])
    # In the order of their strength: what may end a sentence if a starter follows; the starter; and
    # what no starter can overrule.
    known = _known_abbreviations(abbreviations).flags(keys)
    abbreviation = initial | (dotted & fits & ~digits & ~ellipsis) | (known & _RARELY != 0)
    abbreviation |= capital & (known & _CAPITALISED != 0)
    abbreviation |= (known & _LEARNT != 0) & ~digits
    if NUMBERS in abbreviations:
        abbreviation |= digits & (length > 0) & (length <= len("00"))
    abbreviation |= _is_long(text, stops, raw, length, abbreviations)
    some = np.flatnonzero(abbreviation)
    abbreviation[some] = ~_among(_words_after(text, nexts[which[some]]), _STARTERS)
    abbreviation |= ((known & _NEVER != 0) & ~initial) | numbering
    abbreviation |= (known & _NUMBERED != 0) & number_follows[which]
    ends[which[abbreviation]] = False
    return ends


def _is_number(text: Bytes, starts: Offsets, ends: Offsets) -> Mask:
    """Which of these words are numbers in digits beyond ASCII."""
    first, width = decode(text, starts)
    last, _ = decode(text, ends - width)
    digits = is_digit()
    found: Mask = digits[np.minimum(first, CODES - 1)] & digits[np.minimum(last, CODES - 1)]
    return found


_NEVER, _RARELY, _CAPITALISED, _NUMBERED, _LEARNT = (np.uint8(1 << bit) for bit in range(5))
"""When an abbreviation is one, as bits: see the lists above; learnt ones like those of
`RARELY_LAST`."""


class _Abbreviations(NamedTuple):
    """All abbreviations of up to 8 bytes: their keys, ascending, and when each is one."""

    keys_A: UInt64s
    flags_A: Bytes

    def flags(self, keys_N: UInt64s) -> Bytes:
        """When each of the words is an abbreviation; 0 for other words."""
        place_N = np.minimum(np.searchsorted(self.keys_A, keys_N), len(self.keys_A) - 1)
        flags_N: Bytes = self.flags_A[place_N] * (self.keys_A[place_N] == keys_N)
        return flags_N


@lru_cache(maxsize=4)
def _known_abbreviations(learnt: tuple[str, ...]) -> _Abbreviations:
    flags = Counter[int]()
    for words, flag in (
        (_keys(NEVER_LAST), _NEVER),
        (_keys(RARELY_LAST), _RARELY),
        (_keys(RARELY_LAST_CAPITALISED), _CAPITALISED),
        (_keys(BEFORE_NUMBERS), _NUMBERED),
        (_learnt_keys(learnt), _LEARNT),
    ):
        for key in words.tolist():
            flags[key] |= int(flag)
    keys = sorted(flags)
    return _Abbreviations(
        np.array(keys, dtype=np.uint64), np.array([flags[key] for key in keys], dtype=np.uint8)
    )


def _learnt_keys(abbreviations: tuple[str, ...]) -> UInt64s:
    """The keys of abbreviations that fit, in any case, folded as words before a full stop are."""
    spelled = {form(word) for word in abbreviations for form in (str, str.title, str.upper)}
    raw = (word.encode() for word in spelled)
    keys = {int.from_bytes(word, "little") for word in raw if 0 < len(word) <= _KEY_BYTES}
    masks = {key: _LENGTH_MASKS[(key.bit_length() + 7) // 8] for key in keys}
    folded = {int(np.uint64(key) | _FOLD & mask) for key, mask in masks.items()}
    return np.array(sorted(folded), dtype=np.uint64)


def _is_long(
    text: Bytes, stops: Offsets, raw: UInt64s, length: Int64s, abbreviations: tuple[str, ...]
) -> Mask:
    """Which full stops follow one of the `abbreviations` that does not fit into a key.

    `raw` are the last bytes of the words, `length` their lengths up to one more than a key has.
    """
    found = np.zeros(len(stops), dtype=np.bool_)
    words, last_bytes = _long_abbreviations(abbreviations)
    if not words:
        return found
    # Only words with the right last bytes are looked at one by one.
    for which in np.flatnonzero((length > _KEY_BYTES) & _among(raw, last_bytes)).tolist():
        stop = int(stops[which])
        first = stop - _KEY_BYTES
        while first and _IN_WORD[text[first - 1]]:
            first -= 1
        found[which] = text[first:stop].tobytes().decode("utf-8", "replace").lower() in words
    return found


@lru_cache(maxsize=4)
def _long_abbreviations(abbreviations: tuple[str, ...]) -> tuple[frozenset[str], UInt64s]:
    """The `abbreviations` that do not fit into a key, and the last bytes of their forms."""
    words = frozenset(word.lower() for word in abbreviations if len(word.encode()) > _KEY_BYTES)
    last = {
        int.from_bytes(form(word).encode()[-_KEY_BYTES:], "little")
        for word in words
        for form in (str, str.title, str.upper)
    }
    return words, np.array(sorted(last), dtype=np.uint64)


def _bits(marked_Nx8: Mask) -> Bytes:
    """Eight truth values as the bits of a byte, the last of them as the lowest."""
    return np.packbits(marked_Nx8.reshape(-1))


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
