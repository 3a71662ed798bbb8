"""Sorted runs: tokenised documents, sorted by digest, each text once.

In:  a table of tokenised documents; later, the rows of a bucket from all runs.
Out: the table sorted by digest and deduplicated, with the documents dropped so far and counts; the
     distinct documents of a bucket, and the others.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cloze.artifacts.arrays import Int64s, digest_bytes, digest_halves, is_first_of_equals
from cloze.artifacts.tables import TOKEN_DIGEST_BYTES
from cloze.pipeline.text.duplicates import read_drop_list
from cloze.pipeline.text.filters import Reason, Reasons
from cloze.pipeline.text.texts import EDITS
from cloze.pipeline.tokenizer.tokenized_documents import IDENTITY, PASSING

ROWS_SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
        pa.field("source", pa.uint16()),
        pa.field("file", pa.uint32()),
        pa.field("position", pa.int64()),
        pa.field("reason", pa.uint8()),
    ]
)
"""Schema of the intermediate lists, which refer to files and reasons by number."""


@dataclass(frozen=True)
class DocumentCounts:
    """Counts of documents read, which can be added up."""

    documents: int = 0
    damaged: int = 0
    """Documents with bytes that are not UTF-8, kept or not."""
    converted: int = 0
    """Documents from files detected to be in another encoding."""
    dropped: dict[str, int] = field(default_factory=dict)
    """Documents dropped so far, by reason."""
    by_source: dict[str, int] = field(default_factory=dict)
    """Documents by the number of their source."""
    edits: dict[str, int] = field(default_factory=dict)
    """Lines removed and data masked in all documents, by `EDITS`."""

    def __add__(self, other: "DocumentCounts") -> "DocumentCounts":
        return DocumentCounts(
            self.documents + other.documents,
            self.damaged + other.damaged,
            self.converted + other.converted,
            *(
                dict(Counter(ours) + Counter(theirs))
                for ours, theirs in (
                    (self.dropped, other.dropped),
                    (self.by_source, other.by_source),
                    (self.edits, other.edits),
                )
            ),
        )


@dataclass(frozen=True)
class SortedRun:
    """Documents sorted by digest and deduplicated within each split; and those dropped."""

    by_split: tuple[pa.Table, ...]
    """The kept rows of each split, without the `PASSING` columns."""
    dropped: pa.Table
    """Rows of `ROWS_SCHEMA`."""
    counts: DocumentCounts
    """Counts over all documents of the run."""


def dropped_rows(documents: pa.Table, which: Int64s, reasons: Reasons) -> pa.Table:
    """The rows `which` of `documents` as an intermediate list."""
    names = [name for name in ROWS_SCHEMA.names if name != "reason"]
    rows = documents.select(names).take(pa.array(which))
    return rows.append_column("reason", pa.array(reasons)).cast(ROWS_SCHEMA)


def sort_run(documents: pa.Table, *, splits: int) -> SortedRun:
    """Sort and deduplicate tokenised documents."""
    documents = documents.combine_chunks()
    digests_D2 = digest_halves(digest_bytes(documents["document_digest"]))
    splits_D = documents["split"].to_numpy()
    names = [documents[name].to_numpy() for name in ("position", "file", "source")]
    # np.lexsort sorts by its last key first: by digest, then split, then the document's place.
    order = np.lexsort((*names, splits_D, digests_D2[:, 1], digests_D2[:, 0]))
    reasons_D = documents["reason"].to_numpy().copy()
    # Equal texts are dropped for equal reasons, so either the first is kept or none.
    equal = ~is_first_of_equals(digests_D2[order])
    # the same text in different splits is left to `deduplicate`
    equal[1:] &= splits_D[order[1:]] == splits_D[order[:-1]]
    repeated = order[equal]
    reasons_D[repeated[reasons_D[repeated] == Reason.KEPT]] = Reason.DUPLICATE
    kept = order[reasons_D[order] == Reason.KEPT]
    lost = order[reasons_D[order] != Reason.KEPT]
    rows = documents.drop_columns(list(PASSING))
    by_split = tuple(rows.take(pa.array(kept[splits_D[kept] == split])) for split in range(splits))
    counts = Counter(Reason(reason).name.lower() for reason in reasons_D[lost].tolist())
    damaged, converted = (pc.sum(documents[name]).as_py() or 0 for name in ("damaged", "converted"))
    sources, times = np.unique(documents["source"].to_numpy(), return_counts=True)
    edits_DE = documents["edits"].combine_chunks().flatten().to_numpy().reshape(-1, len(EDITS))
    totals_E = edits_DE.sum(axis=0, dtype=np.int64).tolist()
    return SortedRun(
        by_split,
        dropped_rows(documents, lost, reasons_D[lost]),
        DocumentCounts(
            *(len(documents), damaged, converted, dict(counts)),
            by_source=dict(zip(map(str, sources.tolist()), times.tolist(), strict=True)),
            edits={name: count for name, count in zip(EDITS, totals_E, strict=True) if count},
        ),
    )


def deduplicate(
    own: pa.Table, stronger: Sequence[pa.Table], *, drop_list: str
) -> tuple[pa.Table, pa.Table]:
    """A bucket's documents sorted by digest, each once; and the dropped ones.

    own: the bucket's rows, in any order. stronger: for each split that takes precedence over this
    one, strongest first, the identities of the rows in the same range of digests. drop_list: the
    directory of a drop list, or empty.
    """
    # The strongest split first; among equals, the smallest place.
    identity = pa.concat_tables([*stronger, own.select(IDENTITY)]).combine_chunks()
    strength = np.repeat(np.arange(len(stronger) + 1), [*map(len, stronger), len(own)])
    digests_D2 = digest_halves(digest_bytes(identity["document_digest"]))
    names = [identity[name].to_numpy() for name in ("position", "file", "source")]
    order = np.lexsort((*names, strength, digests_D2[:, 1], digests_D2[:, 0]))
    # the first of equal documents wins
    first = is_first_of_equals(digests_D2[order])
    # For each row, the first row with the same digest.
    winners = order[np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))]
    # Later assignments take precedence: a document whose winner is in a stronger split is held out
    # there, not merely a duplicate.
    reasons = np.full(len(order), Reason.KEPT, dtype=np.uint8)
    reasons[read_drop_list(drop_list).holds(digests_D2[order])] = Reason.DROP_LIST
    reasons[winners != order] = Reason.DUPLICATE
    reasons[strength[winners] < strength[order]] = Reason.HELD_OUT
    ours = strength[order] == len(stronger)
    # Back to rows of `own`, which come last in the concatenation.
    kept: Int64s = order[ours & (reasons == Reason.KEPT)] - (len(identity) - len(own))
    lost = ours & (reasons != Reason.KEPT)
    return own.take(pa.array(kept)), dropped_rows(identity, order[lost], reasons[lost])
