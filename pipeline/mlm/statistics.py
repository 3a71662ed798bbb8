"""What is counted over examples: for the manifest, the report, and the fidelity tests.

In:  a record batch, and the masks in it.
Out: `Statistics`, which add up over batches and files and read back from a manifest.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import pyarrow as pa
from pydantic import JsonValue

from artifacts.arrays import Int64s
from artifacts.manifest import FileEntry
from pipeline.mlm.masking import Masks
from pipeline.mlm.pairing import IS_NEXT, NOT_ASKED, RANDOM_NEXT
from pipeline.shuffle.token_statistics import added_up

BINS = 11
"""Ten equal bins of lengths below the maximum, and one for the full length."""


@dataclass(frozen=True)
class Statistics:
    """Counts over examples of one split and length."""

    rows: int = 0
    """Examples."""
    tokens: int = 0
    """Tokens, special ones included."""
    masked: int = 0
    """Masked tokens: those that are predicted."""
    replaced_by_mask: int = 0
    """Of these: [MASK]."""
    replaced_by_random: int = 0
    """Of these: a random word-piece; the others were kept."""
    next_random: int = 0
    """Examples whose second segment is random (or swapped)."""
    not_asked: int = 0
    """Examples without second segment."""
    truncated: int = 0
    """Examples, or documents in them, that lost tokens to the maximal length."""
    cut_tokens: int = 0
    """Tokens lost."""
    lengths_next: list[int] = field(default_factory=lambda: [0] * BINS)
    """Length histogram of the examples whose second segment is the next one."""
    lengths_random: list[int] = field(default_factory=lambda: [0] * BINS)
    """The same where it is random (or swapped)."""
    lengths_single: list[int] = field(default_factory=lambda: [0] * BINS)
    """The same where there is none."""


def statistics_of(
    batch: pa.RecordBatch, cut_N: Int64s, masks: list[Masks], *, max_seq_length: int
) -> Statistics:
    """The counts over one batch of N examples; `cut_N`: tokens that truncation took away."""
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


def total(parts: Iterable[Statistics]) -> Statistics:
    """The counts over several batches or files."""
    return Statistics(**added_up([asdict(part) for part in (Statistics(), *parts)]))


def summaries(entries: Iterable[FileEntry]) -> dict[str, JsonValue]:
    """The counts in the entries of examples files, added up by split and length."""
    names = [one.name for one in fields(Statistics)]
    found: dict[str, dict[str, list[Statistics]]] = {}
    for entry in entries:
        counts = Statistics(**{name: entry.statistics[name] for name in names})
        lengths = found.setdefault(entry.statistics["split"], {})
        lengths.setdefault(str(entry.statistics["max_seq_length"]), []).append(counts)
    return {
        split: {length: summary(total(parts)) for length, parts in lengths.items()}
        for split, lengths in found.items()
    }


def summary(counts: Statistics) -> dict[str, JsonValue]:
    """The counts, and the shares that follow from them."""
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
