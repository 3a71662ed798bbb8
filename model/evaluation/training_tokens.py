"""The training split's tokens, for the baselines that count them.

In:  a tokens artifact.
Out: a flat array of ids with document borders; the counts of every word-piece.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artifacts.errors import IntegrityError
from artifacts.store import Artifact

TRAIN_SPLIT = "train"
_TOKENS_FILE = re.compile(r"(?P<split>.+)-\d{5}\.arrow")

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class TokenStream:
    """Documents one after another."""

    ids: Int64
    """[T]"""

    first: NDArray[np.bool_]
    """[T] whether a token begins a document."""


def read_training_tokens(tokens: Artifact, *, limit: int, cache: str = "") -> TokenStream:
    """The training documents of the first buckets, until `limit` tokens are there.

    Documents are in buckets by a hash of their text, so the first buckets are a fair sample.
    """
    ids, first, total = [], [], 0
    for batch in _batches(tokens, cache):
        column = batch.column("token_ids")
        part = column.flatten().to_numpy().astype(np.int64)
        starts = column.offsets.to_numpy()[:-1] - column.offsets[0].as_py()
        begins = np.zeros(len(part) + 1, np.bool_)
        begins[starts] = True  # an empty last document begins behind the end
        ids.append(part)
        first.append(begins[:-1])
        total += len(part)
        if total >= limit:
            break
    if not total:
        raise IntegrityError(f"{tokens.directory}: no training tokens; run the tokens stage again")
    return TokenStream(np.concatenate(ids)[:limit], np.concatenate(first)[:limit])


def training_frequencies(tokens: Artifact) -> Int64:
    """[V] how often each word-piece stands in the whole training split."""
    counts = np.array(tokens.read_json("token_counts.json"), np.int64)
    if not counts.sum():
        raise IntegrityError(f"{tokens.directory}: no training tokens; run the tokens stage again")
    return counts


def _batches(tokens: Artifact, cache: str) -> Iterator[pa.RecordBatch]:
    for entry in tokens.manifest.files:
        match = _TOKENS_FILE.fullmatch(entry.name)
        if match is None or match["split"] != TRAIN_SPLIT:
            continue
        path = tokens.stage_files(cache, [entry.name]).path(entry.name)
        with pa.ipc.open_file(pa.memory_map(path)) as reader:
            for index in range(reader.num_record_batches):
                yield reader.get_batch(index)
