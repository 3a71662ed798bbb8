"""Layers of LSTM that read one way: the encoder of ELMo's language models.

In:  [T, H]; where the sequences begin and in which direction they are read.
Out: [T, H].

As Peters et al. 2018, 3.4: every layer's cells are projected to the width of the encoder, and what
a layer read is added to what it says. Two such encoders, trained apart, one for each direction, are
joined where they are used (`finetune.second_encoder`).
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import (
    PackedSequence,
    pack_padded_sequence,
    pad_packed_sequence,
    pad_sequence,
)

from model.config import EncoderConfig
from model.data.batch import PackedBatch
from model.encoder.operations.attention import reversal
from model.encoder.operations.dropout import Noise, dropout

# T tokens of all sequences together, B sequences, S tokens of the longest, H width


class Reading:
    """How layers go through the sequences of one batch."""

    def __init__(self, batch: PackedBatch, config: EncoderConfig) -> None:
        self.sizes = batch.lengths.tolist()
        self.backwards = config.attention_direction == "right_to_left"
        self.reversal = reversal(batch) if self.backwards else None

    def __call__(self, lstm: nn.LSTM, hidden_TH: Tensor) -> Tensor:
        """[T, H]: what `lstm` says after each token, each sequence read for itself."""
        read_TH = hidden_TH if self.reversal is None else hidden_TH[self.reversal]
        padded_BSH = pad_sequence(list(torch.split(read_TH, self.sizes)), batch_first=True)
        packed: PackedSequence = pack_padded_sequence(
            padded_BSH, torch.tensor(self.sizes), batch_first=True, enforce_sorted=False
        )
        said_BSH, _ = pad_packed_sequence(lstm(packed)[0], batch_first=True)
        said_TH = torch.cat([row[:size] for row, size in zip(said_BSH, self.sizes, strict=True)])
        return said_TH if self.reversal is None else said_TH[self.reversal]


class LstmLayer(nn.Module):
    """One layer; [T, H] to [T, H]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.lstm = nn.LSTM(
            config.hidden_size,
            config.intermediate_size,
            proj_size=config.hidden_size,
            batch_first=True,
        )
        self.dropout_prob = config.hidden_dropout_prob

    def forward(self, hidden_TH: Tensor, reading: Reading, noise: Noise | None) -> Tensor:
        """[T, H]."""
        return hidden_TH + dropout(reading(self.lstm, hidden_TH), self.dropout_prob, noise)
