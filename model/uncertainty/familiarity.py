"""Whether a text is like the training rows.

In:  the vectors that a model's head reads, of training rows and of new ones.
Out: a p-value per new row: the share of training rows that are at least as far from their nearest
     other training row as the new one is from its nearest (Sun et al. 2022; Bates et al. 2023). A
     text of the same kind is below 0.05 in 5 % of cases; much smaller shares are another domain or
     language.
"""

import numpy as np
import torch
from numpy.typing import NDArray

from cloze.artifacts.rng import address, permutation
from cloze.model.encoder.models import TaskModel
from cloze.model.tasks.features import Places, Sequences, batches_by_length, tokens_at_once

MOST_ROWS = 500
"""Training rows that are kept."""

UNFAMILIAR = 0.05
"""Texts with a smaller p-value are flagged."""

ROWS_AT_ONCE = 4096

Vectors = NDArray[np.float32]


@torch.inference_mode()
def read_vectors(model: TaskModel, sequences: Sequences, rows: Places) -> Vectors:
    """[N, H] what the head reads of these N sequences."""
    device = next(model.parameters()).device
    found: Vectors = np.empty((len(rows), model.head.in_features), np.float32)
    budget = tokens_at_once(device)
    for places in batches_by_length(sequences.lengths[rows], token_budget=budget):
        batch = sequences.batch(rows[places]).to(device)
        found[places] = model.read(batch).float().cpu().numpy()
    return found


def kept_rows(count: int) -> Places:
    """The training rows whose vectors are kept."""
    return np.sort(permutation(address("familiar"), count)[:MOST_ROWS])


def p_values(known: Vectors, new: Vectors) -> NDArray[np.float64]:
    """[N] of new vectors, by the distances between the K known ones."""
    # By cosines throughout, so "farther" is "a smaller cosine to the nearest row".
    known, new = _of_length_1(known), _of_length_1(new)
    between = known @ known.T
    # A training row is not its own neighbour, or all would have a distance of 0.
    np.fill_diagonal(between, -np.inf)
    own = np.sort(between.max(-1)) if len(known) > 1 else np.zeros(0)
    found = np.empty(len(new))
    for first in range(0, len(new), ROWS_AT_ONCE):
        nearest = (new[first : first + ROWS_AT_ONCE] @ known.T).max(-1)
        # The training rows at least as far from their neighbours as this one.
        found[first : first + ROWS_AT_ONCE] = np.searchsorted(own, nearest, side="right")
    # The new row counts as one of them: with this 1, a p-value is below any level no more often
    # than that level promises, and is never 0.
    return (found + 1.0) / (len(own) + 1.0)


def _of_length_1(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=-1, keepdims=True)
    scaled: Vectors = vectors / np.maximum(lengths, 1e-12)
    return scaled
