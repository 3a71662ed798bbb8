"""Simulated sizes of shuffle keys and buckets, for corpora that are not at hand.

In:  the number and lengths of each split's documents, and the frequent texts.
Out: `KeySizes`: bytes through an engine's shuffle, the largest key, the fullest worker.

Digests are uniform, so a bucket's number of documents is a Poisson draw, and its text a gamma draw
with the mean and variance of that many documents. The rest is the shuffle's own arithmetic
(pipeline/shuffle). Pure and deterministic for a given seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cloze.pipeline.config.settings import bucket_bits
from cloze.pipeline.readers.input_shards import MAX_SHARD_BYTES
from cloze.pipeline.shuffle.beam_group_by_key import ROW_BYTES, SAMPLED_BYTES
from cloze.pipeline.shuffle.buckets import MINIMUM_VALUES

PACKED_RATIO = 0.467
"""Bytes of ids and sentence lengths per byte of text, without `ROW_BYTES`: measured on 136 MB of
English Wikipedia with 30,522 word-pieces."""

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class SimulatedSplit:
    """The distinct documents of one split; splits are ordered as in `split_names`."""

    documents: float
    """Number of documents."""
    mean_bytes: float
    """Mean bytes of text."""
    variation: float = 2.0
    """Standard deviation of lengths over their mean; 1.9 in Wikipedia, more in web text."""


@dataclass(frozen=True)
class FrequentText:
    """A text that occurs many times in the first split."""

    copies: float
    """Number of occurrences."""
    text_bytes: float
    """Bytes of one copy."""


@dataclass(frozen=True)
class ZipfTexts:
    """Distinct texts of the first split; the one of rank r occurs most / r ** exponent times."""

    texts: int
    """Number of distinct texts."""
    most: float
    """Occurrences of the most frequent."""
    exponent: float
    """1 in natural text; more concentrates the occurrences."""
    text_bytes: float
    """Bytes of one copy of each."""

    @property
    def copies_T(self) -> Floats:
        """[texts] how often each occurs, at least once."""
        ranks_T = np.arange(1, self.texts + 1, dtype=np.float64)
        return np.maximum(self.most / ranks_T**self.exponent, 1.0)


@dataclass(frozen=True)
class KeySizes:
    """Data volumes of an engine's shuffle, in bytes."""

    buckets: tuple[int, ...]
    """Buckets of each split."""
    moved: float
    """Total through the shuffle."""
    largest_key: float
    """The most gathered for one bucket."""
    largest_text: float
    """The most text in one bucket, a task of the next stage."""
    fullest_worker: float
    """The most that one worker gathers, on disk if the engine shuffles there."""
    largest_keys: tuple[float, ...]
    """The 64 largest keys, which one worker may hold at once in the worst case."""


def simulate_keys(
    splits: Sequence[SimulatedSplit],
    *,
    frequent: Sequence[FrequentText] = (),
    zipf: ZipfTexts | None = None,
    workers: int = 1,
    seed: int = 0,
) -> KeySizes:
    """Simulate all keys, and the workers' shares if keys are assigned at random."""
    draws = np.random.default_rng(seed)
    total = sum(split.documents * split.mean_bytes for split in splits)
    total += sum(text.copies * text.text_bytes for text in frequent)
    total += float(zipf.copies_T.sum()) * zipf.text_bytes if zipf else 0.0
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
        # named splits, from the third on, take precedence over the first two and over later ones
        stronger = splits[2:] if number < 2 else splits[2:number]
        if split.documents >= MINIMUM_VALUES:
            identities = sum(other.documents for other in stronger) / 2.0 ** bits[number]
            keys[-1] += ROW_BYTES * draws.poisson(identities, 1 << bits[number])
    for text in frequent:
        senders = shards * -np.expm1(-text.copies / shards)
        is_found = draws.poisson(senders * min(text.text_bytes / SAMPLED_BYTES, 1.0)) > 1
        brought = text.text_bytes * PACKED_RATIO * (1.0 if is_found else senders)
        keys[0][draws.integers(len(keys[0]))] += senders * ROW_BYTES + brought
    if zipf:
        # each of the shards that contain a text sends one row, and its tokens unless it was sampled
        senders_T = shards * -np.expm1(-zipf.copies_T / shards)
        is_found_T = draws.poisson(senders_T * min(zipf.text_bytes / SAMPLED_BYTES, 1.0)) > 1
        tokens_T = zipf.text_bytes * PACKED_RATIO * np.where(is_found_T, 1.0, senders_T)
        places_T = draws.integers(len(keys[0]), size=zipf.texts)
        keys[0] += np.bincount(places_T, senders_T * ROW_BYTES + tokens_T, len(keys[0]))
    every = np.concatenate(keys)
    shares_W = np.bincount(draws.integers(workers, size=len(every)), every, workers)
    return KeySizes(
        buckets=tuple(1 << number for number in bits),
        moved=float(every.sum()),
        largest_key=float(every.max()),
        largest_text=float(max(found.max() for found in texts)),
        fullest_worker=float(shares_W.max()),
        largest_keys=tuple(np.sort(every)[-64:].tolist()),
    )
