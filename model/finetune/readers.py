"""How a fit gets logits for a problem's sequences: the two ways of using an encoder.

In:  a split's name and rows of its sequences.
Out: logits in fp32, one row for each sequence or for each place that the head reads.

`FineTuning` runs the encoder and trains all of it. `Features` ran it once, and trains a head on
what it gave (paper, section 5.3).
"""

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn

from model.encoder.encoder import Encoder
from model.finetune.feature_head import FeatureHead
from model.finetune.task_model import TaskModel
from model.tasks.base import Problem
from model.tasks.features import Places, evaluation_batches
from model.training.precision import Rounded, rounded

FEATURE_TOKENS = 8192


class Reader(Protocol):
    """What a fit trains."""

    module: nn.Module
    """Whose parameters are trained."""

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """[rows or places, outputs] fp32; a seed means training mode."""


class FineTuning:
    """All parameters are trained."""

    def __init__(self, problem: Problem, model: TaskModel, *, precision: str = "fp32") -> None:
        self.problem = problem
        self.module: nn.Module = model
        self.call: Callable[..., Tensor] = Rounded(model) if precision == "bf16" else model
        """Computes logits; an engine may put itself in its place."""

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """Logits of these sequences."""
        device = next(self.module.parameters()).device
        batch = self.problem.sequences[split].batch(rows).to(device)
        positions = None
        if self.problem.reads == "tokens":
            positions = torch.from_numpy(self.problem.positions(split, rows)).to(device)
        return self.call(batch, positions, dropout_seed)


class Features:
    """The encoders are frozen; a head is trained on the layers they gave."""

    def __init__(self, problem: Problem, head: FeatureHead, cache: "FeatureCache") -> None:
        self.problem = problem
        self.module: nn.Module = head
        self._cache = cache

    def logits(self, split: str, rows: Places, dropout_seed: int | None) -> Tensor:
        """Logits of these sequences."""
        values, sizes = self._cache.take(split, rows)
        device = next(self.module.parameters()).device
        logits: Tensor = self.module(
            values.to(device), sizes, pool=self.problem.reads == "pooled", seed=dropout_seed
        )
        return logits


class FeatureCache:
    """The layers of frozen encoders at every place that a problem's head reads, computed once."""

    def __init__(
        self,
        problem: Problem,
        encoders: list[Encoder],
        layers: Callable[[list[Tensor]], Tensor],
        *,
        precision: str,
    ) -> None:
        """`layers` picks from the L + 1 states of one encoder: [T, K, H]."""
        self._values: dict[str, Tensor] = {}
        self._offsets: dict[str, Places] = {}
        for split in problem.sequences:
            parts = [
                _computed(problem, split, encoder, layers, precision=precision)
                for encoder in encoders
            ]
            self._values[split] = torch.cat(parts, dim=-1)
            self._offsets[split] = np.concatenate(([0], np.cumsum(_sizes(problem, split))))

    @property
    def width(self) -> int:
        """Numbers per layer and place, of all encoders together."""
        return int(next(iter(self._values.values())).shape[-1])

    @property
    def depth(self) -> int:
        """Layers kept."""
        return int(next(iter(self._values.values())).shape[1])

    def take(self, split: str, rows: Places) -> tuple[Tensor, list[int]]:
        """[P, K, H] of these sequences, one after another, and their places' numbers."""
        offsets = self._offsets[split]
        spans = [self._values[split][offsets[row] : offsets[row + 1]] for row in rows]
        return torch.cat(spans).float(), [len(span) for span in spans]


def _sizes(problem: Problem, split: str) -> Places:
    """Places read of each sequence; a pooled task's head reads every token and takes the mean."""
    if problem.reads == "tokens":
        return problem.reads_of(split)
    return problem.sequences[split].lengths


@torch.inference_mode()
def _computed(
    problem: Problem,
    split: str,
    encoder: Encoder,
    layers: Callable[[list[Tensor]], Tensor],
    *,
    precision: str,
) -> Tensor:
    """[P, K, H] bf16 or fp32 on the CPU, in the order of the sequences."""
    encoder = (rounded(encoder) if precision == "bf16" else encoder).eval()
    device = next(encoder.parameters()).device
    sequences = problem.sequences[split]
    sizes = _sizes(problem, split)
    starts = np.cumsum(sizes) - sizes
    result: Tensor | None = None
    for rows in evaluation_batches(sequences.lengths, token_budget=FEATURE_TOKENS):
        states = encoder.hidden_states(sequences.batch(rows).to(device))
        picked = layers(states).cpu()
        if problem.reads == "tokens":
            picked = picked[torch.from_numpy(problem.positions(split, rows))]
        if result is None:
            result = picked.new_empty((int(sizes.sum()), *picked.shape[1:]))
        places = np.arange(len(picked)) + np.repeat(
            starts[rows] - (np.cumsum(sizes[rows]) - sizes[rows]), sizes[rows]
        )
        result[torch.from_numpy(places)] = picked
    if result is None:
        raise AssertionError("a split has at least one sequence")
    return result
