"""The list of dropped documents: a record beside the tokens.

In:  what every sorted run and every group of buckets has dropped.
Out: `dropped.arrow`: digest, source, path, position and reason of each, and counts by reason.

It names files and places, so it is a record and no part of the artifact's content, which must not
depend on what files are called.
"""

import os
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pyarrow as pa

from artifacts.arrays import Int64s
from artifacts.manifest import FileEntry
from artifacts.store import put_file
from artifacts.tables import DROPPED_NAME, DROPPED_SCHEMA, TOKEN_DIGEST_BYTES
from pipeline.readers.input_shards import InputShard
from pipeline.text.filters import Reason, Reasons

ROWS_SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
        pa.field("source", pa.uint16()),
        pa.field("file", pa.uint32()),
        pa.field("position", pa.int64()),
        pa.field("reason", pa.uint8()),
    ]
)
"""Of the lists on their way: files and reasons are numbers."""

_REASONS = pa.array([reason.name.lower() for reason in Reason])


def dropped_rows(documents: pa.Table, which: Int64s, reasons: Reasons) -> pa.Table:
    """Those of the documents as rows of a list on its way."""
    names = [name for name in ROWS_SCHEMA.names if name != "reason"]
    rows = documents.select(names).take(pa.array(which))
    return rows.append_column("reason", pa.array(reasons)).cast(ROWS_SCHEMA)


def put_dropped(
    paths: Iterable[str], *, shards: Iterable[InputShard], output: str, scratch: str
) -> tuple[FileEntry, dict[str, int]]:
    """Put the list of everything in the Arrow files at `paths`; returns it and counts by reason."""
    files: dict[int, dict[int, str]] = {}
    for shard in shards:
        files.setdefault(shard.source, {}).update(
            (piece.file, piece.path) for piece in shard.pieces
        )
    names = {
        source: pa.array([paths_of[number] for number in sorted(paths_of)], pa.string())
        for source, paths_of in files.items()
    }
    counts: Counter[str] = Counter()
    local = os.path.join(scratch, DROPPED_NAME)
    with pa.OSFile(local, "wb") as sink, pa.ipc.new_file(sink, DROPPED_SCHEMA) as writer:
        for path in paths:
            with pa.memory_map(path) as file:
                batches = pa.ipc.open_file(file).read_all().to_batches()
            for batch in batches:
                if len(batch):
                    listed = _with_names(batch, names)
                    writer.write_batch(listed)
                    counts.update(listed["reason"].to_pylist())
    rows = counts.total()
    return put_file(output, local, name=DROPPED_NAME, rows=rows), dict(sorted(counts.items()))


def _with_names(batch: pa.RecordBatch, names: dict[int, pa.Array]) -> pa.RecordBatch:
    """The rows with paths and reasons in words."""
    sources = batch["source"].to_numpy()
    paths = [
        names[source].take(batch["file"].filter(pa.array(sources == source)))
        for source in np.unique(sources)
    ]
    place = np.argsort(np.argsort(sources, kind="stable"), kind="stable")
    return pa.RecordBatch.from_arrays(
        [
            batch["document_digest"],
            batch["source"],
            pa.concat_arrays(paths).take(pa.array(place)),
            batch["position"],
            _REASONS.take(batch["reason"]),
        ],
        schema=DROPPED_SCHEMA,
    )
