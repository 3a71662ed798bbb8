"""Splits: which documents train, which are held out, and which of two equal ones stays.

In:  the corpus configuration; document digests.
Out: each document's split.

A held-out source is a split of its own. Of the rest, a share chosen by digest forms `heldout`: the
same documents wherever they come from and however the corpus is cut.
"""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from artifacts.rng import UInt64s, document_streams, high_half, stream_seed
from artifacts.tables import TOKEN_DIGEST_BYTES
from pipeline.config import CorpusConfig

TRAIN, HELDOUT = "train", "heldout"
TRAIN_SPLIT, HELDOUT_SPLIT = 0, 1
"""Their places in the list of splits."""

Splits = npt.NDArray[np.uint8]


def split_names(corpus: CorpusConfig) -> list[str]:
    """All splits; a document's split is its place in this list."""
    named = dict.fromkeys(source.heldout for source in corpus.sources if source.heldout)
    return [TRAIN, HELDOUT, *(name for name in named if name != HELDOUT)]


def stronger_splits(split: int, *, count: int) -> list[int]:
    """Splits whose documents may not appear in `split`, the strongest first.

    A named split keeps its documents against all others, the first named against the later ones.
    """
    return list(range(2, count if split <= HELDOUT_SPLIT else split))


def assign_splits(digests_D2: UInt64s, *, source: int, corpus: CorpusConfig, seed: int) -> Splits:
    """The split of each of a source's documents."""
    name = corpus.sources[source].heldout
    if name:
        return np.full(len(digests_D2), split_names(corpus).index(name), dtype=np.uint8)
    # The share is drawn with 32 bits of a stream that nothing else uses.
    bits = high_half(document_streams(digests_D2, stream_seed(seed, "heldout")))
    return (bits < np.uint64(round(corpus.heldout_share * (1 << 32)))).astype(np.uint8)


def halves(digests: npt.NDArray[np.uint8]) -> UInt64s:
    """Digests (D, 16) as two big-endian numbers (D, 2): their order is the digests' order."""
    return np.ascontiguousarray(digests).view(">u8").astype(np.uint64)


def digest_bytes(column: pa.ChunkedArray) -> npt.NDArray[np.uint8]:
    """A column of digests as rows of bytes, (D, 16)."""
    raw = [_fixed_size_bytes(chunk) for chunk in column.chunks]
    joined = np.concatenate(raw) if raw else np.zeros(0, dtype=np.uint8)
    return joined.reshape(-1, TOKEN_DIGEST_BYTES)


def _fixed_size_bytes(array: pa.FixedSizeBinaryArray) -> npt.NDArray[np.uint8]:
    data = np.frombuffer(array.buffers()[1] or b"", dtype=np.uint8)
    start = TOKEN_DIGEST_BYTES * array.offset
    return data[start : start + TOKEN_DIGEST_BYTES * len(array)]
