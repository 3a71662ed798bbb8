"""BERT's layer and pooler (Devlin et al. 2019).

In:  [T, H]; the attention of the batch.
Out: [T, H]; one vector per sequence, [B, H].
"""

import torch
from torch import Tensor, nn

from model.config import EncoderConfig
from model.encoder.layers.feed_forward import FeedForward
from model.encoder.layers.self_attention import SelfAttention
from model.encoder.operations.attention import Attend
from model.encoder.operations.dropout import Noise

# T tokens of all sequences together, B sequences, H width

SITE_ATTENTION, SITE_FEED_FORWARD = range(2)


class Layer(nn.Module):
    """One transformer layer, post-LN: attention, then feed-forward; [T, H] to [T, H]."""

    def __init__(self, config: EncoderConfig, *, fp8: bool = False) -> None:
        super().__init__()
        self.attention = SelfAttention(config, fp8=fp8)
        self.feed_forward = FeedForward(config, fp8=fp8)

    def forward(self, hidden_TH: Tensor, attend: Attend, noise: Noise | None) -> Tensor:
        """[T, H]."""
        attended_TH = self.attention(hidden_TH, attend, noise and noise.at(SITE_ATTENTION))
        output_TH: Tensor = self.feed_forward(attended_TH, noise and noise.at(SITE_FEED_FORWARD))
        return output_TH


class Pooler(nn.Module):
    """The first token's vector through a dense layer and tanh (reference: modeling.py:224-232)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, first_BH: Tensor) -> Tensor:
        """[B, H]."""
        return torch.tanh(self.dense(first_BH))
