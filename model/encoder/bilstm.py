"""A bidirectional LSTM over sequences, as a part of heads.

In:  [P, H]; the sequence lengths.
Out: [P, width].
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence, unpack_sequence

# P positions among the tokens of all sequences, H width

BILSTM_LAYERS = 2


def run_lstm(lstm: nn.LSTM, values_TH: Tensor, sizes: list[int]) -> Tensor:
    """[T, outputs] of `lstm` over packed sequences of the given sizes, each read on its own."""
    packed = pack_sequence(list(torch.split(values_TH, sizes)), enforce_sorted=False)
    return torch.cat(unpack_sequence(lstm(packed)[0]))


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
