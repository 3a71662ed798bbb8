"""How far passages stand out by their vectors, for a part of their own text.

In:  the vectors of a collection's passages, and those of a part of some of them.
Out: `standing_of`: by how many standard deviations of all scores a passage is nearer to its part.

An encoder that does not know the language or the subject of a collection gives all its passages
about the same vector. No question is needed to see it: a few words out of the middle of a passage
are then no nearer to it than to the others (cf. the inverse cloze task, Lee et al. 2019).
"""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from cloze.model.retrieval.fusion import NOISE

SAMPLED = 100
"""Passages of which a part is looked for, at most."""

FEWEST = 50
"""Passages from which on one can stand out: of N none does by more than sqrt(N - 1)."""

LEAST_WORDS = 10
"""Of a passage whose words are counted; with fewer, its script may have no spaces."""

TOGETHER = 16
"""Parts that are compared with all passages at once."""

# N passages, Q parts, H width

Vectors = npt.NDArray[np.float32]


def part_of(text: str) -> str:
    """The middle fifth of a passage: of its words, or of its characters in an unspaced script."""
    words = text.split()
    of: Sequence[str] = words if len(words) >= LEAST_WORDS else text
    middle = of[2 * len(of) // 5 : 3 * len(of) // 5]
    return (middle if isinstance(middle, str) else " ".join(middle)) or text


def sampled_rows(passages: int) -> range:
    """The passages of which a part is looked for."""
    # Spread over all: the files of a folder are often in order of subject or language.
    return range(0, passages, math.ceil(passages / SAMPLED))


def standing_of(vectors_NH: Vectors, rows_Q: Sequence[int], parts_QH: Vectors) -> float:
    """The median over the parts of `rows_Q`, in standard deviations; 0 where all scores are one."""
    found = []
    for first in range(0, len(rows_Q), TOGETHER):
        scores_NQ = vectors_NH @ parts_QH[first : first + TOGETHER].T
        own_Q = scores_NQ[rows_Q[first : first + TOGETHER], np.arange(scores_NQ.shape[1])]
        deviation_Q = np.maximum(scores_NQ.std(0), NOISE)
        found.append((own_Q - scores_NQ.mean(0)) / deviation_Q)
    return float(np.median(np.concatenate(found)))
