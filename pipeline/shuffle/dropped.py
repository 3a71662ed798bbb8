"""The list of dropped documents: a record next to the tokens.

In:  the documents dropped by each sorted run and each group of buckets.
Out: `dropped.arrow` with digest, source, path, position and reason of each; and a summary of a few
     lines, with an example and a remedy for each reason.

The list contains file names, so it is a record and not part of the artifact's content, which must
not depend on how files are named.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from artifacts.arrays import Int64s, offsets
from artifacts.manifest import FileEntry
from artifacts.store import put_file
from artifacts.tables import DROPPED_NAME, DROPPED_SCHEMA, TOKEN_DIGEST_BYTES
from pipeline.text.filters import RULES, Reason, Reasons

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

REMEDIES = {
    Reason.EMPTY: "nothing is left after cleaning",
    Reason.NOT_TEXT: "too many bytes are not UTF-8: convert them (iconv -f latin1 -t utf-8), or "
    "raise cleaning.max_replacement_share",
    Reason.BINARY_FILE: "the file is not text: convert it",
    Reason.BAD_FILE: 'unreadable parts of a file, as set by corpus.on_bad_file; with "fail" the '
    "stage stops and reports the error",
    Reason.NO_TOKENS: "the vocabulary has none of their characters: learn one from this corpus",
    Reason.DROP_LIST: "they are on the drop list (cleaning.drop_list, or stage dedup)",
    Reason.DUPLICATE: "the same text came earlier",
    Reason.HELD_OUT: "the same text is held out",
}
"""Cause and remedy by reason; the other reasons have settings (`filters.RULES`)."""


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

    def __add__(self, other: "DocumentCounts") -> "DocumentCounts":
        dropped = Counter(self.dropped) + Counter(other.dropped)
        return DocumentCounts(
            self.documents + other.documents,
            self.damaged + other.damaged,
            self.converted + other.converted,
            dict(dropped),
        )


class Dropped(NamedTuple):
    """The documents dropped for one reason."""

    documents: int
    example: str
    """The first of them: file and position."""


_REASONS = pa.array([reason.name.lower() for reason in Reason])


def dropped_rows(documents: pa.Table, which: Int64s, reasons: Reasons) -> pa.Table:
    """The rows `which` of `documents` as an intermediate list."""
    names = [name for name in ROWS_SCHEMA.names if name != "reason"]
    rows = documents.select(names).take(pa.array(which))
    return rows.append_column("reason", pa.array(reasons)).cast(ROWS_SCHEMA)


def put_dropped(
    lists: Iterable[str], files: Sequence[Sequence[str]], *, output: str, scratch: str
) -> tuple[FileEntry, dict[str, Dropped]]:
    """Merge the intermediate lists into one file; returns its entry, and the counts by reason.

    `files` are the paths of each source's files, to which the lists refer by number.
    """
    counts: Counter[str] = Counter()
    examples: dict[str, str] = {}
    local = os.path.join(scratch, DROPPED_NAME)
    with pa.OSFile(local, "wb") as sink, pa.ipc.new_file(sink, DROPPED_SCHEMA) as writer:
        for listed in _with_names(lists, files):
            writer.write_batch(listed)
            reasons = listed["reason"].to_pylist()
            counts.update(reasons)
            for reason in set(reasons) - examples.keys():
                first = reasons.index(reason)
                examples[reason] = f"{listed['path'][first]} at {listed['position'][first]}"
    dropped = {reason: Dropped(counts[reason], examples[reason]) for reason in sorted(counts)}
    return put_file(output, local, name=DROPPED_NAME, rows=counts.total()), dropped


def account(read: DocumentCounts, kept: dict[str, int], dropped: dict[str, Dropped]) -> list[str]:
    """A summary of the documents read: `kept` by split, `dropped` by reason."""
    splits = ", ".join(f"{count:,} {split}" for split, count in kept.items())
    lines = [f"{read.documents:,} documents read, {sum(kept.values()):,} kept: {splits}"]
    settings = {reason: f"cleaning.{setting}" for reason, setting, _ in RULES}
    for name, (count, example) in sorted(dropped.items(), key=lambda item: -item[1].documents):
        reason = Reason[name.upper()]
        why = REMEDIES.get(reason) or f"by {settings[reason]}"
        lines.append(f"{count:,} dropped as {name}, {why}; for example {example}")
    if read.converted:
        lines.append(
            f"{read.converted:,} from files in another encoding than UTF-8, detected from their "
            "bytes; if cloze inspect shows wrong characters, convert the files (iconv)"
        )
    if read.damaged:
        lines.append(
            f"{read.damaged:,} with bytes that are not UTF-8; in kept documents they are replaced "
            "by U+FFFD"
        )
    return lines


def _with_names(lists: Iterable[str], files: Sequence[Sequence[str]]) -> Iterator[pa.RecordBatch]:
    """The rows of the intermediate lists, with paths and reasons by name."""
    paths = pa.array([path for of_source in files for path in of_source], pa.string())
    first = offsets(np.array([len(of_source) for of_source in files]))
    for path in lists:
        with pa.memory_map(path) as file:
            for batch in filter(len, pa.ipc.open_file(file).read_all().to_batches()):
                numbers = first[batch["source"].to_numpy()] + batch["file"].to_numpy()
                columns = [
                    batch["document_digest"],
                    batch["source"],
                    paths.take(pa.array(numbers)),
                    batch["position"],
                    _REASONS.take(batch["reason"]),
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=DROPPED_SCHEMA)
