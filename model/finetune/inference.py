"""Logits of a whole split, by length, in the file's order.

In:  a problem and a reader.
Out: one array; sequences of similar length are computed together, longest first.
"""

import numpy as np
import torch

from model.finetune.readers import Reader
from model.tasks.base import Logits, Problem
from model.tasks.features import Places, evaluation_batches

EVALUATION_TOKENS = 8192


@torch.inference_mode()
def split_logits(problem: Problem, reader: Reader, split: str) -> Logits:
    """[sequences or places read, outputs] float32."""
    reader.module.eval()
    lengths = problem.sequences[split].lengths
    order, parts = [], []
    for rows in evaluation_batches(lengths, token_budget=EVALUATION_TOKENS):
        order.append(rows)
        parts.append(reader.logits(split, rows, None).cpu().numpy())
    return _restored(problem.reads_of(split), np.concatenate(order), np.concatenate(parts))


def _restored(counts: Places, order: Places, logits: Logits) -> Logits:
    """Logits computed in `order`, `counts[row]` of each sequence, in the file's order."""
    starts, taken = np.cumsum(counts) - counts, counts[order]
    places = np.arange(int(counts.sum())) + np.repeat(
        starts[order] - (np.cumsum(taken) - taken), taken
    )
    restored = np.empty_like(logits)
    restored[places] = logits
    return restored
