"""Lines that recur in many documents of a source: headers, footers, notices, menus.

In:  cleaned documents, one paragraph per line; later, the list that the stage `boilerplate` makes:
     an artifact with `lines.arrow`.
Out: a key for each line, by which equal ones are counted; the documents without the listed lines.

The rule. Two lines are equal if their bytes are, except for case and, if the source says so,
digits. A line of at least `min_words` words with letters is compared by itself. A shorter one
("Yes.", "References") is compared as part of its run of short lines: together with those that
follow it, up to `min_words` words, or, near the end of the run, with those before it. A run with
fewer words is always kept, and so is what has no letters, such as a row of numbers. A line recurs
if it is in at least `min_documents` distinct documents of its source. All but `kept_documents` of
these lose it. Which ones keep it is decided by the digests of the documents, before anything is
removed, so neither the order of files nor their division into shards matters.
"""

import hashlib
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeVar

import numpy as np
import pyarrow as pa

from cloze.artifacts.arrays import Int64s, Mask, Offsets, UInt64s, offsets_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import open_artifact
from cloze.artifacts.tables import LINES_NAME
from cloze.pipeline.config.settings import (
    BoilerplateConfig,
    BoilerplateStage,
    DedupStage,
    PairsStage,
    TokensStage,
    VocabularyStage,
)
from cloze.pipeline.readers.documents import DocumentBlock
from cloze.pipeline.text.cleaning import LINE_FEED
from cloze.pipeline.text.duplicates import range_hashes
from cloze.pipeline.text.filters import TextMeasures
from cloze.pipeline.text.line_rules import without_lines
from cloze.pipeline.text.scripts import lower_bytes

ROLE = "boilerplate"
"""The role of a list of lines among a stage's inputs."""

ALWAYS_KEPT = 0
"""The key of lines that no list can name."""

LAST_RANK = (1 << 64) - 2
"""One less than the largest, which stands for no document."""

Stage = TypeVar("Stage", DedupStage, VocabularyStage, TokensStage, PairsStage)

# D documents, L lines; N short lines, R runs of these; K listed lines


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
    compared, places = lower_bytes(block.text), offsets_of(np.diff(ends_L, prepend=0))
    if config.ignore_digits:
        # Without digits, "Page 3 of 12" and "Page 4 of 12" are one line. Places in the text become
        # places in what is left of it: the number of other bytes before them.
        other = (compared < ord("0")) | (compared > ord("9"))
        compared, places = compared[other], offsets_of(other.astype(np.int64))[places]
    # no hash is 0, which means something else
    keys_L = np.maximum(range_hashes(compared, places[firsts_L], places[lasts_L + 1]), 1)
    keys_L[lasts_L < firsts_L] = ALWAYS_KEPT
    return Lines(keys_L, _ranks(block)[documents_L], ends_L, firsts_L, lasts_L)


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


@dataclass(frozen=True)
class LineList:
    """The recurring lines of one source, by ascending key.

    keys_K:          their keys.
    first_removed_K: the smallest rank of a document that loses the line.
    """

    keys_K: UInt64s
    first_removed_K: UInt64s

    def removes(self, lines: Lines) -> Mask:
        """(L,) bool: which lines are removed."""
        if not len(self.keys_K):
            return np.zeros(len(lines.keys_L), dtype=np.bool_)
        # Where a key would be in the list; equality tells whether it is. A key behind the last one
        # is compared with the last.
        place_L = np.minimum(np.searchsorted(self.keys_K, lines.keys_L), len(self.keys_K) - 1)
        listed_L: Mask = self.keys_K[place_L] == lines.keys_L
        return listed_L & (lines.ranks_L >= self.first_removed_K[place_L])


def without_boilerplate(
    block: DocumentBlock, listed: LineList, config: BoilerplateConfig
) -> DocumentBlock:
    """The same documents without listed lines; some may become empty."""
    lines = find_lines(block, config)
    removed_L = listed.removes(lines)
    if not removed_L.any():
        return block
    return without_lines(block, lines.ends_L, removed_L)


def with_line_list(stage: Stage, table: StageTable) -> Stage:
    """The stage with the list of lines made by this run, if there is one."""
    if ROLE not in table.inputs or not table.inputs[ROLE].path:
        return stage
    cleaning = stage.cleaning.model_copy(update={"boilerplate": table.input_path(ROLE)})
    return stage.model_copy(update={"cleaning": cleaning})


@lru_cache(maxsize=8)
def read_line_list(directory: str, source: int, config: BoilerplateConfig) -> LineList:
    """The lines of one source on the list of an artifact directory.

    Raises `UsageError` if they were found with other settings: their keys would match nothing.
    """
    artifact = open_artifact(directory)
    if artifact.manifest.stage != BoilerplateStage.stage:
        raise UsageError(
            f"{directory}: made by the stage {artifact.manifest.stage}, expected boilerplate; set "
            "cleaning.boilerplate to the directory of one, or leave it empty"
        )
    sources = artifact.manifest.config["corpus"]["sources"]
    theirs = sources[source]["boilerplate"] if source < len(sources) else None
    if theirs != config.model_dump(mode="json"):
        raise UsageError(
            f"{directory}: its lines of corpus.sources.{source} were found with boilerplate = "
            f"{theirs}, but the source has {config.model_dump(mode='json')}; make them agree, or "
            "leave cleaning.boilerplate empty"
        )
    path = artifact.path(LINES_NAME)
    with pa.memory_map(path) as file:
        table = pa.ipc.open_file(file).read_all()
        of_source = slice(*np.searchsorted(table["source"].to_numpy(), (source, source + 1)))
        columns = (table[name].to_numpy()[of_source] for name in ("key", "first_removed"))
        return LineList(*(column.copy() for column in columns))
