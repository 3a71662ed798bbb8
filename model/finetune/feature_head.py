"""What is trained when the encoder is frozen (paper, section 5.3 and Table 7).

In:  some layers of an encoder, at the places of several sequences.
Out: logits.
"""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from model.config import FeatureConfig
from model.encoder.dropout import Noise, dropout
from model.finetune.bilstm import BiLSTM

# P places of all sequences together, B sequences, K layers, H width

HEAD_DROPOUT = 0.1


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
"""Table 7: from the embeddings and L layers, each [T, H], to [T, K, H]; K > 1 is summed."""


class FeatureHead(nn.Module):
    """A weighted sum of layers, a BiLSTM where it is wanted, one linear layer."""

    def __init__(self, config: FeatureConfig, *, depth: int, width: int, outputs: int) -> None:
        """Parameters are drawn from torch's global generator."""
        super().__init__()
        self.weights = nn.Parameter(torch.zeros(depth)) if depth > 1 else None
        self.bilstm = BiLSTM(width, config.hidden_size) if config.head == "bilstm" else None
        self.output = nn.Linear(self.bilstm.width if self.bilstm else width, outputs)

    def forward(
        self, values_PKH: Tensor, sizes: list[int], *, pool: bool, seed: int | None
    ) -> Tensor:
        """[P, outputs]; [B, outputs] of the means over each sequence where `pool`."""
        mixed_PH = self._mixed(values_PKH)
        if self.bilstm is not None:
            mixed_PH = self.bilstm(mixed_PH, sizes)
        if pool:
            mixed_PH = torch.stack([part.mean(0) for part in torch.split(mixed_PH, sizes)])
        noise = Noise((seed,)) if seed is not None else None
        logits: Tensor = self.output(dropout(mixed_PH, HEAD_DROPOUT, noise))
        return logits

    def _mixed(self, values_PKH: Tensor) -> Tensor:
        if self.weights is None:
            return values_PKH[:, 0]
        return torch.einsum("pkh,k->ph", values_PKH, self.weights.softmax(0))
