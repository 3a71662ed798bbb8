"""One transformer layer, post-LN: attention, then feed-forward (reference: transformer_model)."""

from torch import Tensor, nn

from model.config import EncoderConfig
from model.encoder.attention import Attend
from model.encoder.dropout import Noise
from model.encoder.feed_forward import FeedForward
from model.encoder.self_attention import SelfAttention

# T tokens of all sequences together, H width

SITE_ATTENTION, SITE_FEED_FORWARD = range(2)


class Layer(nn.Module):
    """[T, H] to [T, H]."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.attention = SelfAttention(config)
        self.feed_forward = FeedForward(config)

    def forward(self, hidden_TH: Tensor, attend: Attend, noise: Noise | None) -> Tensor:
        """[T, H]."""
        attended_TH = self.attention(hidden_TH, attend, noise and noise.at(SITE_ATTENTION))
        output_TH: Tensor = self.feed_forward(attended_TH, noise and noise.at(SITE_FEED_FORWARD))
        return output_TH
