"""The list of dropped documents: a record beside the tokens.

In:  what every run and every group of buckets has dropped.
Out: `dropped.arrow`: digest, source, path, position and reason of each, and counts by reason.

It names files and places, so it is a record and no part of the artifact's content, which must not
depend on what files are called.
"""

import os
from collections import Counter
from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa

from artifacts.manifest import FileEntry
from artifacts.store import put_file
from artifacts.tables import DROPPED_NAME, DROPPED_SCHEMA
from pipeline.shuffle.input_shards import Portion
from pipeline.text.filters import Reason

_REASONS = pa.array([reason.name.lower() for reason in Reason])


def put_dropped(
    paths: Iterable[str], *, work: Iterable[Portion], output: str, scratch: str
) -> tuple[FileEntry, dict[str, int]]:
    """Put the list of everything in the Arrow files at `paths`; returns it and counts by reason."""
    names = _file_names(work)
    counts: Counter[str] = Counter()
    rows = 0
    local = os.path.join(scratch, DROPPED_NAME)
    with pa.OSFile(local, "wb") as sink, pa.ipc.new_file(sink, DROPPED_SCHEMA) as writer:
        for batch in _batches(paths):
            listed = _listed(batch, names)
            writer.write_batch(listed)
            rows += len(listed)
            counts.update(listed["reason"].to_pylist())
    return put_file(output, local, name=DROPPED_NAME, rows=rows), dict(sorted(counts.items()))


def _file_names(work: Iterable[Portion]) -> dict[int, pa.Array]:
    """Paths of each source's files, by their numbers."""
    found: dict[int, dict[int, str]] = {}
    for portion in work:
        for piece in portion.pieces:
            found.setdefault(portion.source, {})[piece.file] = piece.piece.path
    return {
        source: pa.array([paths[number] for number in sorted(paths)], pa.string())
        for source, paths in found.items()
    }


def _batches(paths: Iterable[str]) -> Iterator[pa.RecordBatch]:
    for path in paths:
        with pa.memory_map(path) as file:
            yield from (
                batch for batch in pa.ipc.open_file(file).read_all().to_batches() if len(batch)
            )


def _listed(batch: pa.RecordBatch, names: dict[int, pa.Array]) -> pa.RecordBatch:
    sources = batch["source"].to_numpy()
    paths = pa.concat_arrays(
        [
            names[source].take(batch["file"].filter(pa.array(sources == source)))
            for source in np.unique(sources)
        ]
    )
    order = np.argsort(np.argsort(sources, kind="stable"), kind="stable")
    return pa.RecordBatch.from_arrays(
        [
            batch["document_digest"],
            batch["source"],
            paths.take(pa.array(order)),
            batch["position"],
            _REASONS.take(batch["reason"]),
        ],
        schema=DROPPED_SCHEMA,
    )
