"""The BiLSTM that reads an encoder's vectors (paper, sections 5.1 and 5.3).

In:  vectors of several sequences, one after another, and the sequences' sizes.
Out: as many vectors, each of which has seen its whole sequence.
"""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

# P places of all sequences together, B sequences, S places of the longest, H width

LAYERS = 2


class BiLSTM(nn.Module):
    """Two layers, each in both directions."""

    def __init__(self, width: int, hidden_size: int) -> None:
        """`hidden_size`: both directions together. Drawn from torch's global generator."""
        super().__init__()
        self.width = hidden_size // 2 * 2
        self.lstm = nn.LSTM(
            width, hidden_size // 2, num_layers=LAYERS, bidirectional=True, batch_first=True
        )

    def forward(self, values_PH: Tensor, sizes: list[int]) -> Tensor:
        """[P, width]; each sequence is read for itself."""
        padded_BSH = pad_sequence(list(torch.split(values_PH, sizes)), batch_first=True)
        packed = pack_padded_sequence(
            padded_BSH, torch.tensor(sizes), batch_first=True, enforce_sorted=False
        )
        read_BSH, _ = pad_packed_sequence(self.lstm(packed)[0], batch_first=True)
        return torch.cat([row[:size] for row, size in zip(read_BSH, sizes, strict=True)])
