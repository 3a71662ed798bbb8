"""Unicode's rules for sentences, words and case, for every script.

In:  UTF-8 text as an array of bytes, or a string.
Out: the characters at given places with their classes; lower-case bytes; words and their number;
     the terms by which search without an encoder compares texts.

The splitter, shingles, passages, baselines and `cloze init` all ask here. The properties are those
of Unicode 17.0: Sentence_Break (UAX 29) for the marks around a sentence end, Script and Line_Break
(UAX 14, class SA) for scripts that are written without spaces between words. In these, a character
counts as a fraction of a word, so that a number of words is about as much text in any script.
docs/scripts.md shows what is measured where.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from functools import cache
from itertools import chain

import numpy as np
import numpy.typing as npt

from cloze.artifacts.arrays import Bytes, Int64s, Mask, Offsets

UInt8s = npt.NDArray[np.uint8]

SENTENCE_TERMINALS = (
    "։؝؞؟۔܀܁܂߹࠷࠹࠽࠾।॥၊။።፧፨᙮᜵᜶។៕᠃᠉᥄᥅᪨᪩᪪᪫᭎᭏᭚᭛᭞᭟᭽᭾᭿᰻᰼᱾᱿⳹⳺⳻⸮⸼⹓⹔⹠⹡。꓿꘎꘏꛳꛷꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫"
    "︒︕︖﹖﹗！？｡𐩖𐩗𐽕𐽖𐽗𐽘𐽙𐾆𐾇𐾈𐾉𑁇𑁈𑂾𑂿𑃀𑃁𑅁𑅂𑅃𑇅𑇆𑇍𑇞𑇟𑈸𑈹𑈻𑈼𑊩𑏔𑏕𑑋𑑌𑗂𑗃𑗉𑗊𑗋𑗌𑗍𑗎𑗏𑗐𑗑𑗒𑗓𑗔𑗕𑗖𑗗𑙁𑙂𑜼𑜽𑜾𑥄𑥆𑩂𑩃𑪛𑪜𑱁𑱂𑻷𑻸𑽃𑽄𖩮𖩯𖫵𖬷𖬸𖭄𖵮𖵯𖺘𛲟𝪈"
)
"""Sentence_Break=STerm outside ASCII and General Punctuation: they end a sentence with or without a
space after them."""

SPACED_TERMINALS = "…‼‽⁇⁈⁉"
"""STerm in General Punctuation, and by our own rules the full stop and Greek question mark: like
`.!?`, they end a sentence only before a space and a word without a small first letter."""

GREEK_QUESTION_MARK = "\u037e"
"""Also written as a semicolon after a Greek letter, to which Unicode normalises it."""

WIDE_FULL_STOPS = "．﹒"
"""Sentence_Break=ATerm: end a sentence unless a digit or Latin letter follows."""

CLOSING = (
    "\"')]}«»༻༽᚜‘’‛“”‟‹›⁆⁾₎⌉⌋〉❛❜❝❞❠❩❫❭❯❱❳❵⟆⟧⟩⟫⟭⟯⦄⦆⦈⦊⦌⦎⦐⦒⦔⦖⦘⧙⧛⧽⸃⸅⸊⸍⸝⸡⸣⸥⸧⸩⹖⹘⹚⹜"
    "〉》」』】〕〗〙〛〞〟﴾︘︶︸︺︼︾﹀﹂﹄﹈﹚﹜﹞）］｝｠｣"
)
"""Sentence_Break=Close without brackets that open, directly after a mark; German quotations end in
`“` or `«`."""

OPENING = "«»‘‚‛“„‟‹›–—¿¡〈《「『【〔〖〘〚〝（［｛｟｢"
"""Non-ASCII marks between sentences and their first letter, skipped to find it."""

CONTINUING = "՝،؍߸᠂᠈、︐︑︓︔︱︲﹐﹑﹔﹕﹘﹣，－：；､"
"""Sentence_Break=SContinue outside ASCII and Latin text: a sentence goes on before them."""

IDEOGRAPHIC = (
    (0x2E80, 0x2FD5),
    (0x3005, 0x3007),
    (0x3021, 0x3029),
    (0x3031, 0x3035),
    (0x3038, 0x303B),
    (0x3041, 0x3096),
    (0x309D, 0x309F),
    (0x30A1, 0x30FA),
    (0x30FC, 0x30FF),
    (0x31F0, 0x31FF),
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAD9),
    (0xFF66, 0xFF9D),
    (0x1B000, 0x1B167),
    (0x20000, 0x3347F),
)
"""Ranges of Script=Han, Hiragana and Katakana, with the marks of iteration and length."""

COMPLEX = (
    (0x0E01, 0x0E3A),
    (0x0E40, 0x0E4E),
    (0x0E81, 0x0ECE),
    (0x0EDC, 0x0EDF),
    (0x1000, 0x103F),
    (0x1050, 0x108F),
    (0x109A, 0x109F),
    (0x1780, 0x17D3),
    (0x17D7, 0x17D7),
    (0x17DC, 0x17DD),
    (0x1950, 0x1974),
    (0x1980, 0x19C9),
    (0x1A20, 0x1A7C),
    (0x1AA0, 0x1AAD),
    (0xA9E0, 0xA9EF),
    (0xA9FA, 0xA9FE),
    (0xAA60, 0xAAC2),
    (0xAADB, 0xAADF),
    (0x11700, 0x1172B),
)
"""Ranges of Line_Break=SA, Complex_Context: Thai, Lao, Khmer, Myanmar, Tai Le, New Tai Lue, Tai
Tham, Tai Viet and Ahom, without their digits where these have another class."""

UNMARKED = ((0x0E01, 0x0E3A), (0x0E40, 0x0E4E), (0x0E81, 0x0ECE), (0x0EDC, 0x0EDF))
"""Thai and Lao, which have no mark for the end of a sentence: a space ends a phrase."""

UNITS_PER_WORD = 6
"""Words are counted in sixths."""
IDEOGRAPH_UNITS, COMPLEX_UNITS = 3, 2
"""An ideograph or kana counts as half a word, a Thai or Khmer consonant with its vowel signs and
tone marks as a third: about the mean of word lists."""

CODES = 0x33480
"""Classes are known for characters below; there is no letter above."""

LAST_CAPITAL = 0x7FF
"""Initials are recognised in alphabets of one or two bytes: Latin, Greek, Cyrillic, Armenian."""

OTHER, TERMINAL, SPACED_TERMINAL, FULL_STOP, CLOSER, CLOSER_OR_OPENER, OPENER, CONTINUER = range(8)
"""Classes of characters around a sentence end."""

# N places in a text


@cache
def sentence_classes() -> UInt8s:
    """The class of every character below `CODES`, as it counts around a sentence end."""
    classes = np.full(CODES, OTHER, dtype=np.uint8)
    # Later entries overwrite earlier ones: what both closes and opens gets a class of its own.
    for characters, kind in (
        (CLOSING, CLOSER),
        ("([{<`", OPENER),
        (OPENING, OPENER),
        ("".join(set(CLOSING) & set(OPENING)) + "*_\"'", CLOSER_OR_OPENER),
        (CONTINUING, CONTINUER),
        (SENTENCE_TERMINALS, TERMINAL),
        (WIDE_FULL_STOPS, FULL_STOP),
        (f".!?{SPACED_TERMINALS}{GREEK_QUESTION_MARK}", SPACED_TERMINAL),
    ):
        classes[[ord(character) for character in characters]] = kind
    return classes


@cache
def terminal_pairs() -> tuple[Mask, Mask]:
    """Which pairs of bytes, one times 256 plus the next, may be in a non-ASCII terminal mark.

    Returns those of its first and second byte, and those of its second and third.
    """
    begins, goes_on = np.zeros((2, 1 << 16), dtype=np.bool_)
    for mark in SENTENCE_TERMINALS + SPACED_TERMINALS + GREEK_QUESTION_MARK + WIDE_FULL_STOPS:
        first, second, *third = mark.encode()[:3]
        begins[first << 8 | second] = True
        # Behind a mark of two bytes anything may follow.
        goes_on[second << 8 | third[0] if third else slice(second << 8, second + 1 << 8)] = True
    return begins, goes_on


def decode(text: Bytes, places_N: Offsets) -> tuple[Int64s, Int64s]:
    """The code point that begins at each place, and its number of bytes.

    At least three bytes must follow the last place. Inside a character the result is meaningless.
    """
    code_N = text[places_N].astype(np.int64)
    width_N = np.ones(len(places_N), dtype=np.int64)
    wide = np.flatnonzero(code_N >= 0xC0)
    if not len(wide):
        # Bytes below 0xC0 are ASCII, or inside a character.
        return code_N, width_N
    lead, at = code_N[wide], places_N[wide]
    one, two, three = (text[at + ahead].astype(np.int64) & 0x3F for ahead in (1, 2, 3))
    two_bytes, three_bytes = lead < 0xE0, lead < 0xF0
    # UTF-8: 5, 4 or 3 bits of the first byte, then 6 of each further one.
    code_N[wide] = np.where(
        two_bytes,
        (lead & 0x1F) << 6 | one,
        np.where(
            three_bytes,
            (lead & 0x0F) << 12 | one << 6 | two,
            (lead & 0x07) << 18 | one << 12 | two << 6 | three,
        ),
    )
    width_N[wide] = 4 - two_bytes - three_bytes
    return code_N, width_N


def in_ranges(code_N: Int64s, ranges: tuple[tuple[int, int], ...]) -> Mask:
    """Which code points are in one of the ascending `ranges`."""
    bounds = np.array(list(chain.from_iterable((first, last + 1) for first, last in ranges)))
    # Ranges as alternating bounds: after an odd number of them, a value is inside.
    found: Mask = np.searchsorted(bounds, code_N, side="right") % 2 == 1
    return found


@cache
def is_small() -> Mask:
    """Which characters below `CODES` are small letters."""
    small = np.zeros(CODES, dtype=np.bool_)
    # Most of Unicode is in scripts without case, such as Han and Hangul: their ranges are not asked
    # for.
    cased = chain(
        range(0x3000), range(0xA640, 0xAC00), range(0xFB00, 0x10000), range(0x10400, 0x1EA00)
    )
    small[[code for code in cased if chr(code).islower()]] = True
    return small


@cache
def is_capital() -> Mask:
    """Which characters up to `LAST_CAPITAL` are capital letters."""
    return np.array([chr(code).isupper() for code in range(LAST_CAPITAL + 1)], dtype=np.bool_)


@cache
def is_digit() -> Mask:
    """Which characters below `CODES` are digits of a decimal system."""
    found: Mask = np.char.isdecimal(np.arange(CODES, dtype=np.uint32).view("U1"))
    return found


def is_alphanumeric_of_latin(code_N: Int64s) -> Mask:
    """Which characters are ASCII letters or digits, of full width or not."""
    narrow_N = np.where((code_N >= 0xFF01) & (code_N <= 0xFF5E), code_N - 0xFEE0, code_N)
    # The bit 0x20 makes ASCII capitals small. In Python, unlike in C, `|` binds more tightly than a
    # comparison.
    letters = (narrow_N | 0x20 >= ord("a")) & (narrow_N | 0x20 <= ord("z"))
    digits = (narrow_N >= ord("0")) & (narrow_N <= ord("9"))
    found: Mask = letters | digits
    return found


def units(code_N: Int64s) -> Int64s:
    """How many sixths of a word a character is by itself; 0 if it is only a part of one."""
    units_N = np.zeros(len(code_N), dtype=np.int64)
    units_N[in_ranges(code_N, IDEOGRAPHIC)] = IDEOGRAPH_UNITS
    units_N[in_ranges(code_N, COMPLEX) & ~is_mark()[np.minimum(code_N, CODES - 1)]] = COMPLEX_UNITS
    return units_N


@cache
def is_mark() -> Mask:
    """Which characters below `CODES` are combining marks, or vowel signs after a consonant."""
    marks = np.zeros(CODES, dtype=np.bool_)
    marks[[code for code in range(0x20000) if unicodedata.category(chr(code))[0] == "M"]] = True
    # Thai and Lao vowels after a consonant, which Unicode classes as letters.
    marks[[0x0E30, 0x0E32, 0x0E33, 0x0E45, 0x0EB0, 0x0EB2, 0x0EB3]] = True
    return marks


INVISIBLE = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]")
"""Soft hyphens, spaces of no width, joiners, marks of direction."""

ASCII_TERM = re.compile(r"\w\w+", re.ASCII)


@cache
def _patterns() -> tuple[re.Pattern[str], re.Pattern[str]]:
    """A word or ideograph, and a character of a script without spaces between words."""

    def ranges(pairs: tuple[tuple[int, int], ...]) -> str:
        return "".join(f"{chr(first)}-{chr(last)}" for first, last in pairs)

    marks = "".join(map(chr, np.flatnonzero(is_mark()).tolist()))
    single = f"[{ranges(IDEOGRAPHIC)}]|[{ranges(COMPLEX)}][{marks}]*"
    # A word between spaces may not run into a script without them.
    spaced = rf"(?:(?![{ranges(IDEOGRAPHIC + COMPLEX)}])[\w{marks}])+"
    return re.compile(f"{single}|{spaced}"), re.compile(f"[{ranges(IDEOGRAPHIC + COMPLEX)}]")


def count_words(text: str) -> int:
    """The number of words: between spaces, or by characters where no spaces separate words."""
    spaced = len(text.split())
    if text.isascii() or not _patterns()[1].search(text):
        return spaced
    found = units(np.frombuffer(text.encode("utf-32-le", "replace"), dtype="<u4").astype(np.int64))
    rest = _patterns()[1].sub("", text)
    return -(-int(found.sum()) // UNITS_PER_WORD) + len(rest.split())


def words(text: str) -> list[str]:
    """The words of UAX 29 without white space and punctuation; ideographs one by one.

    In Thai and other scripts of class SA: consonants with their vowel signs and tone marks.
    """
    return _patterns()[0].findall(text)


def search_terms(text: str) -> list[str]:
    """The terms by which BM25 and bags of words compare texts, lower-cased.

    Words of two letters or more; in scripts without spaces between words, pairs of adjacent
    characters, or one that stands alone (as in Lucene's CJK analyser). However a word is encoded
    (é as one character or two, fi as a ligature, full width, with soft hyphens), it is one term.
    """
    lower = comparable(text)
    if lower.isascii():  # nearly all of most collections, and ten times as fast
        return ASCII_TERM.findall(lower)
    found, single = _patterns()
    terms: list[str] = []
    last, last_end, run = "", -1, 0
    for match in found.finditer(lower):
        term = match.group()
        if not single.match(term[0]):
            terms += [term] * (len(term) > 1)
            last_end = -1
            continue
        adjacent = match.start() == last_end
        # `run`: adjacent characters so far, each pair of which is a term
        run = run + 1 if adjacent else 1
        if adjacent:
            if run == 2:
                terms.pop()  # stood alone so far
            terms.append(last + term)
        else:
            terms.append(term)
        last, last_end = term, match.end()
    return terms


def comparable(text: str) -> str:
    """Lower-cased, and alike for texts that look alike: NFKC, without invisible characters."""
    if text.isascii():
        return text.lower()
    # as cleaning removes them from documents
    shown = INVISIBLE.sub("", text)
    # The dot of a Turkish İ would stay as a combining character.
    return unicodedata.normalize("NFKC", shown).lower().replace("i\u0307", "i")


def spaced_terms(text: str) -> list[str]:
    """The same for words with the punctuation beside them, as spaces separate them."""
    lower = comparable(text)
    return search_terms(lower) if has_no_spaces(lower) else lower.split()


def has_no_spaces(text: str) -> bool:
    """Whether some of the text is in a script without spaces between words."""
    return not text.isascii() and _patterns()[1].search(text) is not None


def join_sentences(sentences: Iterable[str]) -> str:
    """Running text: a space after each sentence, except after the wide marks of East Asia."""
    parts: list[str] = []
    for sentence in sentences:
        if parts and unicodedata.east_asian_width(parts[-1][-1:] or " ") not in ("W", "F"):
            parts.append(" ")
        parts.append(sentence)
    return "".join(parts)


def ends_with_mark(text: str) -> bool:
    """Whether the text ends like a sentence, perhaps in quotation marks or brackets."""
    classes = sentence_classes()
    for character in reversed(text):
        kind = classes[ord(character)] if ord(character) < CODES else OTHER
        if kind in (CLOSER, CLOSER_OR_OPENER):
            continue
        # The Greek question mark is mostly typed as a semicolon, which it looks like, and the
        # Armenian full stop as a colon.
        lookalike = character == ";" and any("\u0370" <= one < "\u0400" for one in text)
        armenian = character == ":" and any("\u0530" <= one < "\u0590" for one in text)
        return kind in (TERMINAL, SPACED_TERMINAL, FULL_STOP) or lookalike or armenian
    return False


def unmarked_share(text: str) -> float:
    """The share of letters in scripts that do not mark the ends of sentences."""
    letters = [ord(character) for character in text if character.isalpha()]
    return float(in_ranges(np.array(letters), UNMARKED).mean()) if letters else 0.0


def accented_share(text: str) -> tuple[float, str]:
    """The share of words that change when accents are stripped, and a frequent one of them."""
    every = text.split()
    counts = Counter(word for word in every if not word.isascii() and without_accents(word) != word)
    common = counts.most_common(1)
    return counts.total() / max(len(every), 1), common[0][0] if common else ""


def without_accents(text: str) -> str:
    """`text` as BERT's uncased models see it, but with its case: without non-spacing marks."""
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(one for one in decomposed if unicodedata.category(one) != "Mn")


_CASED_RANGES = ((0xC0, 0x590), (0x10A0, 0x1100), (0x1E00, 0x2000), (0xFF21, 0xFF3B))
"""Where letters of two cases are, as far as small ones have as many bytes."""


@cache
def _lower_codes() -> Int64s:
    """The small letter for each character below U+10000 with as many bytes, else itself."""
    lower = np.arange(1 << 16, dtype=np.int64)
    for code in chain.from_iterable(range(*bounds) for bounds in _CASED_RANGES):
        small = chr(code).lower()
        if len(small) == 1 and len(small.encode()) == len(chr(code).encode()):
            lower[code] = ord(small)
    lower[0x3C2] = 0x3C3  # final sigma
    return lower


_LOWER_ASCII = np.frombuffer(bytes(range(256)).lower(), dtype=np.uint8)


def lower_bytes(text: Bytes) -> Bytes:
    """`text` with small letters of the same number of bytes, in every alphabet."""
    lower = _LOWER_ASCII[text]
    leads = np.flatnonzero((text >= 0xC3) & (text < 0xF0))
    leads = leads[_may_be_capital()[text[leads]]]
    if not len(leads):
        return lower
    padded = np.concatenate((text, np.zeros(3, dtype=np.uint8)))
    code, width = decode(padded, leads)
    code = np.minimum(code, (1 << 16) - 1)
    # Beyond U+FFFF nothing changes here; the clip keeps the index valid.
    small = _lower_codes()[code]
    changed = np.flatnonzero(small != code)
    # Write the small letter's bytes over the capital's: a lead byte with the bits above, then six
    # bits each.
    for bytes_ in (2, 3):
        these = changed[width[changed] == bytes_]
        for ahead in range(bytes_):
            bits = small[these] >> 6 * (bytes_ - 1 - ahead)
            marker = 0x80 | bits & 0x3F if ahead else (0x100 - (0x100 >> bytes_)) | bits
            lower[leads[these] + ahead] = marker
    return lower


@cache
def _may_be_capital() -> Mask:
    """Which first bytes begin a character that `_lower_codes` changes."""
    codes = np.flatnonzero(_lower_codes() != np.arange(1 << 16))
    first = np.zeros(256, dtype=np.bool_)
    first[[chr(code).encode()[0] for code in codes.tolist()]] = True
    return first
