"""Counts over examples: for the manifest, the report, and the fidelity tests.

In:  a record batch, and its masks.
Out: `Statistics`, which add up over batches and files and can be read back from a manifest.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from artifacts.arrays import Int64s
from artifacts.manifest import FileEntry
from pipeline.mlm.masking import Masks
from pipeline.mlm.pairing import IS_NEXT, NOT_ASKED, RANDOM_NEXT
from pipeline.shuffle.token_statistics import Counts

BINS = 11
"""Ten equal bins below the maximum length, and one for the maximum itself."""


@dataclass(frozen=True)
class Statistics(Counts):
    """Counts over examples of one split and length."""

    rows: int = 0
    """Examples."""
    tokens: int = 0
    """Tokens, including special ones."""
    masked: int = 0
    """Predicted tokens."""
    replaced_by_mask: int = 0
    """Of these, replaced by [MASK]."""
    replaced_by_random: int = 0
    """Of these, replaced by a random word-piece; the rest were kept."""
    next_random: int = 0
    """Examples whose second segment is random (or swapped)."""
    not_asked: int = 0
    """Examples without second segment."""
    truncated: int = 0
    """Examples, or documents packed in them, that were truncated."""
    cut_tokens: int = 0
    """Tokens lost to truncation."""
    lengths_next: list[int] = field(default_factory=lambda: [0] * BINS)
    """Length histogram of examples whose second segment is the next one."""
    lengths_random: list[int] = field(default_factory=lambda: [0] * BINS)
    """Length histogram of examples whose second segment is random (or swapped)."""
    lengths_single: list[int] = field(default_factory=lambda: [0] * BINS)
    """Length histogram of examples without second segment."""


def statistics_of(
    batch: pa.RecordBatch, cut_N: Int64s, masks: list[Masks], *, max_seq_length: int
) -> Statistics:
    """The counts over one batch of N examples; `cut_N` are tokens lost to truncation."""
    lengths_N = np.diff(batch.column("input_ids").offsets.to_numpy()).astype(np.int64)
    label_N = batch.column("next_sentence_label").to_numpy()
    bins_N = np.where(lengths_N == max_seq_length, BINS - 1, (lengths_N - 1) * 10 // max_seq_length)
    by_label = [
        np.bincount(bins_N[label_N == label], minlength=BINS).tolist()
        for label in (IS_NEXT, RANDOM_NEXT, NOT_ASKED)
    ]
    return Statistics(
        rows=batch.num_rows,
        tokens=int(lengths_N.sum()),
        masked=sum(len(part.positions_M) for part in masks),
        replaced_by_mask=sum(part.masked for part in masks),
        replaced_by_random=sum(part.random for part in masks),
        next_random=sum(by_label[1]),
        not_asked=sum(by_label[2]),
        truncated=int(np.count_nonzero(cut_N)),
        cut_tokens=int(cut_N.sum()),
        lengths_next=by_label[0],
        lengths_random=by_label[1],
        lengths_single=by_label[2],
    )


def summaries(entries: Iterable[FileEntry]) -> dict[str, JsonValue]:
    """The counts of several examples files, added up by split and length."""
    found: dict[str, dict[str, Statistics]] = {}
    for entry in entries:
        lengths = found.setdefault(entry.statistics["split"], {})
        length = str(entry.statistics["max_seq_length"])
        lengths[length] = lengths.get(length, Statistics()) + Statistics.read(entry)
    return {
        split: {length: summary(counts) for length, counts in lengths.items()}
        for split, lengths in found.items()
    }


def summary(counts: Statistics) -> dict[str, JsonValue]:
    """The counts, and shares derived from them."""
    asked = max(counts.rows - counts.not_asked, 1)
    random_share = counts.next_random / asked
    by_length = (max(pair) for pair in zip(counts.lengths_next, counts.lengths_random, strict=True))
    return {
        **asdict(counts),
        "kept": counts.masked - counts.replaced_by_mask - counts.replaced_by_random,
        "mean_length": round(counts.tokens / max(counts.rows, 1), 6),
        "next_random_share": round(random_share, 6),
        "majority_share": round(max(random_share, 1 - random_share), 6),
        "length_only_share": round(sum(by_length) / asked, 6),
    }
