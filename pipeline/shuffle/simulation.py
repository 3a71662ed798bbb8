"""How large the keys and buckets of a shuffle become, for corpora that are not available.

In:  how many documents of which lengths each split has, and which texts are frequent.
Out: `KeySizes`: what passes through an engine's shuffle, its largest key, the fullest worker.

Digests are uniform, so a bucket's number of documents is a Poisson draw and its text a gamma draw
of the same mean and variance as that of so many documents. The rest is the shuffle's own arithmetic
(cardinality.py, shuffle_plan.py, packed_documents.py). Pure, and the same for the same seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from pipeline.readers.input_shards import MAX_SHARD_BYTES
from pipeline.shuffle.cardinality import MINIMUM_VALUES, bucket_bits
from pipeline.shuffle.packed_documents import ROW_BYTES
from pipeline.shuffle.shuffle_plan import SAMPLED_BYTES

PACKED_RATIO = 0.467
"""Bytes of ids and sentences' lengths for each byte of text, without a row's own bytes: measured on
136 MB of English Wikipedia with 30,522 word-pieces."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedSplit:
    """Documents of one split, each another text; the splits' order is that of `split_names`."""

    documents: float
    """Number of documents."""
    mean_bytes: float
    """Of text."""
    variation: float = 2.0
    """Standard deviation of their lengths by their mean; 1.9 in Wikipedia, more in web text."""


@dataclass(frozen=True)
class FrequentText:
    """A text that is there many times, in the first split."""

    copies: float
    """How often."""
    text_bytes: float
    """Of one."""


@dataclass(frozen=True)
class KeySizes:
    """What an engine holds on the way from tokens to buckets, in bytes."""

    buckets: tuple[int, ...]
    """Of each split."""
    moved: float
    """Through the shuffle, once."""
    largest_key: float
    """Gathered for one bucket."""
    largest_text: float
    """Text of one bucket, a task of the next stage."""
    fullest_worker: float
    """What one worker gathers altogether: on the disks of an engine that shuffles on them."""


def simulate_keys(
    splits: Sequence[SimulatedSplit],
    *,
    frequent: Sequence[FrequentText] = (),
    workers: int = 1,
    seed: int = 0,
) -> KeySizes:
    """The sizes of all keys, and of the workers' shares if each key goes to a random one."""
    draws = np.random.default_rng(seed)
    total = sum(split.documents * split.mean_bytes for split in splits)
    total += sum(text.copies * text.text_bytes for text in frequent)
    shards = max(int(total / MAX_SHARD_BYTES), 1)
    bits = [bucket_bits(split.documents, split.documents * split.mean_bytes) for split in splits]
    keys: list[Floats] = []
    texts: list[Floats] = []
    for number, split in enumerate(splits):
        counts_B = draws.poisson(split.documents / 2.0 ** bits[number], 1 << bits[number])
        shape_B = np.maximum(counts_B / split.variation**2, 1e-9)
        drawn_B = draws.gamma(shape_B, split.mean_bytes * split.variation**2)
        texts.append(np.where(counts_B > 0, drawn_B, 0.0))
        keys.append(counts_B * ROW_BYTES + texts[-1] * PACKED_RATIO)
        # named splits, from the third on, keep their documents against all before and after them
        stronger = splits[2:] if number < 2 else splits[2:number]
        if split.documents >= MINIMUM_VALUES:
            identities = sum(other.documents for other in stronger) / 2.0 ** bits[number]
            keys[-1] += ROW_BYTES * draws.poisson(identities, 1 << bits[number])
    for text in frequent:
        senders = shards * -np.expm1(-text.copies / shards)
        is_found = draws.poisson(senders * min(text.text_bytes / SAMPLED_BYTES, 1.0)) > 1
        brought = text.text_bytes * PACKED_RATIO * (1.0 if is_found else senders)
        keys[0][draws.integers(len(keys[0]))] += senders * ROW_BYTES + brought
    every = np.concatenate(keys)
    shares_W = np.bincount(draws.integers(workers, size=len(every)), every, workers)
    return KeySizes(
        buckets=tuple(1 << number for number in bits),
        moved=float(every.sum()),
        largest_key=float(every.max()),
        largest_text=float(max(found.max() for found in texts)),
        fullest_worker=float(shares_W.max()),
    )
