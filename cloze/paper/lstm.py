"""Unidirectional LSTM layers, as in ELMo's language models, with which the paper compares.

In:  [T, H]; the sequence lengths and the reading direction.
Out: [T, H].

As in Peters et al. 2018, 3.4, each layer projects its cells to the width of the encoder and adds
its input to its output. Two encoders, trained separately for the two directions, are combined for
feature-based tasks (`finetune.second_encoder`).
"""

from torch import Tensor, nn

from cloze.model.config import EncoderConfig
from cloze.model.data.batch import PackedBatch
from cloze.model.encoder.bilstm import run_lstm
from cloze.model.encoder.operations.dropout import Noise, dropout

# T tokens of all sequences, H width


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
        # The reversal of each sequence is its own inverse.
        return run_lstm(lstm, hidden_TH[self.reversal], self.sizes)[self.reversal]


class LstmLayer(nn.Module):
    """One layer; [T, H] to [T, H]."""

    mixing = Reading

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
