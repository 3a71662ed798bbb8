"""Pre-tokens: the units that BERT's tokenizer processes independently.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: the bounds of runs of word bytes, punctuation marks and ideographs; short ones also as
     integers, which NumPy can compare and sort.

Bytes of non-ASCII characters count as word bytes. This is correct because `tokenizers` gets the
whole pre-token and still splits it where it has to.
"""

import unicodedata
from collections import Counter
from dataclasses import dataclass

import numpy as np

from artifacts.arrays import Mask, Offsets, UInt64s
from artifacts.tokenizer import WordPieceTokenizer

KEY_BYTES = 8
MAX_KEY_BYTES = 2 * KEY_BYTES
"""Longer pre-tokens are handled as Python bytes; they are rare."""

SPACE, WORD, ALONE, LEAD = range(4)
"""Classes of bytes. Those of non-ASCII characters are `WORD`, or `LEAD` if they may begin a
character that is a word by itself and has to be looked up."""

LENGTH_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(KEY_BYTES + 1)], dtype=np.uint64)
"""Masks of the bytes that a word of the given length occupies."""
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
"""ASCII punctuation marks, each a pre-token by itself."""

NONE_ISOLATED = np.zeros(1 << 16, dtype=np.bool_)

_PROBE = "a"
"""Surrounds a character under test; normalisation leaves it unchanged."""

_OFTEN_ALONE = (range(0x2010, 0x2028), range(0x3000, 0x3040), range(0xFF00, 0xFF66))
"""Unicode blocks with common punctuation: dashes and quotes, CJK, full width."""
_UNIFIED_IDEOGRAPHS = range(0x4E00, 0xA000)
"""Always isolated (reference: tokenization.py:266-284)."""


def folding(*, lowercase: bool) -> bytes:
    """The translation table applied to text before pre-tokens are compared."""
    return bytes(range(256)).lower() if lowercase else bytes(range(256))


@dataclass(frozen=True)
class PreTokens:
    """The bounds of pre-tokens in a text, and the text they are compared in."""

    folded: bytes
    starts: Offsets
    ends: Offsets

    def words(self, which: Offsets) -> list[bytes]:
        """The selected pre-tokens as bytes."""
        bounds = zip(self.starts[which].tolist(), self.ends[which].tolist(), strict=True)
        return [self.folded[start:end] for start, end in bounds]


@dataclass(frozen=True)
class PreTokenKeys:
    """Pre-tokens as integers, by length.

    first:  the first 8 bytes of every pre-token, zero-padded.
    medium: indices of the pre-tokens of 9 to 16 bytes; `second` holds their remaining bytes.
    long:   indices of longer pre-tokens.
    """

    first: UInt64s
    medium: Offsets
    second: UInt64s
    long: Offsets


def keys_of(pre_tokens: PreTokens) -> PreTokenKeys:
    """The pre-tokens as integers, by unaligned reads from the text."""
    lengths = pre_tokens.ends - pre_tokens.starts
    padded = pre_tokens.folded + bytes(MAX_KEY_BYTES)
    at_byte: UInt64s = np.ndarray((len(pre_tokens.folded) + KEY_BYTES,), "<u8", padded, 0, (1,))
    first = at_byte[pre_tokens.starts] & LENGTH_MASKS.take(lengths, mode="clip")
    beyond = np.flatnonzero(lengths > KEY_BYTES)
    is_long = lengths[beyond] > MAX_KEY_BYTES
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
    """Split into runs of word bytes and single punctuation marks and ideographs."""
    kinds = np.frombuffer(text.translate(KINDS), dtype=np.uint8)
    begins = kinds != SPACE
    single = not np.any(~(begins[1:] | begins[:-1]))
    word = kinds & 1 != 0  # WORD and LEAD
    begins[1:] &= ~(word[1:] & word[:-1])
    leads = np.flatnonzero(kinds == LEAD)
    if len(leads):
        raw = np.frombuffer(text, dtype=np.uint8)
        code = (raw[leads].astype(np.int64) & 0x0F) << 12  # all begin three-byte characters
        code |= (raw[leads + 1].astype(np.int64) & 0x3F) << 6
        code |= raw[leads + 2] & 0x3F
        places = leads[isolated[code]]
        begins[places] = True
        after = places[places + 3 < len(kinds)] + 3
        begins[after] = kinds[after] != SPACE
    starts = np.flatnonzero(begins)
    # a pre-token ends at the start of the next, or at the white space before it: usually one byte
    ends = np.append(starts[1:], len(kinds)) if len(starts) else starts
    while (white := kinds[ends - 1] == SPACE).any():
        ends = ends - white
        if single:
            break
    return PreTokens(text.translate(fold), starts, ends)


def count_pre_tokens(text: bytes, *, lowercase: bool) -> Counter[bytes]:
    """Count the pre-tokens in cleaned `text`."""
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
    """How the BERT pipeline of `tokenizers` normalises single characters, as a translation table.

    Maps code points to text, with spaces around characters that are words by themselves. Entries
    are obtained from `tokenizers` on first use, so that no table of Unicode properties has to agree
    with its own.

    Characters can be handled one by one because the pipeline never combines two, except that
    decomposition reorders combining marks. Marks are then stripped; pre-tokens with a mark that is
    not (a handful of musical and Hangul signs) are passed to `tokenizers` whole.
    """

    def __init__(self, tokenizer: WordPieceTokenizer) -> None:
        super().__init__()
        self._normalizer = tokenizer.backend.normalizer
        self._pre_tokenizer = tokenizer.backend.pre_tokenizer
        self.unsafe: set[str] = set()
        """Characters seen so far whose result depends on their neighbours."""

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
        """The words of a pre-token; None if it must be passed to `tokenizers` whole."""
        words = text.translate(self).split(" ")
        if self.unsafe and not self.unsafe.isdisjoint(text):
            return None
        return [word for word in words if word]

    def isolated(self) -> Mask:
        """Which characters below U+10000 are known to be words by themselves."""
        alone = np.zeros(1 << 16, dtype=np.bool_)
        alone[list(_UNIFIED_IDEOGRAPHS)] = True
        for block in _OFTEN_ALONE:
            alone[[code for code in block if self[code] == f" {chr(code)} "]] = True
        return alone
