"""BERT's encoder over packed sequences.

In:  `PackedBatch`.
Out: one vector per token, and one per sequence.
"""

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from artifacts.errors import UsageError
from model.config import EncoderConfig
from model.encoder.attention import BACKENDS, Attend, backend_name
from model.encoder.batch import PackedBatch
from model.encoder.dropout import Noise, noise_from
from model.encoder.embeddings import Embeddings
from model.encoder.feed_forward import FeedForward
from model.encoder.lstm import LstmLayer, Reading
from model.encoder.self_attention import SelfAttention

# T tokens of all sequences together, B sequences, H width

SITE_ATTENTION, SITE_FEED_FORWARD = range(2)


class Encoder(nn.Module):
    """Embeddings, layers, pooler. Parameters are drawn from torch's global generator at birth."""

    def __init__(
        self,
        config: EncoderConfig,
        vocabulary_size: int,
        *,
        attention: str = "auto",
        checkpoint_activations: bool = False,
        fp8: bool = False,
    ) -> None:
        """`attention` names a backend; `checkpoint_activations` trades time for memory.

        `fp8`: the layers' products are FP8 (fp8_products.py); the encoder must be bfloat16.
        """
        super().__init__()
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.attention = attention
        self.checkpoint_activations = checkpoint_activations
        self.embeddings = Embeddings(config, vocabulary_size)
        self.layers = nn.ModuleList(
            LstmLayer(config) if config.layer_type == "lstm" else Layer(config, fp8=fp8)
            for _ in range(config.num_hidden_layers)
        )
        self.pooler = Pooler(config.hidden_size)
        initialise(self, deviation=config.initializer_range)

    @property
    def attention_backend(self) -> str:
        """Name of the attention in use on the device where the parameters are."""
        if self.config.layer_type == "lstm":
            return "none"
        words = self.embeddings.word_embeddings.weight
        return backend_name(self.attention, device=words.device, dtype=words.dtype)

    def forward(self, batch: PackedBatch, dropout_seed: int | None = None) -> Tensor:
        """Vectors of the last layer, [T, H].

        In training mode dropout is a function of `dropout_seed` (any int from 0 to 2^63-1); without
        one a seed is drawn from torch's global generator.
        """
        return self.hidden_states(batch, dropout_seed)[-1]

    def hidden_states(self, batch: PackedBatch, dropout_seed: int | None = None) -> list[Tensor]:
        """Vectors of the embeddings and of every layer, L + 1 tensors [T, H].

        On a CPU they are computed together with fillers, so that few shapes occur.
        """
        self._check(batch)
        noise = self._noise(dropout_seed)
        tokens = batch.tokens
        if batch.input_ids.device.type == "cpu":
            batch = batch.filled()
        mixing: Attend | Reading
        if self.config.layer_type == "lstm":
            mixing = Reading(batch, self.config)
        else:
            mixing = BACKENDS[self.attention_backend](batch, self.config)
        states = [self.embeddings(batch, noise and noise.at(0))]
        for number, layer in enumerate(self.layers, start=1):
            states.append(self._run(layer, states[-1], mixing, noise and noise.at(number)))
        return [state[:tokens] for state in states] if batch.tokens > tokens else states

    def compile_layers(self, *, graphs: bool = False) -> None:
        """Let torch compile the layers: one compilation for all of them and for all lengths.

        Pays on a GPU. On a CPU the layers are already single functions. `graphs`: they are replayed
        as CUDA graphs too, one for each shape, which is for training steps alone: without a way
        back, torch may write a layer's output over the one before.
        """
        options = {"triton.cudagraphs": True} if graphs else None
        for layer in self.layers:
            layer.compile(dynamic=True, options=options)

    def pooled(self, hidden_TH: Tensor, batch: PackedBatch) -> Tensor:
        """One vector per sequence, [B, H]."""
        first_BH = hidden_TH[batch.cu_seqlens[:-1].long()]
        pooled_BH: Tensor = self.pooler(first_BH)
        return pooled_BH

    def _run(
        self, layer: nn.Module, hidden_TH: Tensor, mixing: Attend | Reading, noise: Noise | None
    ) -> Tensor:
        if self.checkpoint_activations and self.training and torch.is_grad_enabled():
            # With the parameters of now: rounded ones are no longer the layer's on the way back.
            again: Tensor = checkpoint(
                torch.func.functional_call,
                layer,
                dict(layer.named_parameters()),
                (hidden_TH, mixing, noise),
                use_reentrant=False,
            )
            return again
        output_TH: Tensor = layer(hidden_TH, mixing, noise)
        return output_TH

    def _noise(self, dropout_seed: int | None) -> Noise | None:
        if not self.training:
            return None
        if dropout_seed is None:
            dropout_seed = int(torch.randint(1 << 62, ()))
        return noise_from(dropout_seed, self.embeddings.word_embeddings.weight.device)

    def _check(self, batch: PackedBatch) -> None:
        if batch.max_seqlen > self.config.max_position_embeddings:
            raise UsageError(
                f"a sequence of {batch.max_seqlen} tokens, but the encoder has "
                f"{self.config.max_position_embeddings} positions; cut the input, or raise "
                "encoder.max_position_embeddings"
            )


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


def initialise(module: nn.Module, *, deviation: float) -> None:
    """Draw every parameter of `module` from torch's global generator, in the order of the names.

    As the reference: weights truncated normal, biases zero, layer norms one and zero. Truncation at
    two sigma makes the true deviation 0.88 of the nominal one (modeling.py:375-377).
    """
    for name, parameter in sorted(module.named_parameters()):
        initialise_parameter(name, parameter, deviation=deviation)


def initialise_parameter(name: str, parameter: Tensor, *, deviation: float) -> None:
    """Draw one parameter by the role that its name tells."""
    if "bias" in name.rpartition(".")[2]:
        nn.init.zeros_(parameter)
    elif "layer_norm" in name:
        nn.init.ones_(parameter)
    else:
        nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
