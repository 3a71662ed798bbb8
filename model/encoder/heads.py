"""The two heads of pre-training (reference: run_pretraining.py:240-305)."""

import torch
from torch import Tensor, nn
from torch.nn import functional

from model.config import EncoderConfig
from model.encoder.activation import activation
from model.encoder.residual import layer_norm

# M masked tokens, B sequences, V vocabulary, H width


class Pooler(nn.Module):
    """The first token's vector through a dense layer and tanh (reference: modeling.py:224-232)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, first_BH: Tensor) -> Tensor:
        """[B, H]."""
        return torch.tanh(self.dense(first_BH))


class MaskedLanguageModelHead(nn.Module):
    """Dense, GELU, layer norm; then one score per word-piece by the word embeddings themselves."""

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.transform = nn.Linear(config.hidden_size, config.hidden_size)
        self.layer_norm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.output_bias = nn.Parameter(torch.empty(vocabulary_size))
        self.activation = config.hidden_act

    def forward(self, hidden_MH: Tensor, word_embeddings_VH: Tensor) -> Tensor:
        """Logits [M, V]."""
        return functional.linear(self.transformed(hidden_MH), word_embeddings_VH, self.output_bias)

    def transformed(self, hidden_MH: Tensor) -> Tensor:
        """What is compared with the word embeddings, [M, H]."""
        dense_MH = activation(self.transform(hidden_MH), self.activation)
        return layer_norm(
            dense_MH, self.layer_norm.weight, self.layer_norm.bias, self.layer_norm.eps
        )


class NextSentenceHead(nn.Module):
    """Whether the second segment follows the first: class 0 is next, class 1 random."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, 2)

    def forward(self, pooled_BH: Tensor) -> Tensor:
        """Logits [B, 2]."""
        logits_B2: Tensor = self.output(pooled_BH)
        return logits_B2
