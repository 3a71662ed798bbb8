"""Shingles: hashes of word n-grams.

In:  blocks of documents as text; files of evaluation data in any text format.
Out: the hash and the document of each shingle; which documents share one with the evaluation data.

Case, punctuation and line breaks do not matter. All words of a block are hashed at once: a word's
hash is a polynomial in its bytes, computed as the difference of two prefix sums modulo 2**64.

The fields of evaluation data are hashed separately, so that no shingle spans a question and its
answer: all strings of a JSON document, the columns of a table, otherwise the lines. Following Brown
et al. 2020 (GPT-3, appendix C), a document overlaps with an evaluation set if they have 13
consecutive words in common.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from pydantic import JsonValue

from artifacts.arrays import Bytes, Mask, Offsets, UInt64s
from artifacts.filesystem import find_files
from artifacts.rng import GOLDEN_GAMMA, scramble
from pipeline.config.settings import OverlapConfig
from pipeline.readers.compression import COMPRESSED_SUFFIXES, stream

_BASE = GOLDEN_GAMMA
"""Odd, so that it has an inverse modulo 2**64."""
_MODULUS = 1 << 64

_CONTINUES_WORD = np.zeros(256, dtype=np.bool_)
for _first, _last in ((b"0", b"9"), (b"a", b"z"), (b"\x80", b"\xff")):
    _CONTINUES_WORD[_first[0] : _last[0] + 1] = True
_LOWER = np.frombuffer(bytes(range(256)).lower(), dtype=np.uint8)

# D documents, W words, P shingles


@dataclass(frozen=True)
class Shingles:
    """The shingles of a block of D documents, in text order.

    hashes_P:    the hash of each shingle.
    documents_P: the document of each shingle, ascending.
    """

    hashes_P: UInt64s
    documents_P: Offsets


def shingles(text: Bytes, ends_D: Offsets, *, words: int) -> Shingles:
    """All n-grams of `words` words within a document; shorter documents have none."""
    lower = _LOWER[text]
    inside = _CONTINUES_WORD[lower]  # letters, digits and non-ASCII characters make words
    # except U+2000 to U+206F: curly quotes, dashes, ellipses, special spaces
    lead = np.flatnonzero((text[:-2] == 0xE2) & ((text[1:-1] == 0x80) | (text[1:-1] == 0x81)))
    inside[np.concatenate((lead, lead + 1, lead + 2))] = False
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    starts_W, stops_W = edges[0::2], edges[1::2]
    documents_W = np.searchsorted(ends_D, starts_W, side="right")
    count = max(len(starts_W) - words + 1, 0)
    whole = np.flatnonzero(documents_W[:count] == documents_W[words - 1 :][:count])
    # the inverse power makes a word's hash independent of its position in the block
    at_least = 1 << len(lower).bit_length()
    powers, inverse = _powers(_BASE, at_least), _powers(pow(_BASE, -1, _MODULUS), at_least)
    sums = np.zeros(len(lower) + 1, dtype=np.uint64)
    np.cumsum(powers[: len(lower)] * (lower + np.uint64(1)), out=sums[1:])
    hashes_W = scramble((sums[stops_W] - sums[starts_W]) * inverse[starts_W])
    hashes_P = np.zeros(len(whole), dtype=np.uint64)
    for offset in range(words):
        hashes_P *= np.uint64(_BASE)
        hashes_P += hashes_W[whole + offset]
    return Shingles(scramble(hashes_P), documents_W[whole])


@lru_cache(maxsize=2)
def evaluation_shingles(config: OverlapConfig) -> UInt64s:
    """The distinct shingles of all evaluation files, ascending."""
    found = [np.zeros(0, dtype=np.uint64)]
    for path in config.paths:
        for file in find_files(path):
            text = b"".join(stream(file.path)).decode("utf-8-sig", "replace")
            name = file.path
            for suffix in COMPRESSED_SUFFIXES:
                name = name.removesuffix(suffix)
            if name.endswith((".json", ".jsonl")):
                try:
                    value = json.loads(text)
                except ValueError:
                    value = [json.loads(line) for line in text.splitlines() if line.strip()]
                fields = _strings(value)
            else:
                fields = (field for line in text.splitlines() for field in line.split("\t"))
            encoded = [field.encode("utf-8", "replace") + b"\n" for field in fields]
            ends = np.cumsum([len(field) for field in encoded], dtype=np.int64)
            joined = np.frombuffer(b"".join(encoded), dtype=np.uint8)
            found.append(shingles(joined, ends, words=config.words).hashes_P)
    return np.unique(np.concatenate(found))


def overlapping(found: Shingles, documents: int, wanted: UInt64s) -> Mask:
    """(D,) bool: which documents of a block contain one of the `wanted` shingles."""
    if not len(wanted):
        return np.zeros(documents, dtype=np.bool_)
    places = np.minimum(np.searchsorted(wanted, found.hashes_P), len(wanted) - 1)
    overlaps = np.zeros(documents, dtype=np.bool_)
    overlaps[found.documents_P[wanted[places] == found.hashes_P]] = True
    return overlaps


@lru_cache(maxsize=4)
def _powers(base: int, count: int) -> UInt64s:
    factors = np.full(count, base, dtype=np.uint64)
    factors[:1] = 1
    return np.cumprod(factors, dtype=np.uint64)


def _strings(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _strings(inner)
