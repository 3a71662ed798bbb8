"""Near-duplicates: documents that share most of their shingles with another one.

In:  shingles of documents; later, everybody's bands.
Out: for each document the one that stays for it: itself, unless it nearly equals a better one.

MinHash (Broder 1997), by the library datasketch: the share of equal values in two signatures
estimates the share of shingles the documents have in common. Signatures are cut into bands so that
documents above the threshold probably agree in a whole band and those below probably in none; who
agrees in a band is taken for alike, and so is everybody alike to both.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from datasketch import MinHash, MinHashLSH

from artifacts.arrays import Int64s, UInt64s
from artifacts.rng import GOLDEN_GAMMA, scramble
from pipeline.config.settings import NearDuplicatesConfig
from pipeline.duplicates.shingles import Shingles

_SEED = 1
"""Of the permutations; another would find other pairs near the threshold."""
_LOW = np.uint64(0xFFFFFFFF)
_FACTOR = np.uint64(GOLDEN_GAMMA)

# D documents, B bands


@dataclass(frozen=True)
class Bands:
    """How signatures are cut: `count` bands of `width` values; what is left over is unused."""

    count: int
    width: int


@lru_cache(maxsize=2)
def bands_for(config: NearDuplicatesConfig) -> Bands:
    """The bands that err least around the threshold."""
    index = MinHashLSH(threshold=config.threshold, num_perm=config.permutations)
    return Bands(index.b, index.r)


def band_keys(found: Shingles, documents: int, config: NearDuplicatesConfig) -> UInt64s:
    """(D, B): a number for each band of each document; rows of documents without shingles are 0."""
    bands = bands_for(config)
    keys_DB = np.zeros((documents, bands.count), dtype=np.uint64)
    blank = MinHash(num_perm=config.permutations, seed=_SEED)
    bounds = np.searchsorted(found.documents_P, np.arange(documents + 1))
    values_P = found.hashes_P & _LOW
    for document in np.flatnonzero(np.diff(bounds)).tolist():
        signature = MinHash(
            permutations=blank.permutations,
            hashfunc=int,
            scheme=blank.scheme,
            seed=_SEED,
            num_perm=config.permutations,
        )
        signature.update_batch(values_P[bounds[document] : bounds[document + 1]])
        keys_DB[document] = _keys(signature.hashvalues, bands)
    return keys_DB


def representatives(keys_DB: UInt64s) -> Int64s:
    """For each document, in order of preference, the first one that it is alike to.

    Documents alike to each other are the connected components of a graph with an edge between all
    who agree in a band. The smallest number in reach spreads until nothing changes.
    """
    first_D = np.arange(len(keys_DB), dtype=np.int64)
    groups = [_groups(keys_B) for keys_B in keys_DB.T]
    while True:
        before_D = first_D.copy()
        for order, starts, sizes in groups:
            if len(starts):
                smallest = np.minimum.reduceat(first_D[order], starts)
                first_D[order] = np.repeat(smallest, sizes)
        first_D = first_D[first_D]
        if np.array_equal(before_D, first_D):
            return first_D


def _groups(keys_D: UInt64s) -> tuple[Int64s, Int64s, Int64s]:
    """Documents that share a key with another: their order, and each group's start and size."""
    order = np.argsort(keys_D, kind="stable")
    starts = np.flatnonzero(np.diff(keys_D[order], prepend=keys_D[order][:1] + np.uint64(1)))
    sizes = np.diff(np.append(starts, len(order)))
    shared = (sizes > 1) & (keys_D[order][starts] != 0)
    members = np.repeat(shared, sizes)
    kept_sizes = sizes[shared]
    return order[members], np.cumsum(kept_sizes) - kept_sizes, kept_sizes


def _keys(signature: UInt64s, bands: Bands) -> UInt64s:
    values = signature[: bands.count * bands.width].astype(np.uint64)
    keys_B = np.arange(1, bands.count + 1, dtype=np.uint64)
    for value_B in values.reshape(bands.count, bands.width).T:
        keys_B = scramble(keys_B * _FACTOR + value_B)
    return np.maximum(keys_B, np.uint64(1))
