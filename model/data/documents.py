"""The documents of a tokens artifact, as token ids.

In:  a tokens artifact.
Out: its files by split, and what they hold, as Arrow batches or flat NumPy arrays.
"""

import re
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.manifest import FileEntry
from cloze.artifacts.results import TRAIN
from cloze.artifacts.store import Artifact

TOKENS_FILE = re.compile(r"(?P<split>.+)-\d{5}\.arrow")

Int64 = NDArray[np.int64]

# T tokens, V vocabulary


def document_files(tokens: Artifact) -> list[tuple[str, FileEntry]]:
    """Split and entry of each file of documents in a tokens artifact."""
    named = [(TOKENS_FILE.fullmatch(entry.name), entry) for entry in tokens.manifest.files]
    return [(match["split"], entry) for match, entry in named if match]


def token_batches(tokens: Artifact, name: str) -> Iterator[pa.RecordBatch]:
    """The documents in one file of a tokens artifact."""
    with pa.ipc.open_file(pa.memory_map(tokens.path(name))) as reader:
        for index in range(reader.num_record_batches):
            yield reader.get_batch(index)


def training_batches(tokens: Artifact) -> Iterator[tuple[Int64, NDArray[np.bool_]]]:
    """Parts of the training split: [T] ids, and whether each begins a document."""
    names = [entry.name for split, entry in document_files(tokens) if split == TRAIN]
    for batch in (batch for name in names for batch in token_batches(tokens, name)):
        column = batch.column("token_ids")
        ids = column.flatten().to_numpy().astype(np.int64)
        # A slice of an Arrow list column keeps the offsets of the whole, while `flatten` returns
        # only the values of the slice; subtracting the first offset makes them agree.
        starts = column.offsets.to_numpy()[:-1] - column.offsets[0].as_py()
        begins = np.zeros(len(ids) + 1, np.bool_)
        begins[starts] = True  # an empty last document begins after the last token
        yield ids, begins[:-1]


def training_frequencies(tokens: Artifact) -> Int64:
    """[V] counts of each token in the whole training split."""
    counts = np.array(tokens.read_json("token_counts.json"), np.int64)
    if not counts.sum():
        raise IntegrityError(f"{tokens.directory}: no training tokens; run the tokens stage again")
    return counts
