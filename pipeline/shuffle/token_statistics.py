"""Counts over tokenised documents, for the manifest and the report.

In:  a tokens table.
Out: counts that can be added up over buckets and splits.

Histograms have one bin per power of two: bin k counts lengths from 2**k to 2**(k + 1) - 1.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from typing import Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import JsonValue

from artifacts.arrays import list_lengths, list_values
from artifacts.manifest import FileEntry

HISTOGRAM_BINS = 32


@dataclass(frozen=True)
class Counts:
    """Counts and histograms that can be added up."""

    def __add__(self, other: Self) -> Self:
        return type(self)(
            **{
                name: [sum(bins) for bins in zip(mine, getattr(other, name), strict=True)]
                if isinstance(mine, list)
                else mine + getattr(other, name)
                for name, mine in vars(self).items()
            }
        )

    @classmethod
    def read(cls, entry: FileEntry) -> Self:
        """The counts of one file."""
        return cls(**{item.name: entry.statistics[item.name] for item in fields(cls)})


@dataclass(frozen=True)
class TokenStatistics(Counts):
    """Sums over documents, each counted once whatever its source's weight."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    text_bytes: int = 0
    """Bytes of cleaned text."""
    weighted_tokens: int = 0
    """Tokens, with each document weighted by its source."""
    document_lengths: list[int] = field(default_factory=lambda: [0] * HISTOGRAM_BINS)
    """Documents by their number of tokens."""
    sentence_lengths: list[int] = field(default_factory=lambda: [0] * HISTOGRAM_BINS)
    """Sentences by their number of tokens."""


def statistics_of(table: pa.Table, *, text_bytes: int, unknown_tokens: int) -> TokenStatistics:
    """The counts over one tokens table."""
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
    """The counts of several tokens files, added up, and the share of [UNK]."""
    total = sum(map(TokenStatistics.read, entries), TokenStatistics())
    return {**asdict(total), "unknown_share": total.unknown_tokens / max(total.tokens, 1)}


def _histogram(lengths: npt.NDArray[np.integer]) -> list[int]:
    bins = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
    return [int(count) for count in np.bincount(bins, minlength=HISTOGRAM_BINS)]
