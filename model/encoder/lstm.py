"""LSTM layers: unidirectional in the encoders of ELMo's language models, bidirectional in heads.

In:  [T, H]; the sequence lengths and the reading direction.
Out: [T, H].

As in Peters et al. 2018, 3.4, each layer projects its cells to the width of the encoder and adds
its input to its output. Two encoders, trained separately for the two directions, are combined for
feature-based tasks (`finetune.second_encoder`).
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

from cloze.model.config import EncoderConfig
from cloze.model.data.batch import PackedBatch
from cloze.model.encoder.operations.dropout import Noise, dropout

# T tokens of all sequences, P positions among them, H width

BILSTM_LAYERS = 2


class Reading:
    """Runs LSTMs over the sequences of one batch."""

    def __init__(self, batch: PackedBatch, config: EncoderConfig) -> None:
        self.sizes = batch.lengths.tolist()
        is_backwards = config.attention_direction == "right_to_left"
        self.reversal = batch.reversal() if is_backwards else None

    def __call__(self, lstm: nn.LSTM, hidden_TH: Tensor) -> Tensor:
        """[T, H]: the output of `lstm`, each sequence read in the encoder's direction."""
        if self.reversal is None:
            return run_lstm(lstm, hidden_TH, self.sizes)
        return run_lstm(lstm, hidden_TH[self.reversal], self.sizes)[self.reversal]


def run_lstm(lstm: nn.LSTM, values_TH: Tensor, sizes: list[int]) -> Tensor:
    """[T, outputs] of `lstm` over packed sequences of the given sizes, each read on its own."""
    packed = pack_sequence(list(torch.split(values_TH, sizes)), enforce_sorted=False)
    return torch.cat(unpack_sequence(lstm(packed)[0]))


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
