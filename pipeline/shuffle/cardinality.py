"""How many buckets a split gets, from a sketch of its texts.

In:  runs (pipeline/shuffle/sorted_runs.py).
Out: a number of bits: buckets are the power-of-two shares of the digests that they tell apart.

The sketch is the smallest digests. Digests are uniform, so the k-th smallest of n lies near k / n:
it tells the number of distinct documents, and their lengths are a fair sample. It depends on the
texts alone, not on who read them in which portions; so does the number of buckets.
"""

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from artifacts.rng import Int64s, UInt64s
from pipeline.shuffle.sorted_runs import KEY

SKETCH_DOCUMENTS = 4096
"""The estimate of the number of documents is good to 2 %."""

BUCKET_BYTES = 4 << 20
"""Text in a bucket, at least; one is the unit of work of the next stage."""

DOCUMENTS_PER_BUCKET = 650
"""On average, so that hardly a bucket has fewer than 500: random next sentences come from there."""

MOST_BUCKETS = 1 << 16


@dataclass(frozen=True)
class Sketch:
    """The documents of a split with the smallest digests.

    keys_D:  first halves of the digests, ascending, each once.
    bytes_D: bytes of the documents' texts.
    """

    keys_D: UInt64s
    bytes_D: Int64s

    def __add__(self, other: "Sketch") -> "Sketch":
        keys_D = np.concatenate((self.keys_D, other.keys_D))
        bytes_D = np.concatenate((self.bytes_D, other.bytes_D))
        distinct_D, first = np.unique(keys_D, return_index=True)
        return Sketch(distinct_D[:SKETCH_DOCUMENTS], bytes_D[first[:SKETCH_DOCUMENTS]])


EMPTY = Sketch(np.zeros(0, dtype=np.uint64), np.zeros(0, dtype=np.int64))


def sketch_of(batch: pa.RecordBatch) -> Sketch:
    """The sketch of one split's rows of a run."""
    rows = batch.slice(0, SKETCH_DOCUMENTS)
    return Sketch(rows[KEY].to_numpy(), rows["text_bytes"].to_numpy().astype(np.int64))


def bucket_bits(sketch: Sketch) -> int | None:
    """How many bits of the digest tell a split's buckets apart; None if it has no documents."""
    if not len(sketch.keys_D):
        return None
    documents: float = len(sketch.keys_D)
    if documents == SKETCH_DOCUMENTS:
        documents = (SKETCH_DOCUMENTS - 1) / (float(sketch.keys_D[-1]) / 2.0**64)
    text_bytes = documents * float(sketch.bytes_D.mean())
    wanted = min(documents / DOCUMENTS_PER_BUCKET, text_bytes / BUCKET_BYTES, MOST_BUCKETS)
    return max(int(wanted), 1).bit_length() - 1
