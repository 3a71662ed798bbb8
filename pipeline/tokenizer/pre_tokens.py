"""Pre-tokens: the units that BERT's tokenizer processes independently.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: runs of word bytes, punctuation marks and ideographs, as an Arrow array over the text.

Bytes of non-ASCII characters count as word bytes. This is correct because `tokenizers` gets the
whole pre-token and still splits it where it has to.
"""

import unicodedata
from collections import Counter

import numpy as np
import pyarrow as pa

from artifacts.arrays import Mask, Offsets
from artifacts.tokenizer import WordPieceTokenizer

SPACE, WORD, ALONE, LEAD = range(4)
"""Classes of bytes. Those of non-ASCII characters are `WORD`, or `LEAD` if they may begin a
character that is a word by itself and has to be looked up."""

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

NONE_ISOLATED = np.zeros(1 << 16, dtype=np.bool_)

_PROBE = "a"
"""Surrounds a character under test; normalisation leaves it unchanged."""

_OFTEN_ALONE = (range(0x2010, 0x2028), range(0x3000, 0x3040), range(0xFF00, 0xFF66))
"""Unicode blocks with common punctuation: dashes and quotes, CJK, full width."""
_UNIFIED_IDEOGRAPHS = range(0x4E00, 0xA000)
"""Always isolated (reference: tokenization.py:266-284)."""


def split_pre_tokens(
    text: bytes, *, lowercase: bool, isolated: Mask = NONE_ISOLATED
) -> tuple[Offsets, pa.BinaryArray]:
    """Where the pre-tokens of `text` begin, and their bytes with the white space after them.

    Lower-cases ASCII letters only. `isolated` are the characters below U+10000 to split off.
    """
    kinds = np.frombuffer(text.translate(KINDS), dtype=np.uint8)
    begins = kinds != SPACE
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
    bounds = pa.py_buffer(np.append(starts, len(text)).astype(np.int32))
    content = pa.py_buffer(text.lower() if lowercase else text)
    return starts, pa.BinaryArray.from_buffers(pa.binary(), len(starts), [None, bounds, content])


def count_pre_tokens(text: bytes, *, lowercase: bool) -> Counter[bytes]:
    """Count the pre-tokens in cleaned `text`."""
    _, pre_tokens = split_pre_tokens(text, lowercase=lowercase)
    found, times = pre_tokens.value_counts().flatten()
    counts: Counter[bytes] = Counter()
    for pre_token, count in zip(found.to_pylist(), times.to_pylist(), strict=True):
        counts[pre_token.rstrip()] += count
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
