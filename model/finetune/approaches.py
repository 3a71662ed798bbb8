"""The paper's two approaches to a task: fine-tuning, and a head on a frozen encoder's features.

In:  a problem; a split's name and rows of its sequences.
Out: fp32 logits, one row per sequence or per position that the head reads.

`FineTuning` trains the whole encoder. `FeatureBased` runs it once and trains a head on its outputs
(paper, section 5.3).
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from model.data.batch import on, ragged_indices
from model.encoder.encoder import Encoder
from model.tasks.base import Logits, Problem
from model.tasks.features import Places, batches_by_length, offsets_of, tokens_at_once
from model.training.precision import Rounded, rounded


class Approach(Protocol):
    """A module to train, and its logits."""

    module: nn.Module
    """Its parameters are trained."""

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """[rows or positions, outputs] fp32; with a dropout seed in training, None at inference."""


class FineTuning:
    """All parameters are trained."""

    def __init__(self, problem: Problem, model: nn.Module, *, precision: str = "fp32") -> None:
        """`model`: a `TaskModel`, a `SentenceModel`, or one with the same signature."""
        self.problem = problem
        self.module = model
        self.call: Callable[..., Tensor] = Rounded(model) if precision == "bf16" else model
        """Computes the logits; an engine may replace it."""

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """Logits of these sequences."""
        device = next(self.module.parameters()).device
        batch = self.problem.sequences[split].batch(rows).to(device)
        positions = None
        if self.problem.reads == "tokens":
            positions = on(device, torch.from_numpy(self.problem.positions(split, rows)))
        return self.call(batch, positions, dropout_seed)


class FeatureBased:
    """The encoders are frozen, and a head is trained on their layers."""

    def __init__(self, problem: Problem, head: nn.Module, cache: "FeatureCache") -> None:
        """`head`: a `FeatureHead`, or one with the same signature."""
        self.problem = problem
        self.module = head
        self._cache = cache

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """Logits of these sequences."""
        values, sizes = self._cache.take(split, rows)
        device = next(self.module.parameters()).device
        logits: Tensor = self.module(
            on(device, values), sizes, pool=self.problem.reads == "pooled", seed=dropout_seed
        )
        return logits


class FeatureCache:
    """Layers of frozen encoders at all positions that a problem's head reads, computed once."""

    def __init__(
        self,
        problem: Problem,
        encoders: list[Encoder],
        layers: Callable[[list[Tensor]], Tensor],
        *,
        precision: str,
    ) -> None:
        """`layers` picks from the L + 1 states of one encoder: [T, K, H]."""
        frozen = [
            (rounded(encoder) if precision == "bf16" else encoder).eval() for encoder in encoders
        ]
        self._values: dict[str, Tensor] = {}
        self._offsets: dict[str, Places] = {}
        for split, sequences in problem.sequences.items():
            # The head of a pooled task reads every token and takes the mean.
            by_token = problem.reads == "tokens"
            self._offsets[split] = offsets_of(
                problem.reads_of(split) if by_token else sequences.lengths
            )
            self._values[split] = torch.cat(
                [self._computed(problem, split, encoder, layers) for encoder in frozen], dim=-1
            )

    @property
    def width(self) -> int:
        """Features per layer and position, over all encoders."""
        return int(next(iter(self._values.values())).shape[-1])

    @property
    def depth(self) -> int:
        """Number of layers kept."""
        return int(next(iter(self._values.values())).shape[1])

    def take(self, split: str, rows: Places) -> tuple[Tensor, list[int]]:
        """[P, K, H] of these sequences, concatenated, and the number of positions of each."""
        offsets = self._offsets[split]
        spans = [self._values[split][offsets[row] : offsets[row + 1]] for row in rows]
        return torch.cat(spans).float(), [len(span) for span in spans]

    @torch.inference_mode()
    def _computed(
        self,
        problem: Problem,
        split: str,
        encoder: Encoder,
        layers: Callable[[list[Tensor]], Tensor],
    ) -> Tensor:
        """[P, K, H] bf16 or fp32 on the CPU, in the order of the sequences."""
        device = next(encoder.parameters()).device
        sequences, offsets = problem.sequences[split], self._offsets[split]
        result = torch.empty(0)
        for rows in batches_by_length(sequences.lengths, token_budget=tokens_at_once(device)):
            picked = layers(encoder.hidden_states(sequences.batch(rows).to(device))).cpu()
            if problem.reads == "tokens":
                picked = picked[torch.from_numpy(problem.positions(split, rows))]
            if not len(result):
                result = picked.new_empty((int(offsets[-1]), *picked.shape[1:]))
            result[torch.from_numpy(ragged_indices(offsets[rows], np.diff(offsets)[rows]))] = picked
        return result


@torch.inference_mode()
def split_logits(problem: Problem, approach: Approach, split: str) -> Logits:
    """[sequences or positions read, outputs] float32 of a whole split, in the file's order.

    Batches are length-grouped, longest first.
    """
    approach.module.eval()
    order, parts = [], []
    budget = tokens_at_once(next(approach.module.parameters()).device)
    for rows in batches_by_length(problem.sequences[split].lengths, token_budget=budget):
        order.append(rows)
        parts.append(approach.logits(split, rows, None).cpu().numpy())
    counts, rows = problem.reads_of(split), np.concatenate(order)
    logits = np.concatenate(parts)
    restored = np.empty_like(logits)
    restored[ragged_indices(offsets_of(counts)[rows], counts[rows])] = logits
    return restored
