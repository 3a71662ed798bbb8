"""Pre-tokens: the stretches of text that BERT's tokenizer never looks across.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: where runs of word bytes, punctuation marks and ideographs begin and end; and short ones as
     integers, which NumPy can compare and sort.

Bytes of non-ASCII characters belong to words here. That is right as long as a pre-token is
tokenised as a whole: what `tokenizers` would separate inside it, it still separates.
"""

import unicodedata
from collections import Counter
from dataclasses import dataclass

import numpy as np

from artifacts.arrays import Mask, Offsets, UInt64s
from artifacts.tokenizer import WordPieceTokenizer

KEY_BYTES = 8
LONGEST_KEY = 2 * KEY_BYTES
"""Longer pre-tokens are compared as Python's bytes; they are rare."""

SPACE, WORD, ALONE, LEAD = range(4)
"""What a byte is to the pre-tokenizer. Bytes of non-ASCII characters belong to words; those that
may begin a character that is a word by itself are looked at again."""

LENGTH_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(KEY_BYTES + 1)], dtype=np.uint64)
"""The bytes of an integer that a word of so many bytes fills."""
_LEADS = (0xE2, *range(0xE3, 0xEA), 0xEF)


KINDS = bytes(
    SPACE
    if byte <= 0x20
    else LEAD
    if byte in _LEADS
    else WORD
    if byte >= 0x80 or chr(byte).isalnum()
    else ALONE
    for byte in range(256)
)
PUNCTUATION = tuple(bytes([byte]) for byte in range(0x7F) if KINDS[byte] == ALONE)
"""ASCII marks, each a pre-token by itself."""

NONE_ISOLATED = np.zeros(1 << 16, dtype=np.bool_)

_PROBE = "a"
"""Put on both sides of a character; nothing changes it."""

_OFTEN_ALONE = (range(0x2010, 0x2028), range(0x3000, 0x3040), range(0xFF00, 0xFF66))
"""Blocks with punctuation that is frequent in running text: dashes and quotes, CJK, full width."""
_UNIFIED_IDEOGRAPHS = range(0x4E00, 0xA000)
"""Isolated by definition (reference: tokenization.py:266-284)."""


def folding(*, lowercase: bool) -> bytes:
    """The table by which text is folded before pre-tokens are compared."""
    return bytes(range(256)).lower() if lowercase else bytes(range(256))


@dataclass(frozen=True)
class PreTokens:
    """Where the pre-tokens of a stretch of text lie, and the text they are compared in."""

    folded: bytes
    starts: Offsets
    ends: Offsets

    def words(self, which: Offsets) -> list[bytes]:
        """Some of the pre-tokens as bytes."""
        bounds = zip(self.starts[which].tolist(), self.ends[which].tolist(), strict=True)
        return [self.folded[start:end] for start, end in bounds]


@dataclass(frozen=True)
class PreTokenKeys:
    """Pre-tokens as integers, by length.

    first:  the first 8 bytes of every pre-token, zero-padded: all of it if it is no longer.
    medium: numbers of the pre-tokens of 9 to 16 bytes; `second` holds the rest of each.
    long:   numbers of the longer ones.
    """

    first: UInt64s
    medium: Offsets
    second: UInt64s
    long: Offsets


def keys_of(pre_tokens: PreTokens) -> PreTokenKeys:
    """The pre-tokens as integers, read from the text at any byte."""
    lengths = pre_tokens.ends - pre_tokens.starts
    padded = pre_tokens.folded + bytes(LONGEST_KEY)
    at_byte: UInt64s = np.ndarray((len(pre_tokens.folded) + KEY_BYTES,), "<u8", padded, 0, (1,))
    first = at_byte[pre_tokens.starts] & LENGTH_MASKS.take(lengths, mode="clip")
    beyond = np.flatnonzero(lengths > KEY_BYTES)
    is_long = lengths[beyond] > LONGEST_KEY
    medium = beyond[~is_long]
    rest = LENGTH_MASKS[lengths[medium] - KEY_BYTES]
    second = at_byte[pre_tokens.starts[medium] + KEY_BYTES] & rest
    return PreTokenKeys(first, medium, second, beyond[is_long])


def keys_of_words(words: list[bytes], width: int) -> list[UInt64s]:
    """Words of at most 8 * width bytes as `width` columns of integers."""
    padded = b"".join(word.ljust(width * KEY_BYTES, b"\0") for word in words)
    rows = np.frombuffer(padded, dtype="<u8").reshape(-1, width)
    return [np.ascontiguousarray(rows[:, column]) for column in range(width)]


def words_of_keys(keys: list[UInt64s]) -> list[bytes]:
    """The words that `keys_of_words` made these columns of."""
    rows = np.stack(keys, axis=1).astype("<u8")
    return [row.tobytes().rstrip(b"\0") for row in rows]


def split_pre_tokens(text: bytes, fold: bytes, isolated: Mask) -> PreTokens:
    """Runs of word bytes, and every punctuation mark and ideograph by itself."""
    kinds = np.frombuffer(text.translate(KINDS), dtype=np.uint8)
    begins = kinds != SPACE
    single = not np.any(~(begins[1:] | begins[:-1]))
    word = kinds & 1 != 0  # WORD and LEAD
    begins[1:] &= ~(word[1:] & word[:-1])
    leads = np.flatnonzero(kinds == LEAD)
    if len(leads):
        raw = np.frombuffer(text, dtype=np.uint8)
        code = (raw[leads].astype(np.int64) & 0x0F) << 12  # each is a character of three bytes
        code |= (raw[leads + 1].astype(np.int64) & 0x3F) << 6
        code |= raw[leads + 2] & 0x3F
        places = leads[isolated[code]]
        begins[places] = True
        after = places[places + 3 < len(kinds)] + 3
        begins[after] = kinds[after] != SPACE
    starts = np.flatnonzero(begins)
    # A pre-token reaches to the next one's start, or to the white space before it: mostly one byte.
    ends = np.append(starts[1:], len(kinds)) if len(starts) else starts
    while (white := kinds[ends - 1] == SPACE).any():
        ends = ends - white
        if single:
            break
    return PreTokens(text.translate(fold), starts, ends)


def count_pre_tokens(text: bytes, *, lowercase: bool) -> Counter[bytes]:
    """How often each pre-token occurs in cleaned `text`."""
    pre_tokens = split_pre_tokens(text, folding(lowercase=lowercase), NONE_ISOLATED)
    keys = keys_of(pre_tokens)
    short = np.ones(len(keys.first), dtype=np.bool_)
    short[keys.medium] = short[keys.long] = False
    counts: Counter[bytes] = Counter()
    found, times = np.unique(keys.first[short], return_counts=True)
    for key, count in zip(found.tolist(), times.tolist(), strict=True):
        counts[key.to_bytes(KEY_BYTES, "little").rstrip(b"\0")] = count
    counts.update(pre_tokens.words(keys.medium))
    counts.update(pre_tokens.words(keys.long))
    return counts


class Characters(dict[int, str]):
    """What the BERT pipeline of `tokenizers` makes of single characters.

    Code point to text, with spaces where the character separates; filled as they are met, by asking
    `tokenizers` itself, so that no table of Unicode properties has to agree with its own.
    `str.translate` takes it as it is.

    Characters can be asked one by one because the pipeline never looks at two together, except that
    decomposition sorts combining marks. Marks are then stripped; pre-tokens with one that is not (a
    handful of musical and Hangul signs) are left to `tokenizers` as a whole.
    """

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        super().__init__()
        self._normalizer = tokenizer.backend.normalizer
        self._pre_tokenizer = tokenizer.backend.pre_tokenizer
        self.unsafe: set[str] = set()
        """Characters seen so far whose neighbours matter."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        normalised = self._normalizer.normalize_str(f"{_PROBE}{character}{_PROBE}")
        pieces = [piece for piece, _ in self._pre_tokenizer.pre_tokenize_str(normalised)]
        meaning = " ".join(pieces)[1:-1]
        if character not in meaning and any(map(unicodedata.combining, meaning)):
            self.unsafe.add(character)
        self[code] = meaning
        return meaning

    def words(self, text: str) -> list[str] | None:
        """The words of a pre-token; None if `tokenizers` must be asked for it as a whole."""
        words = text.translate(self).split(" ")
        if self.unsafe and not self.unsafe.isdisjoint(text):
            return None
        return [word for word in words if word]

    def isolated(self) -> Mask:
        """Which of the characters below U+10000 surely form a word by themselves."""
        alone = np.zeros(1 << 16, dtype=np.bool_)
        alone[list(_UNIFIED_IDEOGRAPHS)] = True
        for block in _OFTEN_ALONE:
            alone[[code for code in block if self[code] == f" {chr(code)} "]] = True
        return alone
