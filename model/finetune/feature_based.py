"""The feature-based approach: a head on the layers of a frozen encoder (section 5.3, Table 7).

In:  a problem; a split's name and rows of its sequences; encoders that are run once.
Out: `FeatureBased`: fp32 logits of a head, one row per sequence or per position that it reads.
"""

from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor, nn

from cloze.artifacts.arrays import offsets_of
from cloze.model.config import FeatureConfig
from cloze.model.data.batch import on, ragged_indices
from cloze.model.encoder.bilstm import BiLSTM
from cloze.model.encoder.models import HEAD_DROPOUT, Encoder
from cloze.model.encoder.operations.dropout import dropout, noise_from
from cloze.model.encoder.precision import rounded
from cloze.model.encoder.scaled_linear import ScaledLinear
from cloze.model.tasks.base import Problem
from cloze.model.tasks.features import Places, batches_by_length, tokens_at_once

# P positions of all sequences, B sequences, K layers, L + 1 states of an encoder, H width


class FeatureBased:
    """The encoders are frozen, and a head is trained on their layers."""

    def __init__(self, problem: Problem, head: nn.Module, cache: "FeatureCache") -> None:
        """`head`: a `FeatureHead`, or one with the same signature."""
        self.problem = problem
        self.module = self.computed = head
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
        # Once for all trials and epochs: the encoders never change.
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
            # To the CPU at once: a GPU need not hold the features of a whole data set.
            picked = layers(encoder.hidden_states(sequences.batch(rows).to(device))).cpu()
            if problem.reads == "tokens":
                picked = picked[torch.from_numpy(problem.positions(split, rows))]
            # Allocated when the first batch shows the width, and filled in any order.
            if not len(result):
                result = picked.new_empty((int(offsets[-1]), *picked.shape[1:]))
            result[torch.from_numpy(ragged_indices(offsets[rows], np.diff(offsets)[rows]))] = picked
        return result


def _stacked(first: int, last: int | None) -> Callable[[list[Tensor]], Tensor]:
    return lambda states: torch.stack(states[first:last], dim=1)


LAYERS: Mapping[str, Callable[[list[Tensor]], Tensor]] = {
    "embeddings": _stacked(0, 1),
    "second_to_last": _stacked(-2, -1),
    "last": _stacked(-1, None),
    "sum_last_four": _stacked(-4, None),
    "concat_last_four": lambda states: torch.cat(states[-4:], dim=-1)[:, None],
    "sum_all": _stacked(1, None),
}
"""Table 7: from the embeddings and L layers, each [T, H], to [T, K, H]; K > 1 layers are summed."""


class FeatureHead(nn.Module):
    """A weighted sum of layers, an optional BiLSTM, and a linear layer."""

    def __init__(self, config: FeatureConfig, *, depth: int, width: int, outputs: int) -> None:
        """Parameters are initialised from torch's global generator."""
        super().__init__()
        # zeros: equal weights, by the softmax
        self.weights = nn.Parameter(torch.zeros(depth)) if depth > 1 else None
        self.bilstm = BiLSTM(width, config.hidden_size) if config.head == "bilstm" else None
        self.output = ScaledLinear(self.bilstm.width if self.bilstm else width, outputs)

    def forward(
        self, values_PKH: Tensor, sizes: list[int], *, pool: bool, seed: int | None
    ) -> Tensor:
        """[P, outputs]; with `pool` [B, outputs], from the mean over each sequence."""
        mixed_PH = values_PKH[:, 0]
        if self.weights is not None:
            mixed_PH = torch.einsum("pkh,k->ph", values_PKH, self.weights.softmax(0))
        if self.bilstm is not None:
            mixed_PH = self.bilstm(mixed_PH, sizes)
        if pool:
            mixed_PH = torch.stack([part.mean(0) for part in torch.split(mixed_PH, sizes)])
        noise = noise_from(seed, mixed_PH.device) if seed is not None else None
        logits: Tensor = self.output(dropout(mixed_PH, HEAD_DROPOUT, noise))
        return logits
