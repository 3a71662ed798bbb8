"""The encoder with both pre-training heads: masked language model and next sentence.

In:  `PackedBatch` with masked positions and next-sentence labels.
Out: `PretrainingSums`: losses and hits summed, not averaged.

Sums let the trainer divide by the counts of the global batch, so that the loss does not depend on
how a batch is cut (a documented departure: the reference averages per replica).
"""

from typing import NamedTuple

from torch import Tensor, nn
from torch.nn import functional

from model.config import EncoderConfig
from model.encoder.autograd import wide
from model.encoder.batch import NO_NEXT_SENTENCE, PackedBatch
from model.encoder.encoder import Encoder
from model.encoder.heads import MaskedLanguageModelHead, NextSentenceHead
from model.encoder.initialisation import initialise
from model.encoder.masked_lm_loss import hits, masked_lm_loss

# T tokens of all sequences together, M masked tokens, B sequences, V vocabulary


class PretrainingSums(NamedTuple):
    """Sums over one micro-batch; all are scalars on the model's device."""

    masked_lm_loss: Tensor
    """float32: cross-entropy in nats, summed over the M masked tokens."""

    next_sentence_loss: Tensor
    """float32: cross-entropy in nats, summed over the sequences that have a label."""

    masked_lm_correct: Tensor
    """int64: masked tokens whose most likely word-piece is the right one."""

    next_sentence_correct: Tensor
    """int64: sequences whose more likely class is the right one."""


class PretrainingModel(nn.Module):
    """BERT as it is pre-trained; Hugging Face calls it `BertForPreTraining`."""

    def __init__(
        self,
        config: EncoderConfig,
        vocabulary_size: int,
        *,
        attention: str = "auto",
        checkpoint_activations: bool = False,
    ) -> None:
        """Arguments as for `Encoder`."""
        super().__init__()
        self.encoder = Encoder(
            config,
            vocabulary_size,
            attention=attention,
            checkpoint_activations=checkpoint_activations,
        )
        self.masked_lm = MaskedLanguageModelHead(config, vocabulary_size)
        self.next_sentence = NextSentenceHead(config.hidden_size)
        for head in (self.masked_lm, self.next_sentence):
            initialise(head, deviation=config.initializer_range)

    def forward(self, batch: PackedBatch, dropout_seed: int | None = None) -> PretrainingSums:
        """Loss sums and hits of a batch whose M and B may be anything from 0 up."""
        hidden_TH = self.encoder(batch, dropout_seed)
        masked_lm = masked_lm_loss(
            self.masked_lm.transformed(hidden_TH[batch.masked_lm_positions]),
            self.encoder.embeddings.word_embeddings.weight,
            self.masked_lm.output_bias,
            batch.masked_lm_ids,
        )
        next_logits_B2 = self.next_sentence(self.encoder.pooled(hidden_TH, batch))
        return PretrainingSums(
            masked_lm_loss=masked_lm.loss,
            next_sentence_loss=functional.cross_entropy(
                wide(next_logits_B2),
                batch.next_sentence_label,
                ignore_index=NO_NEXT_SENTENCE,
                reduction="sum",
            ),
            masked_lm_correct=masked_lm.correct,
            next_sentence_correct=hits(next_logits_B2, batch.next_sentence_label),
        )

    def masked_lm_logits(self, hidden_TH: Tensor, positions_M: Tensor) -> Tensor:
        """Scores of every word-piece at the given places of the T tokens, [M, V]."""
        words_VH = self.encoder.embeddings.word_embeddings.weight
        logits_MV: Tensor = self.masked_lm(hidden_TH[positions_M], words_VH)
        return logits_MV
