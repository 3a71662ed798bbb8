"""Counts over tokenised documents, for the manifest and the report.

In:  rows of a tokens file.
Out: sums that can be added: of a bucket, of a split.

Histograms have one bin for each power of two: bin k counts lengths of at least 2**k and less than
2**(k + 1).
"""

from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.manifest import FileEntry

HISTOGRAM_BINS = 32


def _empty_histogram() -> list[int]:
    return [0] * HISTOGRAM_BINS


@dataclass(frozen=True)
class Statistics:
    """Sums over documents; each counts once, whatever its source's weight."""

    documents: int = 0
    sentences: int = 0
    tokens: int = 0
    unknown_tokens: int = 0
    text_bytes: int = 0
    """Of the cleaned text."""
    weighted_tokens: int = 0
    """Tokens, each document counted as often as its source's weight says."""
    document_lengths: list[int] = field(default_factory=_empty_histogram)
    """Documents by their number of tokens."""
    sentence_lengths: list[int] = field(default_factory=_empty_histogram)
    """Sentences by their number of tokens."""

    def __add__(self, other: "Statistics") -> "Statistics":
        return Statistics(
            **{
                item.name: _added(getattr(self, item.name), getattr(other, item.name))
                for item in fields(self)
            }
        )


def statistics_of(
    table: pa.Table, *, text_bytes: int, token_counts: npt.NDArray[np.int64], unk_id: int
) -> Statistics:
    """The counts of one tokens table, whose ids are counted in `token_counts` already."""
    lengths = _list_lengths(table["token_ids"])
    sentences = table["sentence_lengths"].combine_chunks().flatten().to_numpy()
    copies = table["copies"].to_numpy().astype(np.int64)
    return Statistics(
        documents=len(table),
        sentences=len(sentences),
        tokens=int(lengths.sum()),
        unknown_tokens=int(token_counts[unk_id]),
        text_bytes=text_bytes,
        weighted_tokens=int((lengths * copies).sum()),
        document_lengths=_histogram(lengths),
        sentence_lengths=_histogram(sentences),
    )


def statistics_of_entry(entry: FileEntry) -> Statistics:
    """The counts in a tokens file's manifest entry."""
    return Statistics(**{item.name: entry.statistics[item.name] for item in fields(Statistics)})


def summary(statistics: Statistics) -> dict[str, Any]:
    """The counts with what follows from them."""
    counts = {item.name: getattr(statistics, item.name) for item in fields(statistics)}
    tokens = max(statistics.tokens, 1)
    return {**counts, "unknown_share": statistics.unknown_tokens / tokens}


def _histogram(lengths: npt.NDArray[Any]) -> list[int]:
    bins = np.frexp(np.maximum(lengths, 1).astype(np.float64))[1] - 1
    return [int(count) for count in np.bincount(bins, minlength=HISTOGRAM_BINS)]


def _list_lengths(column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
    chunks = [np.diff(chunk.offsets.to_numpy()).astype(np.int64) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *chunks])


def _added(left: Any, right: Any) -> Any:
    if isinstance(left, list):
        return [a + b for a, b in zip(left, right, strict=True)]
    return left + right
