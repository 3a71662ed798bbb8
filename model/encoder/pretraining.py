"""The encoder with its pre-training heads: masked LM and, for BERT, next sentence prediction.

In:  `PackedBatch` with masked positions and next-sentence labels.
Out: `PretrainingSums`: summed losses and correct predictions.

Summing lets the trainer divide by the counts of the global batch, so the loss does not depend on
how a batch is split (a documented departure: the reference averages per replica). Heads as in the
reference (run_pretraining.py:240-305).
"""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import EncoderConfig
from model.data.batch import NO_NEXT_SENTENCE, PackedBatch
from model.encoder.encoder import Encoder, initialise
from model.encoder.layers.feed_forward import activation
from model.encoder.operations.dropout import Noise
from model.encoder.operations.products import wide
from model.encoder.operations.residual import layer_norm
from model.encoder.pretraining_losses import PretrainingSums, hits, masked_lm_loss

# T tokens of all sequences, M masked tokens, B sequences, V vocabulary, H width


class PretrainingModel(nn.Module):
    """The encoder with pre-training heads: `BertForPreTraining` or `ModernBertForMaskedLM`."""

    def __init__(
        self,
        config: EncoderConfig,
        vocabulary_size: int,
        *,
        attention: str = "auto",
        checkpoint_activations: bool = False,
        fp8: bool = False,
    ) -> None:
        """Arguments as for `Encoder`."""
        super().__init__()
        self.encoder = Encoder(
            config,
            vocabulary_size,
            attention=attention,
            checkpoint_activations=checkpoint_activations,
            fp8=fp8,
        )
        self.masked_lm: MaskedLanguageModelHead | TiedDecoder
        self.next_sentence: NextSentenceHead | None = None
        if config.family == "modern":
            self.masked_lm = TiedDecoder(vocabulary_size)
        else:
            self.masked_lm = MaskedLanguageModelHead(config, vocabulary_size)
            self.next_sentence = NextSentenceHead(config.hidden_size)
        for head in (self.masked_lm, self.next_sentence):
            if head is not None:
                initialise(head, config)

    def forward(self, batch: PackedBatch, dropout: int | Noise | None = None) -> PretrainingSums:
        """Summed losses and correct predictions of a batch; M and B may be 0."""
        filled = batch.filled()
        hidden_TH = self.encoder(filled, dropout)
        loss, correct = masked_lm_loss(
            self._transformed(hidden_TH[filled.masked_lm_positions]),
            self.encoder.embeddings.word_embeddings.weight,
            self.masked_lm.output_bias,
            filled.masked_lm_ids,
        )
        if self.next_sentence is None:
            nothing = torch.zeros((), device=hidden_TH.device)
            return PretrainingSums(loss, nothing, correct, nothing.long())
        next_logits_B2 = self.next_sentence(self.encoder.pooled(hidden_TH, batch))
        return PretrainingSums(
            masked_lm_loss=loss,
            next_sentence_loss=functional.cross_entropy(
                wide(next_logits_B2),
                batch.next_sentence_label,
                ignore_index=NO_NEXT_SENTENCE,
                reduction="sum",
            ),
            masked_lm_correct=correct,
            next_sentence_correct=hits(next_logits_B2, batch.next_sentence_label),
        )

    def masked_lm_logits(self, hidden_TH: Tensor, positions_M: Tensor) -> Tensor:
        """Vocabulary logits at the given positions among the T tokens, [M, V]."""
        words_VH = self.encoder.embeddings.word_embeddings.weight
        transformed_MH = self._transformed(hidden_TH[positions_M])
        return functional.linear(transformed_MH, words_VH, self.masked_lm.output_bias)

    def _transformed(self, hidden_MH: Tensor) -> Tensor:
        """The vectors that are compared with the word embeddings, [M, H]."""
        return self.masked_lm.transformed(self.encoder.read_tokens(hidden_MH))


class MaskedLanguageModelHead(nn.Module):
    """Dense, GELU, layer norm; the output weights are tied to the word embeddings."""

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.output_bias = nn.Parameter(torch.empty(vocabulary_size))
        self.activation = config.hidden_act

    def transformed(self, hidden_MH: Tensor) -> Tensor:
        """The vectors that are compared with the word embeddings, [M, H]."""
        dense_MH = activation(self.transform(hidden_MH), self.activation)
        return layer_norm(
            dense_MH, self.layer_norm.weight, self.layer_norm.bias, self.layer_norm.eps
        )


class TiedDecoder(nn.Module):
    """Output bias of the modern family, whose transform is part of the encoder."""

    def __init__(self, vocabulary_size: int) -> None:
        super().__init__()
        self.output_bias = nn.Parameter(torch.empty(vocabulary_size))

    def transformed(self, hidden_MH: Tensor) -> Tensor:
        """The input unchanged, [M, H]."""
        return hidden_MH


class NextSentenceHead(nn.Module):
    """Classifies the second segment: 0 is the next one, 1 a random one."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, 2)

    def forward(self, pooled_BH: Tensor) -> Tensor:
        """Logits [B, 2]."""
        logits_B2: Tensor = self.output(pooled_BH)
        return logits_B2
