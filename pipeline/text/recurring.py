"""Boilerplate: lines that recur in many documents of a source, and spans that came earlier in it.

In:  cleaned documents, one paragraph per line; later, the lists that the stage `boilerplate` makes:
     an artifact with `lines.arrow` and, if spans are to go, `repeats.arrow`.
Out: a key for each line or span, by which equal ones are counted; the documents without the listed
     ones.

The rule for lines: headers, footers, notices, menus. Two lines are equal if their bytes are, except
for case and, if the source says so, digits. A line of at least `min_words` words with letters is
compared by itself. A shorter one ("Yes.", "References") is compared as part of its run of short
lines: together with those that follow it, up to `min_words` words, or, near the end of the run,
with those before it. A run with fewer words is always kept, and so is what has no letters, such as
a row of numbers. A line recurs if it is in at least `min_documents` distinct documents of its
source. All but `kept_documents` of these lose it. Which ones keep it is decided by the digests of
the documents, before anything is removed, so neither the order of files nor their division into
shards matters.

The rule for spans. A span is so many `sentences` in a row, equal as lines are and with `min_words`
words with letters for each of them; or so many `tokens` in a row, words and marks that are exactly
equal. Both are looked for in what is left without recurring lines, and across paragraphs. Documents
are ordered by their digests too: a span stays where it comes first in the first document that has
it, and goes everywhere else, but for marks right behind a word that stays. What goes leaves the end
of a paragraph. Of each sentence or token that goes, an equal one came earlier in this order, so
each stays somewhere.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from cloze.artifacts.arrays import Bytes, Int64s, Mask, Offsets, UInt64s, offsets_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.rng import scramble
from cloze.artifacts.store import open_artifact
from cloze.artifacts.tables import LINES_NAME, REPEATS_NAME, SPAN_KINDS
from cloze.pipeline.config.settings import (
    BoilerplateConfig,
    BoilerplateStage,
)
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import LINE_FEED, SPACE, clean
from cloze.pipeline.text.duplicates import range_hashes, token_windows
from cloze.pipeline.text.filters import TextMeasures
from cloze.pipeline.text.line_rules import without_lines
from cloze.pipeline.text.scripts import lower_bytes
from cloze.pipeline.text.sentences import split_sentences

ALWAYS_KEPT = 0
"""The key of lines that no list can name."""

LAST_RANK = (1 << 64) - 2
"""One less than the largest number, which stands for no document."""


SENTENCES, TOKENS = SPAN_KINDS

LARGEST_SIEVE = 1 << 24
"""Bytes of the table that tells whether a key may be listed."""

MOST_MARKS = 8
"""Marks behind a word that stay with it, as in `."')`."""

_IS_MARK = np.zeros(256, dtype=np.bool_)
_IS_MARK[[byte for byte in range(SPACE + 1, 0x80) if not chr(byte).isalnum()]] = True

# D documents, L lines; N short lines, R runs of these; P spans, S sentences; K listed keys


@dataclass(frozen=True)
class Lines:
    """The L lines of a block of documents.

    keys_L:            equal for equal lines; `ALWAYS_KEPT` for some.
    ranks_L:           the rank of each line's document.
    ends_L:            the end of each line in the text.
    firsts_L, lasts_L: the lines with which it is compared: itself, or some of its run.
    """

    keys_L: UInt64s
    ranks_L: UInt64s
    ends_L: Offsets
    firsts_L: Int64s
    lasts_L: Int64s

    @property
    def starts_L(self) -> Offsets:
        """Where each line begins."""
        return np.concatenate(([0], self.ends_L[:-1]))[: len(self.ends_L)]


def find_lines(block: DocumentBlock, config: BoilerplateConfig) -> Lines:
    """The lines of a block of cleaned documents, with their keys."""
    ends_L = np.flatnonzero(block.text == LINE_FEED) + 1
    # Empty documents end where the one before them does: a line is of the first that ends there.
    documents_L = np.searchsorted(block.ends, ends_L)
    words_L = TextMeasures(DocumentBlock(block.text, ends_L, ends_L)).words_with_letters
    firsts_L, lasts_L = _compared(words_L, documents_L, min_words=config.min_words)
    places = offsets_of(np.diff(ends_L, prepend=0))
    compared, places = _compared_bytes(block.text, places, config)
    # no hash is 0, which means something else
    keys_L = np.maximum(range_hashes(compared, places[firsts_L], places[lasts_L + 1]), 1)
    keys_L[lasts_L < firsts_L] = ALWAYS_KEPT
    return Lines(keys_L, _ranks(block)[documents_L], ends_L, firsts_L, lasts_L)


def _compared_bytes(
    text: Bytes, places: Offsets, config: BoilerplateConfig
) -> tuple[Bytes, Offsets]:
    """The bytes by which lines and sentences are compared, and where some places are in them."""
    compared = lower_bytes(text)
    if not config.ignore_digits:
        return compared, places
    # Without digits, "Page 3 of 12" and "Page 4 of 12" are one line. Places in the text become
    # places in what is left of it: the number of other bytes before them.
    other = (compared < ord("0")) | (compared > ord("9"))
    return compared[other], offsets_of(other.astype(np.int64))[places]


def _compared(words_L: Int64s, documents_L: Int64s, *, min_words: int) -> tuple[Int64s, Int64s]:
    """The first and the last of the lines with which each is compared; last < first: kept."""
    # Each line is compared by a range of lines, itself at first. A short line gets the shortest
    # range that begins with it and has enough words; where its run ends before, the shortest one
    # that ends with the run. So two runs that differ somewhere share no range that covers the
    # difference.
    firsts_L = np.arange(len(words_L))
    lasts_L = firsts_L.copy()
    short_N = np.flatnonzero(words_L < min_words)
    if not len(short_N):
        return firsts_L, lasts_L
    # A run ends before a long line and at the end of its document.
    begins_N = np.diff(short_N, prepend=-2) != 1
    begins_N |= np.diff(documents_L[short_N], prepend=-1) != 0
    run_N = np.cumsum(begins_N) - 1
    start_N = short_N[begins_N][run_N]
    end_N = short_N[np.append(begins_N[1:], True)][run_N]
    before_L1 = offsets_of(words_L)
    # the line with which there are enough words from this one on
    enough_N = np.searchsorted(before_L1, before_L1[short_N] + min_words) - 1
    # the last line from which on there are enough words up to the end of the run
    back_N = np.searchsorted(before_L1, before_L1[end_N + 1] - min_words, side="right") - 1
    is_inside_N = enough_N <= end_N
    firsts_L[short_N] = np.where(is_inside_N, short_N, back_N)
    lasts_L[short_N] = np.where(is_inside_N, enough_N, end_N)
    # The run as a whole has too few words: last < first marks them.
    few = short_N[~is_inside_N & (back_N < start_N)]
    firsts_L[few], lasts_L[few] = few, few - 1
    return firsts_L, lasts_L


def _ranks(block: DocumentBlock) -> UInt64s:
    """The rank of each document: the beginning of a digest of its text."""
    view = memoryview(np.ascontiguousarray(block.text))  # type: ignore[arg-type]  # a buffer
    digests, start = bytearray(), 0
    for end in block.ends.tolist():
        digests += hashlib.blake2b(view[start:end], digest_size=8).digest()
        start = end
    ranks_D = np.frombuffer(digests, dtype=">u8").astype(np.uint64)
    return np.minimum(ranks_D, np.uint64(LAST_RANK))


class Spans(NamedTuple):
    """The P spans of one kind in a block of documents, in text order.

    keys_P:            equal for equal spans.
    ranks_P:           the rank of each one's document.
    documents_P:       its document, ascending.
    starts_P, stops_P: where it begins and ends in the text.
    """

    keys_P: UInt64s
    ranks_P: UInt64s
    documents_P: Offsets
    starts_P: Offsets
    stops_P: Offsets


def find_spans(
    block: DocumentBlock, config: BoilerplateConfig, abbreviations: tuple[str, ...] | None
) -> dict[str, Spans]:
    """The spans of a block of cleaned documents, by kind.

    abbreviations: those by which sentences are told; None if every line is a sentence.
    """
    ranks_D = _ranks(block)
    found: dict[str, Spans] = {}
    if config.sentences:
        found[SENTENCES] = _sentence_spans(block, config, abbreviations, ranks_D)
    if config.tokens:
        windows = token_windows(block.text, block.ends, tokens=config.tokens)
        keys_P, documents_P, starts_P, stops_P = windows
        # Other hashes than those of sentences, as both kinds are on one list.
        keys_P = scramble(keys_P + np.uint64(1))
        found[TOKENS] = Spans(keys_P, ranks_D[documents_P], documents_P, starts_P, stops_P)
    return found


def _sentence_spans(
    block: DocumentBlock,
    config: BoilerplateConfig,
    abbreviations: tuple[str, ...] | None,
    ranks_D: UInt64s,
) -> Spans:
    text, ends, glued = block.text, block.ends, np.zeros(0, dtype=np.int64)
    if abbreviations is not None:
        text, ends, glued = split_sentences(text, ends, abbreviations)
    ends_S = np.flatnonzero(text == LINE_FEED) + 1
    starts_S, stops_S = np.concatenate(([0], ends_S[:-1]))[: len(ends_S)], ends_S - 1
    documents_S = np.searchsorted(ends, ends_S)
    words_S = TextMeasures(DocumentBlock(text, ends_S, ends_S)).words_with_letters
    # Spans that end in the document in which they begin, and have enough words.
    count = max(len(ends_S) - config.sentences + 1, 0)
    firsts, lasts = np.arange(count), np.arange(count) + config.sentences - 1
    before_S1 = offsets_of(words_S)
    wanted = before_S1[lasts + 1] - before_S1[firsts] >= config.sentences * config.min_words
    wanted &= documents_S[firsts] == documents_S[lasts]
    firsts, lasts = firsts[wanted], lasts[wanted]
    places = np.concatenate((starts_S[firsts], stops_S[lasts]))
    compared, at = _compared_bytes(text, places, config)
    keys_P = range_hashes(compared, *np.split(at, 2))
    # Line feeds between sentences without a space are not in the text of the block.
    starts_P, stops_P = np.split(places - np.searchsorted(glued, places), 2)
    documents_P = documents_S[firsts]
    return Spans(keys_P, ranks_D[documents_P], documents_P, starts_P, stops_P)


@dataclass(frozen=True)
class RecurringKeys:
    """The recurring lines or spans of one source, by ascending key.

    keys_K:          their keys.
    first_removed_K: the smallest rank of a document that loses the line or span.
    """

    keys_K: UInt64s
    first_removed_K: UInt64s

    def removes(self, keys_N: UInt64s, ranks_N: UInt64s) -> Mask:
        """(N,) bool: which of N lines or spans of documents of these ranks are removed."""
        removed_N = np.zeros(len(keys_N), dtype=np.bool_)
        if not len(self.keys_K):
            return removed_N
        # Hardly any is listed, and a sieve tells that of most faster than a binary search.
        some = np.flatnonzero(self._sieve[keys_N & np.uint64(len(self._sieve) - 1)])
        keys, ranks = keys_N[some], ranks_N[some]
        # Where a key would be in the list; equality tells whether it is. A key behind the last one
        # is compared with the last.
        place = np.minimum(np.searchsorted(self.keys_K, keys), len(self.keys_K) - 1)
        removed_N[some] = (self.keys_K[place] == keys) & (ranks >= self.first_removed_K[place])
        return removed_N

    @cached_property
    def _sieve(self) -> Mask:
        """Whether a key with these last bits is on the list."""
        size = min(1 << (16 * len(self.keys_K)).bit_length(), LARGEST_SIEVE)
        sieve = np.zeros(size, dtype=np.bool_)
        sieve[self.keys_K & np.uint64(size - 1)] = True
        return sieve


NO_KEYS = RecurringKeys(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.uint64))


class Boilerplate(NamedTuple):
    """What is removed from the documents of one source."""

    lines: RecurringKeys
    spans: RecurringKeys
    config: BoilerplateConfig
    """The settings with which it was found."""
    abbreviations: tuple[str, ...] | None
    """Those by which its sentences are told; None if every line is a sentence."""


def without_boilerplate(block: DocumentBlock, listed: Boilerplate) -> DocumentBlock:
    """The same documents without listed lines and spans; some may become empty."""
    block = without_recurring_lines(block, listed)
    if not listed.config.spans:
        return block
    marked = list(repeated_bytes(block, listed).values())
    gone = np.logical_or.reduce(marked)
    return _without_spans(block, gone) if gone.any() else block


def without_recurring_lines(block: DocumentBlock, listed: Boilerplate) -> DocumentBlock:
    """The same documents without listed lines alone."""
    if not listed.config.lines:
        return block
    lines = find_lines(block, listed.config)
    removed_L = listed.lines.removes(lines.keys_L, lines.ranks_L)
    return without_lines(block, lines.ends_L, removed_L) if removed_L.any() else block


def repeated_bytes(block: DocumentBlock, listed: Boilerplate) -> dict[str, Mask]:
    """The bytes of spans that go, of a block without recurring lines, by kind.

    No byte is of two kinds: what is of several sentences is not also of tokens.
    """
    found: dict[str, Mask] = {}
    for kind, spans in find_spans(block, listed.config, listed.abbreviations).items():
        gone_P = listed.spans.removes(spans.keys_P, spans.ranks_P) | _came_earlier(spans)
        found[kind] = _covered(block, spans.starts_P[gone_P], spans.stops_P[gone_P])
    if TOKENS in found:
        of_sentences = found.get(SENTENCES, np.zeros(len(block.text), dtype=np.bool_))
        found[TOKENS] = _without_closing_marks(block, found[TOKENS] | of_sentences) & ~of_sentences
    return found


def _without_closing_marks(block: DocumentBlock, gone: Mask) -> Mask:
    """`gone` without the marks with which a range begins right behind a word that stays."""
    gone, text = gone.copy(), block.text
    at = np.flatnonzero(np.diff(gone, prepend=False) & gone)
    at = at[(at > 0) & (text[at - 1] > SPACE)]
    # No range reaches the end of the text, which is a line feed.
    for _ in range(MOST_MARKS):
        at = at[gone[at] & _IS_MARK[text[at]]]
        gone[at] = False
        at = at + 1
        spaces = at[text[at] <= SPACE]
        gone[spaces] = False
    return gone


def _came_earlier(spans: Spans) -> Mask:
    """(P,) bool: which spans came earlier in their own document."""
    mixed_P = scramble(spans.keys_P ^ scramble(spans.documents_P.astype(np.uint64)))
    ordered = np.sort(mixed_P)
    several = ordered[1:][ordered[1:] == ordered[:-1]]
    repeated_P = np.zeros(len(mixed_P), dtype=np.bool_)
    if not len(several):
        return repeated_P
    # Few recur, and only those are sorted with their places.
    place = np.minimum(np.searchsorted(several, mixed_P), len(several) - 1)
    some = np.flatnonzero(several[place] == mixed_P)
    order = np.argsort(mixed_P[some], kind="stable")
    is_first = np.diff(mixed_P[some][order], prepend=~mixed_P[some][order][:1]) != 0
    repeated_P[some[order[~is_first]]] = True
    return repeated_P


def _covered(block: DocumentBlock, starts: Offsets, stops: Offsets) -> Mask:
    """Which bytes are in one of these ranges, or between two that only white space parts."""
    text = block.text
    covered = np.zeros(len(text), dtype=np.bool_)
    if not len(starts):
        return covered
    edges = np.bincount(starts, minlength=len(text) + 1)
    edges -= np.bincount(stops, minlength=len(text) + 1)
    np.greater(np.cumsum(edges[:-1]), 0, out=covered)
    between = np.flatnonzero((text[1:-1] <= SPACE) & covered[:-2] & covered[2:]) + 1
    # the end of a document parts it from the next
    covered[np.setdiff1d(between, block.ends - 1)] = True
    return covered


def _without_spans(block: DocumentBlock, gone: Mask) -> DocumentBlock:
    """The same documents without the bytes that are `gone`, in whose place a paragraph ends."""
    text, gone = block.text.copy(), gone.copy()
    starts = np.flatnonzero(np.diff(gone, prepend=False) & gone)
    text[starts], gone[starts] = LINE_FEED, False
    ends = block.ends - offsets_of(gone.astype(np.int64))[block.ends]
    left = DocumentBlock(text[~gone], ends, block.positions)
    # white space around what is gone, and lines of nothing else
    cleaned, _ = clean(left, line_break="paragraph")
    return cleaned


@lru_cache(maxsize=8)
def read_boilerplate(
    directory: str,
    source: int,
    config: BoilerplateConfig,
    abbreviations: tuple[str, ...] | None,
) -> Boilerplate:
    """What an artifact directory lists for one source.

    Raises `UsageError` if they were found with other settings: their keys would match nothing.
    """
    artifact = open_artifact(directory)
    if artifact.manifest.stage != BoilerplateStage.stage:
        raise UsageError(
            f"{directory}: made by the stage {artifact.manifest.stage}, expected boilerplate; set "
            "cleaning.boilerplate to the directory of one, or leave it empty"
        )
    sources = artifact.manifest.config["corpus"]["sources"]
    # Keys are hashes of lines as these settings prepare them (digits left out, a least number of
    # words).
    theirs = sources[source]["boilerplate"] if source < len(sources) else None
    if theirs is None or BoilerplateConfig.model_validate(theirs) != config:
        raise UsageError(
            f"{directory}: its lines of corpus.sources.{source} were found with boilerplate = "
            f"{theirs}, but the source has {config.model_dump(mode='json')}; make them agree, or "
            "leave cleaning.boilerplate empty"
        )
    lines = keys_of_source(artifact.path(LINES_NAME), source)
    spans = keys_of_source(artifact.path(REPEATS_NAME), source) if config.spans else NO_KEYS
    return Boilerplate(lines, spans, config, abbreviations)


def keys_of_source(path: str, source: int) -> RecurringKeys:
    """The recurring keys of one source in a file; what is not read of it takes no memory."""
    with pa.memory_map(path) as file:
        table = pa.ipc.open_file(file).read_all()
    # Rows are sorted by source, and the file is mapped: the slice alone is read.
    first, last = np.searchsorted(table["source"].to_numpy(), (source, source + 1)).tolist()
    mine = table.slice(first, last - first)
    return RecurringKeys(mine["key"].to_numpy(), mine["first_removed"].to_numpy())
