"""Heads on top of an encoder: a linear layer, optionally with a BiLSTM before it.

In:  packed sequences and the positions that the head reads; or layers of a frozen encoder.
Out: fp32 logits, or vectors.

Fine-tuning trains encoder and head together (`TaskModel`; paper, section 4), or the encoder alone
if its vectors are compared (`SentenceModel`). The feature-based approach trains a head on frozen
layers (`FeatureHead`; section 5.3 and Table 7).
"""

from collections.abc import Callable, Mapping
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import FeatureConfig
from model.data.batch import PackedBatch
from model.encoder.encoder import Encoder, initialise
from model.encoder.layers.lstm import run_lstm
from model.encoder.operations.dropout import Noise, dropout, noise_from

# P positions of all sequences, B sequences, S positions of the longest, K layers, H width

HEAD_DROPOUT = 0.1
"""Before a classifier's head (reference: run_classifier.py:598)."""

HEAD_PLACE = 1 << 20
"""Address of the head's dropout, distinct from those of the encoder's layers."""

BILSTM_LAYERS = 2


class BiLSTM(nn.Module):
    """Two bidirectional layers over one sequence at a time (sections 5.1 and 5.3)."""

    def __init__(self, width: int, hidden_size: int) -> None:
        """`hidden_size`: of both directions together. Initialised from torch's global generator."""
        super().__init__()
        self.width = hidden_size // 2 * 2
        self.lstm = nn.LSTM(
            width, hidden_size // 2, num_layers=BILSTM_LAYERS, bidirectional=True, batch_first=True
        )

    def forward(self, values_PH: Tensor, sizes: list[int]) -> Tensor:
        """[P, width] of consecutive sequences of `sizes` positions, each processed separately."""
        return run_lstm(self.lstm, values_PH, sizes)


class TaskModel(nn.Module):
    """The encoder and one linear layer, optionally with a BiLSTM between them.

    The head is initialised from torch's global generator.
    """

    def __init__(
        self, encoder: Encoder, *, outputs: int, head_dropout: bool = True, bilstm: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, outputs)
        self.head_dropout = HEAD_DROPOUT if head_dropout else 0.0
        initialise(self.head, encoder.config)
        width = encoder.config.hidden_size
        self.bilstm = BiLSTM(width, width) if bilstm else None

    def forward(
        self, batch: PackedBatch, positions: Tensor | None, dropout_seed: int | None = None
    ) -> Tensor:
        """Logits of the pooled sequences, or of the tokens at `positions`; [rows, outputs] fp32."""
        hidden_TH = self.encoder(batch, dropout_seed)
        if self.bilstm is not None:
            hidden_TH = self.bilstm(hidden_TH, batch.lengths.tolist())
        if positions is not None:
            read = self.encoder.read_tokens(hidden_TH[positions])
        elif self.encoder.config.attention_direction != "left_to_right":
            read = self.encoder.pooled(hidden_TH, batch)
        else:  # only the last token attends to the whole sequence, as in OpenAI GPT
            read = self.encoder.pooler(hidden_TH[batch.cu_seqlens[1:].long() - 1])
        noise = Noise((dropout_seed, HEAD_PLACE)) if dropout_seed is not None else None
        logits: Tensor = self.head(dropout(read, self.head_dropout, noise))
        return logits.float()


class SentenceModel(nn.Module):
    """The encoder alone, for comparing vectors of whole sequences (Reimers, Gurevych 2019)."""

    bilstm = None

    def __init__(self, encoder: Encoder, *, pooling: Literal["mean", "cls"] = "mean") -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling: Literal["mean", "cls"] = pooling

    def forward(
        self, batch: PackedBatch, positions: Tensor | None, dropout_seed: int | None = None
    ) -> Tensor:
        """Vectors of length 1, [B, H] fp32; `positions` is None."""
        hidden_TH = self.encoder(batch, dropout_seed)
        return functional.normalize(
            self.encoder.pooled(hidden_TH, batch, pooling=self.pooling).float(), dim=-1
        )


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
        self.weights = nn.Parameter(torch.zeros(depth)) if depth > 1 else None
        self.bilstm = BiLSTM(width, config.hidden_size) if config.head == "bilstm" else None
        self.output = nn.Linear(self.bilstm.width if self.bilstm else width, outputs)

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
