"""Chunks: the stretches of text that BERT's tokenizer never looks across.

In:  cleaned UTF-8 text (pipeline/text/cleaning.py: no control characters but the line feed).
Out: where runs of word bytes, punctuation marks and ideographs begin and end; and short ones as
     integers, which NumPy can compare and sort.

Bytes of non-ASCII characters belong to words here. That is right as long as a chunk is tokenised as
a whole: what `tokenizers` would separate inside it, it still separates.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.tokenizer.hash_table import Keys

KEY_BYTES = 8
LONGEST_KEY = 2 * KEY_BYTES
"""Longer chunks are compared as Python's bytes; they are rare."""

SPACE, WORD, ALONE, LEAD = range(4)
"""What a byte is to the pre-tokenizer. Bytes of non-ASCII characters belong to words; those that
may begin a character that is a word by itself are looked at again."""

Offsets = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LENGTH_MASKS = np.array([(1 << (8 * n)) - 1 for n in range(KEY_BYTES + 1)], dtype=np.uint64)
"""The bytes of an integer that a word of so many bytes fills."""
_LEADS = (0xE2, *range(0xE3, 0xEA), 0xEF)


def _kind(byte: int) -> int:
    if byte <= 0x20:
        return SPACE
    if byte in _LEADS:
        return LEAD
    return WORD if byte >= 0x80 or chr(byte).isalnum() else ALONE


KINDS = bytes(_kind(byte) for byte in range(256))
PUNCTUATION = tuple(bytes([byte]) for byte in range(0x7F) if KINDS[byte] == ALONE)
"""ASCII marks, each a chunk by itself."""

NONE_ISOLATED = np.zeros(1 << 16, dtype=np.bool_)
_LOWER = bytes(range(256)).lower()
_SAME = bytes(range(256))


def folding(*, lowercase: bool) -> bytes:
    """The table by which text is folded before chunks are compared."""
    return _LOWER if lowercase else _SAME


@dataclass(frozen=True)
class Chunks:
    """Where the chunks of a stretch of text lie, and the text they are compared in."""

    folded: bytes
    starts: Offsets
    ends: Offsets

    def words(self, which: Offsets) -> list[bytes]:
        """Some of the chunks as bytes."""
        bounds = zip(self.starts[which].tolist(), self.ends[which].tolist(), strict=True)
        return [self.folded[start:end] for start, end in bounds]


@dataclass(frozen=True)
class ChunkKeys:
    """Chunks as integers, by length.

    first:  the first 8 bytes of every chunk, zero-padded: all of it if it is no longer.
    medium: numbers of the chunks of 9 to 16 bytes; `second` holds the rest of each.
    long:   numbers of the longer ones.
    """

    first: Keys
    medium: Offsets
    second: Keys
    long: Offsets


def keys_of(chunks: Chunks) -> ChunkKeys:
    """The chunks as integers, read from the text at any byte."""
    lengths = chunks.ends - chunks.starts
    padded = chunks.folded + bytes(LONGEST_KEY)
    at_byte: Keys = np.ndarray((len(chunks.folded) + KEY_BYTES,), "<u8", padded, 0, (1,))
    first = at_byte[chunks.starts] & LENGTH_MASKS.take(lengths, mode="clip")
    beyond = np.flatnonzero(lengths > KEY_BYTES)
    is_long = lengths[beyond] > LONGEST_KEY
    medium = beyond[~is_long]
    rest = LENGTH_MASKS[lengths[medium] - KEY_BYTES]
    second = at_byte[chunks.starts[medium] + KEY_BYTES] & rest
    return ChunkKeys(first, medium, second, beyond[is_long])


def keys_of_words(words: list[bytes], width: int) -> list[Keys]:
    """Words of at most 8 * width bytes as `width` columns of integers."""
    padded = b"".join(word.ljust(width * KEY_BYTES, b"\0") for word in words)
    rows = np.frombuffer(padded, dtype="<u8").reshape(-1, width)
    return [np.ascontiguousarray(rows[:, column]) for column in range(width)]


def words_of_keys(keys: list[Keys]) -> list[bytes]:
    """The words that `keys_of_words` made these columns of."""
    rows = np.stack(keys, axis=1).astype("<u8")
    return [row.tobytes().rstrip(b"\0") for row in rows]


def split_chunks(text: bytes, fold: bytes, isolated: Mask) -> Chunks:
    """Runs of word bytes, and every punctuation mark and ideograph by itself."""
    kinds = np.frombuffer(text.translate(KINDS), dtype=np.uint8)
    begins = kinds != SPACE
    single = not np.any(~(begins[1:] | begins[:-1]))
    word = kinds & 1 != 0  # WORD and LEAD
    begins[1:] &= ~(word[1:] & word[:-1])
    leads = np.flatnonzero(kinds == LEAD)
    if len(leads):
        places = leads[isolated[_code_points(text, leads)]]
        begins[places] = True
        after = places[places + 3 < len(kinds)] + 3
        begins[after] = kinds[after] != SPACE
    starts = np.flatnonzero(begins)
    # A chunk reaches to the next one's start, or to the white space before it: mostly one byte.
    ends = np.append(starts[1:], len(kinds)) if len(starts) else starts
    while (white := kinds[ends - 1] == SPACE).any():
        ends = ends - white
        if single:
            break
    return Chunks(text.translate(fold), starts, ends)


def _code_points(text: bytes, leads: Offsets) -> Offsets:
    """The three-byte characters that begin at `leads`."""
    raw = np.frombuffer(text, dtype=np.uint8)
    code: Offsets = (raw[leads].astype(np.int64) & 0x0F) << 12
    code |= (raw[leads + 1].astype(np.int64) & 0x3F) << 6
    code |= raw[leads + 2] & 0x3F
    return code


def count_chunks(text: bytes, *, lowercase: bool) -> Counter[bytes]:
    """How often each chunk occurs in cleaned `text`."""
    chunks = split_chunks(text, folding(lowercase=lowercase), NONE_ISOLATED)
    keys = keys_of(chunks)
    short = np.ones(len(keys.first), dtype=np.bool_)
    short[keys.medium] = short[keys.long] = False
    counts: Counter[bytes] = Counter()
    found, times = np.unique(keys.first[short], return_counts=True)
    for key, count in zip(found.tolist(), times.tolist(), strict=True):
        counts[key.to_bytes(KEY_BYTES, "little").rstrip(b"\0")] = count
    counts.update(chunks.words(keys.medium))
    counts.update(chunks.words(keys.long))
    return counts
