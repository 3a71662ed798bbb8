"""An encoder with a task's head.

In:  packed sequences, and the places whose vectors the head reads.
Out: logits in fp32.
"""

from torch import Tensor, nn

from model.encoder.batch import PackedBatch
from model.encoder.dropout import Noise, dropout
from model.encoder.encoder import Encoder, initialise
from model.finetune.bilstm import BiLSTM

HEAD_DROPOUT = 0.1
"""Before a classifier's head (reference: run_classifier.py:598)."""

HEAD_PLACE = 1 << 20
"""Address of the head's dropout, out of reach of the encoder's layers."""


class TaskModel(nn.Module):
    """The encoder and one linear layer, with a BiLSTM between them where it is wanted.

    What is not the encoder's is drawn from torch's global generator.
    """

    def __init__(
        self, encoder: Encoder, *, outputs: int, head_dropout: bool = True, bilstm: bool = False
    ) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, outputs)
        self.head_dropout = HEAD_DROPOUT if head_dropout else 0.0
        initialise(self.head, deviation=encoder.config.initializer_range)
        width = encoder.config.hidden_size
        self.bilstm = BiLSTM(width, width) if bilstm else None

    def forward(
        self, batch: PackedBatch, positions: Tensor | None, dropout_seed: int | None = None
    ) -> Tensor:
        """Logits of the pooled sequences, or of the tokens at `positions`; [rows, outputs] fp32."""
        hidden_TH = self.encoder(batch, dropout_seed)
        if self.bilstm is not None:
            hidden_TH = self.bilstm(hidden_TH, batch.lengths.tolist())
        read = self._pooled(hidden_TH, batch) if positions is None else hidden_TH[positions]
        noise = Noise((dropout_seed, HEAD_PLACE)) if dropout_seed is not None else None
        logits: Tensor = self.head(dropout(read, self.head_dropout, noise))
        return logits.float()

    def _pooled(self, hidden_TH: Tensor, batch: PackedBatch) -> Tensor:
        """The vector of the token that has seen the whole sequence, through the pooler.

        Left to right that is the last one, as in OpenAI GPT; [CLS] would have seen only itself.
        """
        if self.encoder.config.attention_direction != "left_to_right":
            return self.encoder.pooled(hidden_TH, batch)
        last_BH = hidden_TH[batch.cu_seqlens[1:].long() - 1]
        pooled_BH: Tensor = self.encoder.pooler(last_BH)
        return pooled_BH
