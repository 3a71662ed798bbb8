"""Near-duplicates and overlap with evaluation data, found by shingles; and lists of both.

In:  blocks of documents as text; files of evaluation data in any text format; later, which
     documents agree in a band of their signatures. A drop list: an artifact whose `*.arrow` files
     have the columns `document_digest` (binary 16) and `reason` (string).
Out: the hash and the document of each shingle, a word n-gram; which documents share one with the
     evaluation data; for each document the kept one that it nearly equals, or itself; which of
     given digests are on a drop list.

The stage `dedup` finds them and makes a drop list, which the stages `vocabulary` and `tokens` read;
any artifact of this form will do (`cleaning.drop_list`).

Case, punctuation and line breaks do not matter. All words of a block are hashed at once: a word's
hash is a polynomial in its bytes, computed as the difference of two prefix sums modulo 2**64.

MinHash (Broder 1997) proposes candidates and exact comparison decides. The share of equal values in
two signatures estimates the Jaccard similarity of their shingle sets. Signatures are cut into bands
(locality-sensitive hashing), so that documents above the threshold almost surely agree in at least
one whole band. These are the candidates; each is compared, shingle by shingle, with the candidates
kept so far. Thus no document is dropped in favour of one that is itself dropped, or of one below
the threshold.

The fields of evaluation data are hashed separately, so that no shingle spans a question and its
answer: all strings of a JSON document, the columns of a table, otherwise the lines. Following Brown
et al. 2020 (GPT-3, appendix C), a document overlaps with an evaluation set if they have 13
consecutive words in common.

With a C compiler words, shingles, sets and signatures are made in duplicates.c; the NumPy here
makes the same, and says what.
"""

import ctypes
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import JsonValue

from cloze.artifacts.arrays import (
    Bytes,
    Int64s,
    Mask,
    Offsets,
    UInt64s,
    concatenated,
    digest_bytes,
    digest_halves,
    offsets_of,
)
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.filesystem import find_files
from cloze.artifacts.rng import GOLDEN_GAMMA, draw, scramble, stream_seed
from cloze.artifacts.runtime.native import compiled, pointer, pointers
from cloze.artifacts.store import open_artifact
from cloze.pipeline.config.settings import (
    NearDuplicatesConfig,
    OverlapConfig,
)
from cloze.pipeline.readers.compression import COMPRESSED_SUFFIXES, stream
from cloze.pipeline.text.cleaning import SPACE
from cloze.pipeline.text.scripts import (
    CODES,
    UNITS_PER_WORD,
    decode,
    in_ranges,
    is_mark,
    lower_bytes,
    units,
)

COLUMN = "document_digest"

UInt32s = npt.NDArray[np.uint32]

CANDIDATE_PROBABILITY = 0.99
"""Minimum probability that two documents at the threshold agree in a band."""

MAX_COMPARISONS = 512
"""Maximum number of comparisons per document, starting with those that share the most bands:
thousands of pages made from one template share a few bands, too many for all pairs."""

_BASE = GOLDEN_GAMMA
"""Odd, so that it has an inverse modulo 2**64."""
_MODULUS = 1 << 64

_CONTINUES_WORD = np.zeros(256, dtype=np.bool_)
for _first, _last in ((b"0", b"9"), (b"a", b"z"), (b"\x80", b"\xff")):
    _CONTINUES_WORD[_first[0] : _last[0] + 1] = True
_FIRST_WIDE_LEAD = 0xE0
"""First byte of characters of three or four bytes."""
_MARKS = (
    (0x2000, 0x206F),
    (0x3000, 0x3004),
    (0x3008, 0x3020),
    (0x3030, 0x3030),
    (0x303D, 0x303D),
    (0xFE10, 0xFE1F),
    (0xFE30, 0xFE6F),
    (0xFF01, 0xFF0F),
    (0xFF1A, 0xFF20),
    (0xFF3B, 0xFF40),
    (0xFF5B, 0xFF65),
)
"""Punctuation of several bytes: General Punctuation, CJK, full width."""

_OUTSIDE, _MARK = 64, 128
"""Bits of the kernel's table of characters, beside the units that they count by themselves."""

# D documents, W words, P shingles, or pairs of a candidate and a group; B bands, S distinct
# shingles of each document; C candidates, G groups


@cache
def duplicates_library() -> ctypes.CDLL | None:
    """The functions of duplicates.c; None without a C compiler."""
    return compiled(Path(__file__).with_name("duplicates.c"))


@dataclass(frozen=True)
class Shingles:
    """The shingles of a block of D documents, in text order.

    hashes_P:    the hash of each shingle.
    documents_P: the document of each shingle, ascending.
    """

    hashes_P: UInt64s
    documents_P: Offsets


def shingles(text: Bytes, ends_D: Offsets, *, words: int) -> Shingles:
    """All n-grams of `words` words within a document; shorter documents have none.

    In scripts without spaces between words, a shingle has more characters: see scripts.py.
    """
    lower = lower_bytes(text)
    windows = _windows(lower, find_words(lower), ends_D, words=words)
    return Shingles(windows.hashes_P, windows.documents_P)


def token_windows(text: Bytes, ends_D: Offsets, *, tokens: int) -> "Windows":
    """All runs of `tokens` words and marks within a document, by their exact characters.

    White space makes no difference. In scripts without spaces a window has more characters.
    """
    starts_W, stops_W, units_W = find_words(lower_bytes(text))
    edges = np.zeros(len(text) + 1, dtype=np.int8)
    edges[starts_W] += 1
    edges[stops_W] -= 1
    outside = np.cumsum(edges, dtype=np.int8)[:-1] == 0
    # What is neither in a word nor white space is marks, each a token by itself.
    marks = np.flatnonzero(outside & (text > SPACE) & ((text & 0xC0) != 0x80))
    leads = text[marks]
    stops = marks + 1 + (leads >= 0xC0) + (leads >= 0xE0) + (leads >= 0xF0)
    order = np.argsort(np.concatenate((starts_W, marks)), kind="stable")
    starts_W = np.concatenate((starts_W, marks))[order]
    stops_W = np.concatenate((stops_W, stops))[order]
    units_W = np.concatenate((units_W, np.full(len(marks), UNITS_PER_WORD)))[order]
    return _windows(text, FoundWords(starts_W, stops_W, units_W), ends_D, words=tokens)


class Windows(NamedTuple):
    """The P runs of so many words of a block of documents, in text order.

    hashes_P:          the hash of each.
    documents_P:       the document of each, ascending.
    starts_P, stops_P: where it begins and ends in the text.
    """

    hashes_P: UInt64s
    documents_P: Offsets
    starts_P: Offsets
    stops_P: Offsets


class FoundWords(NamedTuple):
    """The W words of a text, in order."""

    starts_W: Offsets
    stops_W: Offsets
    units_W: Int64s
    """How many sixths of a word each counts."""


def _windows(text: Bytes, found: FoundWords, ends_D: Offsets, *, words: int) -> Windows:
    """Every window of so many `words` within a document."""
    starts_W, stops_W, units_W = found
    if kernel := duplicates_library():
        text, ends_D = np.ascontiguousarray(text), np.ascontiguousarray(ends_D, dtype=np.int64)
        powers = _powers(_BASE, 1 << (words * UNITS_PER_WORD).bit_length())
        hashes_W, hashes_P = np.empty((2, len(starts_W)), dtype=np.uint64)
        places_3P = np.empty((3, len(starts_W)), dtype=np.int64)
        count = kernel.find_windows(
            *(*pointers(text, starts_W, stops_W, units_W), len(starts_W), pointer(ends_D)),
            *(words * UNITS_PER_WORD, *pointers(powers, hashes_W, hashes_P, *places_3P)),
        )
        return Windows(hashes_P[:count], *places_3P[:, :count])
    # few documents looked up among many words, rather than each word among the documents
    words_D = np.diff(np.searchsorted(starts_W, ends_D), prepend=0)
    documents_W = np.repeat(np.arange(len(ends_D)), words_D)
    # each shingle ends with the first word that completes it; words after it begin at `last_W`
    if (units_W == UNITS_PER_WORD).all():
        last_W = np.arange(words, len(starts_W) + words)
    else:
        before_W1 = offsets_of(units_W)
        wanted = before_W1[:-1] + words * UNITS_PER_WORD
        # The first word at which the count from word w on is complete: how many places have fewer
        # units before them, counted for all numbers of units at once.
        fewer = np.cumsum(np.bincount(before_W1, minlength=int(wanted[-1]) if len(wanted) else 0))
        last_W = fewer[wanted - 1]
    # windows that the block's words complete at all
    count = int(np.searchsorted(last_W, len(starts_W), side="right"))
    # windows that end in the document in which they begin
    whole = np.flatnonzero(documents_W[:count] == documents_W[last_W[:count] - 1])
    hashes_W = range_hashes(text, starts_W, stops_W)
    # a shingle is a polynomial in its words' hashes, whose last word has the power 0
    powers, inverse = _both_powers(len(text))
    sums_W1 = np.zeros(len(hashes_W) + 1, dtype=np.uint64)
    np.cumsum(inverse[: len(hashes_W)] * hashes_W, out=sums_W1[1:])
    last_P = last_W[whole]
    hashes_P = (sums_W1[last_P] - sums_W1[whole]) * powers[last_P - 1]
    return Windows(scramble(hashes_P), documents_W[whole], starts_W[whole], stops_W[last_P - 1])


def range_hashes(text: Bytes, starts_N: Offsets, stops_N: Offsets) -> UInt64s:
    """A hash of the bytes in each of N ranges of `text`, wherever they are: (N,)."""
    if kernel := duplicates_library():
        text, hashes_N = np.ascontiguousarray(text), np.empty(len(starts_N), dtype=np.uint64)
        starts_N, stops_N = (np.ascontiguousarray(at, np.int64) for at in (starts_N, stops_N))
        kernel.hash_ranges(
            *(*pointers(text, starts_N, stops_N), len(starts_N)),
            *pointers(_powers(_BASE, 2), hashes_N),
        )
        return hashes_N
    # the inverse power makes a hash independent of its position in the text
    powers, inverse = _both_powers(len(text))
    sums = np.zeros(len(text) + 1, dtype=np.uint64)
    # Prefix sums of (byte + 1) · base^place: a range's difference, times base^-start, is its
    # polynomial from power 0 on. The 1 keeps zero bytes from vanishing.
    np.cumsum(powers[: len(text)] * (text + np.uint64(1)), out=sums[1:])
    return scramble((sums[stops_N] - sums[starts_N]) * inverse[starts_N])


def find_words(lower: Bytes) -> FoundWords:
    """The words of `lower`.

    Letters, digits and most other non-ASCII characters make words.
    """
    if kernel := duplicates_library():
        lower = np.ascontiguousarray(lower)
        # a word and what ends it have two bytes, a character that is a word has three
        found_3W = np.empty((3, len(lower) // 2 + 1), dtype=np.int64)
        count = kernel.find_words(
            *(pointer(lower), len(lower), *pointers(_CONTINUES_WORD, _characters(), *found_3W))
        )
        return FoundWords(*found_3W[:, :count])
    inside = _CONTINUES_WORD[lower]
    padded = np.concatenate((lower, np.zeros(3, dtype=np.uint8)))
    leads = np.flatnonzero(lower >= _FIRST_WIDE_LEAD)
    if not len(leads):
        edges = np.flatnonzero(np.diff(inside, prepend=False, append=False))
        starts_W, stops_W = edges[0::2], edges[1::2]
        return FoundWords(starts_W, stops_W, np.full(len(starts_W), UNITS_PER_WORD))
    code, width = decode(padded, leads)
    # not curly quotes, dashes, ellipses and special spaces, nor CJK punctuation and full-width
    mark = in_ranges(code, _MARKS)
    for ahead in range(3):
        inside[leads[mark] + ahead] = False
    edge = np.diff(inside, prepend=False, append=False).astype(np.bool_)
    # Characters of scripts without spaces, which count as words or parts of words by themselves.
    units_N = units(code)
    alone = np.flatnonzero(units_N)
    begins = np.flatnonzero(edge[:-1] & inside)
    if not len(alone):
        stops_W = np.flatnonzero(edge)[1::2]
        return FoundWords(begins, stops_W, np.full(len(begins), UNITS_PER_WORD))
    # Characters that count as words by themselves begin one, and so does what follows them, unless
    # it is a mark that belongs to them.
    places, ends = leads[alone], leads[alone] + width[alone]
    marks = leads[is_mark()[np.minimum(code, CODES - 1)]]
    first = np.zeros(len(lower) + 1, dtype=np.bool_)
    first[begins] = True
    first[places] = True
    after = ends[inside[np.minimum(ends, len(lower) - 1)] & (ends < len(lower))]
    first[after] = ~np.isin(after, marks)
    starts_W = np.flatnonzero(first)
    stops_of_runs = np.flatnonzero(edge)[1::2]
    next_W = np.append(starts_W[1:], len(lower))
    # A word ends where the next begins or where its run of word bytes ends.
    begins_run = np.zeros(len(lower), dtype=np.bool_)
    begins_run[begins] = True
    stops_W = np.minimum(next_W, stops_of_runs[np.cumsum(begins_run[starts_W]) - 1])
    units_W = np.full(len(starts_W), UNITS_PER_WORD)
    units_W[np.searchsorted(starts_W, places)] = units_N[alone]
    return FoundWords(starts_W, stops_W, units_W)


@cache
def _characters() -> Bytes:
    """What the kernel must know of each character below `CODES`."""
    codes = np.arange(CODES)
    return (units(codes) | is_mark() * _MARK | in_ranges(codes, _MARKS) * _OUTSIDE).astype(np.uint8)


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
            # A file of one JSON value, or of one per line.
            if name.endswith((".json", ".jsonl")):
                fields: Iterable[str] = _strings_in_json(text, file.path)
            else:
                fields = (field for line in text.splitlines() for field in line.split("\t"))
            encoded = [field.encode("utf-8", "replace") + b"\n" for field in fields]
            found.append(shingles(*concatenated(encoded), words=config.words).hashes_P)
    return np.unique(np.concatenate(found))


def _strings_in_json(text: str, path: str) -> list[str]:
    """All strings in a JSON document, or in JSON lines."""
    try:
        try:
            value = json.loads(text)
        except ValueError:
            value = [json.loads(line) for line in text.splitlines() if line.strip()]
        return [*_strings(value)]
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not JSON: {error}; expected a document, or one object per line"
        ) from None


def overlapping(found: Shingles, documents: int, wanted: UInt64s) -> Mask:
    """(D,) bool: which documents of a block contain one of the `wanted` shingles."""
    if not len(wanted):
        return np.zeros(documents, dtype=np.bool_)
    # Binary search; the clip keeps the index valid for hashes beyond the last.
    places = np.minimum(np.searchsorted(wanted, found.hashes_P), len(wanted) - 1)
    overlaps = np.zeros(documents, dtype=np.bool_)
    overlaps[found.documents_P[wanted[places] == found.hashes_P]] = True
    return overlaps


def _both_powers(places: int) -> tuple[UInt64s, UInt64s]:
    """The powers of the base and of its inverse, for at least as many `places`."""
    # rounded up, so that blocks of any size share a few tables
    at_least = 1 << places.bit_length()
    return _powers(_BASE, at_least), _powers(pow(_BASE, -1, _MODULUS), at_least)


@lru_cache(maxsize=8)
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


@dataclass(frozen=True)
class ShingleSets:
    """The shingles of each document as a set.

    values_S: 32 bits of each shingle's hash, ascending within a document. Of two documents with a
              million shingles each, about 200 (0.02 %) collide by chance.
    starts_D, ends_D: the range of each document's set.
    """

    values_S: UInt32s
    starts_D: Int64s
    ends_D: Int64s

    @classmethod
    def of(cls, found: Shingles, documents: int) -> "ShingleSets":
        """The sets of a block of `documents` documents."""
        if kernel := duplicates_library():
            count, sizes_D = len(found.hashes_P), np.zeros(documents, dtype=np.int64)
            values_S, scratch = np.empty((2, count), dtype=np.uint32)
            kernel.find_sets(
                *(*pointers(found.hashes_P, found.documents_P), count),
                *pointers(values_S, scratch, sizes_D),
            )
            bounds = offsets_of(sizes_D)
            return cls(values_S[: bounds[-1]], bounds[:-1], bounds[1:])
        # Document and upper hash bits as one key: a single sort orders sets by document and values
        # within each, and equal neighbours are repetitions.
        keys = found.documents_P.astype(np.uint64) << np.uint64(32) | found.hashes_P >> np.uint64(
            32
        )
        keys.sort()
        # the complement of the first key differs from it, so the first is always kept
        keys = keys[np.diff(keys, prepend=~keys[:1]) != 0]
        counts_D = np.bincount((keys >> np.uint64(32)).astype(np.int64), minlength=documents)
        bounds = offsets_of(counts_D)
        return cls(keys.astype(np.uint32), bounds[:-1], bounds[1:])

    def of_document(self, document: int) -> UInt32s:
        """One document's set."""
        return self.values_S[int(self.starts_D[document]) : int(self.ends_D[document])]

    def in_common(self, document: int, others: Int64s) -> Int64s:
        """The size of the intersection with each of `others`; no set is empty."""
        if not len(others):
            return np.zeros(0, dtype=np.int64)
        own, sets = self.of_document(document), list(map(self.of_document, others.tolist()))
        every = np.concatenate(sets)
        # The index is clipped for values beyond the own largest, which are not equal to it.
        places = np.minimum(np.searchsorted(own, every), len(own) - 1)
        starts = offsets_of(np.array([len(values) for values in sets], dtype=np.int64))[:-1]
        return np.add.reduceat((own[places] == every).astype(np.int64), starts)


@dataclass(frozen=True)
class Bands:
    """Signatures consist of `count` bands of `width` values."""

    count: int
    width: int


def bands_for(config: NearDuplicatesConfig) -> Bands:
    """The widest bands (fewest false candidates) that hardly miss a pair at the threshold.

    Two signatures with a share s of equal values agree in a band of r values with probability s^r,
    and in at least one of b bands with probability 1 - (1 - s^r)^b.
    """
    # From wide to narrow, so that the first that finds enough pairs has the fewest false ones.
    for width in range(config.permutations, 1, -1):
        count = config.permutations // width
        if 1 - (1 - config.threshold**width) ** count >= CANDIDATE_PROBABILITY:
            return Bands(count, width)
    return Bands(config.permutations, 1)


def band_keys(sets: ShingleSets, bands: Bands) -> UInt64s:
    """(D, B): a key for each band of each document; 0 for documents without shingles.

    The permutations are multiplications by odd numbers modulo 2**32, which suffices because the
    values are hashes already. One pass over the shingles of a block gives one value of every
    document's signature.
    """
    keys_DB = np.zeros((len(sets.ends_D), bands.count), dtype=np.uint64)
    filled = np.flatnonzero(sets.starts_D < sets.ends_D)
    if not len(filled):
        return keys_DB
    draws = draw(stream_seed(1, "min-hash"), np.arange(bands.count * bands.width))
    # odd factors are permutations modulo 2^32
    factors = (draws >> np.uint64(32)).astype(np.uint32) | np.uint32(1)
    if kernel := duplicates_library():
        kernel.find_keys(
            *(*pointers(sets.values_S, sets.starts_D, sets.ends_D), len(keys_DB), pointer(factors)),
            *(bands.count, bands.width, *pointers(_powers(_BASE, 2), keys_DB)),
        )
        return keys_DB
    permuted_S = np.empty_like(sets.values_S)
    for band, band_factors in enumerate(factors.reshape(bands.count, bands.width)):
        # Values of the band are folded into one key; the band's number begins it, so that equal
        # values in different bands differ.
        keys_D = np.full(len(filled), band + 1, dtype=np.uint64)
        for factor in band_factors:
            np.multiply(sets.values_S, factor, out=permuted_S)
            smallest_D = np.minimum.reduceat(permuted_S, sets.starts_D[filled])
            keys_D = scramble(keys_D * np.uint64(_BASE) + smallest_D)
        # 0 stands for documents without shingles
        keys_DB[filled, band] = np.maximum(keys_D, np.uint64(1))
    return keys_DB


def sharing(keys_D: UInt64s) -> tuple[Int64s, Int64s]:
    """The documents that share their key of a band with another one, and the number of their group.

    Keys of 0 are never shared.
    """
    order = np.argsort(keys_D, kind="stable")
    ordered = keys_D[order]
    # Groups of equal keys.
    starts = np.flatnonzero(np.diff(ordered, prepend=~ordered[:1]))
    sizes = np.diff(np.append(starts, len(order)))
    shared = (sizes > 1) & (ordered[starts] != 0)
    members = order[np.repeat(shared, sizes)]
    return members, np.repeat(np.arange(np.count_nonzero(shared)), sizes[shared])


def shared_bands(keys_BD: Iterable[UInt64s]) -> tuple[Int64s, Int64s]:
    """Pairs of a document and a group of documents with an equal key, numbered across all bands."""
    members, groups, count = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)], 0
    for keys_D in keys_BD:  # 0 where a document has no shingles
        sharing_P, groups_P = sharing(keys_D)
        members.append(sharing_P)
        groups.append(groups_P + count)
        count += len(np.unique(groups_P))
    return np.concatenate(members), np.concatenate(groups)


def kept_for(
    candidates_P: Int64s, groups_P: Int64s, sets: ShingleSets, *, threshold: float
) -> Int64s:
    """For each candidate, in order of preference, the first kept one that it nearly equals: (C,).

    candidates_P, groups_P: pairs of a candidate and a group of candidates that agree in a band.
    sets:                   the shingles of each candidate; none is empty.

    A candidate is dropped if its Jaccard similarity to a kept one reaches the threshold. Dropped
    candidates are not compared with later ones.
    """
    sizes_C = sets.ends_D - sets.starts_D
    found_C = np.arange(len(sizes_C))
    bounds = offsets_of(np.bincount(candidates_P, minlength=len(sizes_C))).tolist()
    groups_P = groups_P[np.argsort(candidates_P, kind="stable")]
    # each group has one slot per member; the first `kept_G` are filled with kept candidates
    first_G = offsets_of(np.bincount(groups_P))
    kept_G = np.zeros(len(first_G), dtype=np.int64)
    places_P = np.zeros(len(groups_P), dtype=np.int64)
    for candidate in range(len(sizes_C)):
        groups = groups_P[bounds[candidate] : bounds[candidate + 1]]
        # The kept candidates in this one's groups, so far.
        firsts, lasts = first_G[groups], first_G[groups] + kept_G[groups]
        if np.any(firsts < lasts):
            kept = zip(firsts.tolist(), lasts.tolist(), strict=True)
            # How many bands each shares with this candidate.
            rivals, bands = np.unique_counts(np.concatenate([places_P[a:b] for a, b in kept]))
            smaller = np.minimum(sizes_C[rivals], sizes_C[candidate])
            larger = np.maximum(sizes_C[rivals], sizes_C[candidate])
            possible = smaller >= threshold * larger  # the intersection is at most the smaller set
            rivals, bands = rivals[possible], bands[possible]
            if len(rivals) > MAX_COMPARISONS:
                rivals = rivals[np.argsort(-bands, kind="stable")[:MAX_COMPARISONS]]
            both = sets.in_common(candidate, rivals)
            # |A ∩ B| ≥ t |A ∪ B|, with |A ∪ B| = |A| + |B| - |A ∩ B|
            alike = rivals[both >= threshold * (sizes_C[candidate] + sizes_C[rivals] - both)]
            if len(alike):
                found_C[candidate] = alike.min()
                continue
        # Kept: it fills the next slot of each of its groups.
        places_P[lasts] = candidate
        kept_G[groups] += 1
    return found_C


@dataclass(frozen=True)
class DropList:
    """The digests of a drop list as ascending pairs of integers, (D, 2)."""

    digests_D2: UInt64s

    def holds(self, digests_D2: UInt64s) -> Mask:
        """Which of `digests_D2` are on the list."""
        if not len(self.digests_D2):
            return np.zeros(len(digests_D2), dtype=np.bool_)
        listed = _as_scalars(self.digests_D2)
        wanted = _as_scalars(digests_D2)
        place = np.minimum(np.searchsorted(listed, wanted), len(listed) - 1)
        found: Mask = listed[place] == wanted
        return found


@lru_cache(maxsize=2)
def read_drop_list(directory: str) -> DropList:
    """Read the drop list of an artifact directory; an empty one for an empty name."""
    if not directory:
        return DropList(np.zeros((0, 2), dtype=np.uint64))
    artifact = open_artifact(directory)
    names = [entry.name for entry in artifact.manifest.files if entry.name.endswith(".arrow")]
    found = [np.zeros((0, 2), dtype=np.uint64)]
    for path in map(artifact.path, names):
        with pa.memory_map(path) as file:
            table = pa.ipc.open_file(file).read_all()
            if COLUMN not in table.column_names or table.schema.field(COLUMN).type != pa.binary(16):
                raise IntegrityError(
                    f"{path}: no column {COLUMN} of 16 bytes; expected a drop list, set "
                    "cleaning.drop_list to the directory of one"
                )
            found.append(digest_halves(digest_bytes(table[COLUMN])))
    digests_D2 = np.concatenate(found)
    return DropList(digests_D2[np.lexsort((digests_D2[:, 1], digests_D2[:, 0]))])


def _as_scalars(digests_D2: UInt64s) -> npt.NDArray[np.void]:
    """Digests as scalars that NumPy compares in the same order."""
    # Big-endian bytes sort like the pairs of integers.
    rows = np.ascontiguousarray(digests_D2).astype(">u8").view("S16")
    return rows.ravel()
