"""Shingles: every run of so many consecutive words of a document, as a number.

In:  blocks of documents as text; files of evaluation data in whatever format they come.
Out: for each shingle its hash and the document it stands in; which documents have one in common
     with the evaluation data.

Two texts share a shingle if they share these words, whatever their case, punctuation and line
breaks. All words of a block are hashed at once: a word is a polynomial in its bytes, and the sum
over any stretch of the block is the difference of two prefix sums, modulo 2**64.

Of evaluation data, fields are taken one by one, so no shingle runs from a question into its answer:
the strings of a JSON document, wherever they are in it, the columns of a table, else the lines.
Brown et al. 2020 (GPT-3, appendix C) call a document with 13 words in common with an evaluation set
overlapping.
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
    """The shingles of a block of D documents, in the order of the text.

    hashes_P:    each shingle's words; equal shingles have equal numbers.
    documents_P: the document it stands in, ascending.
    """

    hashes_P: UInt64s
    documents_P: Offsets


def shingles(text: Bytes, ends_D: Offsets, *, words: int) -> Shingles:
    """All runs of `words` words within one document; a shorter document has none."""
    lower = _LOWER[text]
    inside = _CONTINUES_WORD[lower]  # letters, digits and non-ASCII characters make words
    # but not U+2000 to U+206F: curly quotes, dashes, ellipses, odd spaces
    lead = np.flatnonzero((text[:-2] == 0xE2) & ((text[1:-1] == 0x80) | (text[1:-1] == 0x81)))
    inside[np.concatenate((lead, lead + 1, lead + 2))] = False
    edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
    starts_W, stops_W = edges[0::2], edges[1::2]
    documents_W = np.searchsorted(ends_D, starts_W, side="right")
    count = max(len(starts_W) - words + 1, 0)
    whole = np.flatnonzero(documents_W[:count] == documents_W[words - 1 :][:count])
    # a word's number depends on its bytes alone: a difference of prefix sums, moved to its place
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
    """All shingles of all evaluation files, each once, ascending."""
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
    """(D,) bool: which of a block's documents have one of the `wanted` shingles."""
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
