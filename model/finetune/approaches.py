"""How a trial computes its logits: fine-tuning, or with another approach of the same interface.

In:  a problem; a split's name and rows of its sequences.
Out: fp32 logits, one row per sequence or per position that the head reads; of a whole split, in the
     file's order.

`FineTuning` trains the whole encoder (paper, section 4); `feature_based.py` has the paper's other
approach.
"""

from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from cloze.artifacts.arrays import offsets_of
from cloze.model.data.batch import on, ragged_indices
from cloze.model.encoder.precision import computed_in
from cloze.model.tasks.base import Logits, Problem
from cloze.model.tasks.features import Places, batches_by_length, tokens_at_once


class Approach(Protocol):
    """A module to train, and its logits."""

    module: nn.Module
    """Its parameters are trained."""

    computed: nn.Module
    """What computes with them: the module, or `Rounded` around it."""

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """[rows or positions, outputs] fp32; with a dropout seed in training, None at inference."""


class FineTuning:
    """All parameters are trained."""

    def __init__(self, problem: Problem, model: nn.Module, *, precision: str = "fp32") -> None:
        """`model`: a `TaskModel`, a `SentenceModel`, or one with the same signature."""
        self.problem = problem
        self.module = model
        self.computed = computed_in(precision, model)

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """Logits of these sequences."""
        device = next(self.module.parameters()).device
        batch = self.problem.sequences[split].batch(rows).to(device)
        positions = None
        if self.problem.reads == "tokens":
            positions = on(device, torch.from_numpy(self.problem.positions(split, rows)))
        logits: Tensor = self.computed(batch, positions, dropout_seed)
        return logits


@torch.no_grad()
def split_logits(problem: Problem, approach: Approach, split: str) -> Logits:
    """[sequences or positions read, outputs] float32 of a whole split, in the file's order.

    Batches are length-grouped, longest first.
    """
    # Not in inference mode: rounded copies of the parameters that the first pass makes, perhaps
    # this one, are trained with.
    approach.module.eval()
    order, parts = [], []
    budget = tokens_at_once(next(approach.module.parameters()).device)
    # Back to the file's order: the logits of each sequence to where they would begin in it.
    for rows in batches_by_length(problem.sequences[split].lengths, token_budget=budget):
        order.append(rows)
        parts.append(approach.logits(split, rows, None).cpu().numpy())
    counts, rows = problem.reads_of(split), np.concatenate(order)
    logits = np.concatenate(parts)
    restored = np.empty_like(logits)
    restored[ragged_indices(offsets_of(counts)[rows], counts[rows])] = logits
    return restored
