"""Counts over tokenised documents, for the manifest and the report.

In:  rows of a tokens file.
Out: sums that can be added: of a bucket, of a split.

Histograms have one bin for each power of two: bin k counts lengths of at least 2**k and less than
2**(k + 1).
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import JsonValue

from artifacts.arrays import list_lengths, list_values
from artifacts.config import JsonObject
from artifacts.manifest import FileEntry

HISTOGRAM_BINS = 32


@dataclass(frozen=True)
class TokenStatistics:
    """Sums over documents; each counts once, whatever its source's weight."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    text_bytes: int = 0
    """Of the cleaned text."""
    weighted_tokens: int = 0
    """Tokens, each document counted as often as its source's weight says."""
    document_lengths: list[int] = field(default_factory=lambda: [0] * HISTOGRAM_BINS)
    """Documents by their number of tokens."""
    sentence_lengths: list[int] = field(default_factory=lambda: [0] * HISTOGRAM_BINS)
    """Sentences by their number of tokens."""


def statistics_of(table: pa.Table, *, text_bytes: int, unknown_tokens: int) -> TokenStatistics:
    """The counts of one tokens table."""
    lengths_D = list_lengths(table["token_ids"])
    lengths_S = list_values(table["sentence_lengths"])
    copies_D = table["copies"].to_numpy().astype(np.int64)
    return TokenStatistics(
        documents=len(table),
        sentences=len(lengths_S),
        tokens=int(lengths_D.sum()),
        unknown_tokens=unknown_tokens,
        text_bytes=text_bytes,
        weighted_tokens=int((lengths_D * copies_D).sum()),
        document_lengths=_histogram(lengths_D),
        sentence_lengths=_histogram(lengths_S),
    )


def summary(entries: Iterable[FileEntry]) -> dict[str, JsonValue]:
    """The counts in the entries of tokens files, added up, with what follows from them."""
    names = [item.name for item in fields(TokenStatistics)]
    found = [{name: entry.statistics[name] for name in names} for entry in entries]
    total = TokenStatistics(**added_up([asdict(TokenStatistics()), *found]))
    return {**asdict(total), "unknown_share": total.unknown_tokens / max(total.tokens, 1)}


def added_up(tables: list[JsonObject]) -> JsonObject:
    """Counts and histograms of the same names, added up."""
    return {
        name: [sum(bins) for bins in zip(*(table[name] for table in tables), strict=True)]
        if isinstance(value, list)
        else sum(table[name] for table in tables)
        for name, value in tables[0].items()
    }


def _histogram(lengths: npt.NDArray[np.integer]) -> list[int]:
    bins = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
    return [int(count) for count in np.bincount(bins, minlength=HISTOGRAM_BINS)]
