"""The encoder over packed sequences: BERT (Devlin et al. 2019), or the modern family.

In:  `PackedBatch`.
Out: one vector per token, and one per sequence.

The gradient of an embedding row is summed over all tokens that use it; in bfloat16 such a sum stops
growing after a few hundred terms (every token uses a segment row). On a CPU it is therefore
computed in float32, and only for the rows in use.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from artifacts.errors import UsageError
from model.config import EncoderConfig
from model.data.batch import PackedBatch, on
from model.encoder.layers.feed_forward import FeedForward
from model.encoder.layers.lstm import LstmLayer, Reading
from model.encoder.layers.modern import ModernLayer, PredictionHead
from model.encoder.layers.self_attention import SelfAttention
from model.encoder.operations.attention import (
    BACKENDS,
    Attend,
    LayerAttention,
    backend_name,
    layer_attention,
)
from model.encoder.operations.autograd import Context, apply
from model.encoder.operations.dropout import Noise, dropout, noise_from
from model.encoder.operations.grouped_attention import attention_kernel
from model.encoder.operations.products import wide
from model.encoder.operations.residual import layer_norm

# T tokens of all sequences, P positions among them, B sequences, H width, N rows of a table,
# U of them in use

SITE_ATTENTION, SITE_FEED_FORWARD = range(2)

COMPILATIONS = 32
"""Maximum number of compilations of the layers; beyond it, torch runs them eagerly."""

Pooling = Literal["mean", "cls", "pooler"]

Mixing = Attend | LayerAttention | Reading
"""How the tokens of a batch interact, in BERT, modern and LSTM layers."""


class Encoder(nn.Module):
    """Embeddings, layers, pooler. Parameters are initialised from torch's global generator."""

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

        `fp8` computes the products of the layers in FP8 (fp8_products.py); the encoder must be
        bfloat16.
        """
        super().__init__()
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.attention = attention
        self.checkpoint_activations = checkpoint_activations
        self._is_compiled = False
        self.embeddings: Embeddings | TokenEmbeddings
        self.pooler: Pooler | PredictionHead
        self.layer_norm: nn.LayerNorm | None = None
        depth = range(config.num_hidden_layers)
        if config.family == "modern":
            self.embeddings = TokenEmbeddings(config, vocabulary_size)
            self.layers = nn.ModuleList(ModernLayer(config, number) for number in depth)
            self.layer_norm = nn.LayerNorm(
                config.hidden_size, eps=config.layer_norm_eps, bias=False
            )
            self.pooler = PredictionHead(config)
        else:
            self.embeddings = Embeddings(config, vocabulary_size)
            self.layers = nn.ModuleList(
                LstmLayer(config) if config.layer_type == "lstm" else Layer(config, fp8=fp8)
                for _ in depth
            )
            self.pooler = Pooler(config.hidden_size)
        initialise(self, config)

    @property
    def attention_backend(self) -> str:
        """Name of the attention backend used on the device of the parameters."""
        if self.config.layer_type == "lstm":
            return "none"
        words = self.embeddings.word_embeddings.weight
        return backend_name(self.attention, device=words.device, dtype=words.dtype)

    def attention_facts(self, dtype: torch.dtype) -> str:
        """The attention kernels used for `dtype` here, and the number of layers of each."""
        config = self.config
        if config.layer_type == "lstm":
            return "attention=none"
        device = self.embeddings.word_embeddings.weight.device
        name = local_name = backend_name(self.attention, device=device, dtype=dtype)
        if name == "grouped":
            width = config.hidden_size // config.num_attention_heads
            has_kernel = attention_kernel(device, dtype, width=width) is not None
            name, local_name = ("kernel", "kernel") if has_kernel else ("grouped", "blocks")
        if config.family == "bert":
            return f"attention={name} layers={config.num_hidden_layers}"
        local = config.num_hidden_layers - config.global_layers
        return (
            f"attention={name} layers={config.global_layers} "
            f"local_attention={local_name} "
            f"reach={config.local_attention // 2} local_layers={local}"
        )

    def forward(self, batch: PackedBatch, dropout: int | Noise | None = None) -> Tensor:
        """Vectors of the last layer, [T, H].

        In training mode, dropout depends only on the seed `dropout` (from 0 to 2^63-1) or on that
        noise; without either, a seed is drawn from torch's global generator.
        """
        return self.hidden_states(batch, dropout)[-1]

    def hidden_states(self, batch: PackedBatch, dropout: int | Noise | None = None) -> list[Tensor]:
        """Vectors of the embeddings and of every layer, L + 1 tensors [T, H].

        The last one of a modern encoder is normalised. Padding sequences are appended to the batch,
        so that few distinct shapes occur.
        """
        if batch.max_seqlen > self.config.max_position_embeddings:
            raise UsageError(
                f"a sequence of {batch.max_seqlen} tokens, but the encoder has "
                f"{self.config.max_position_embeddings} positions; truncate the input, or "
                "raise encoder.max_position_embeddings"
            )
        noise = None
        if self.training:
            seed = int(torch.randint(1 << 62, ())) if dropout is None else dropout
            device = self.embeddings.word_embeddings.weight.device
            noise = seed if isinstance(seed, Noise) else noise_from(seed, device)
        tokens = batch.tokens
        batch = batch.filled()
        mixing: Mixing
        if self.config.layer_type == "lstm":
            mixing = Reading(batch, self.config)
        elif self.config.family == "modern":
            mixing = layer_attention(batch, self.config, backend=self.attention_backend)
        else:
            mixing = BACKENDS[self.attention_backend](batch, self.config)
        if self._is_compiled:
            attentions = mixing if isinstance(mixing, LayerAttention) else (mixing,)
            held = [value for attention in attentions for value in vars(attention).values()]
            _let_vary(batch.cu_seqlens, *(value for value in held if isinstance(value, Tensor)))
        states = [self.embeddings(batch, noise and noise.at(0))]
        for number, layer in enumerate(self.layers, start=1):
            states.append(self._run(layer, states[-1], mixing, noise and noise.at(number)))
        if self.layer_norm is not None:
            norm = self.layer_norm
            states[-1] = layer_norm(states[-1], norm.weight, None, norm.eps)
        return [state[:tokens] for state in states] if batch.tokens > tokens else states

    def compile_layers(self) -> None:
        """Compile the layers with torch: one compilation for all layers and lengths.

        Worthwhile on a GPU; on a CPU, each half of a layer is already a single function. Only the
        number of tokens is dynamic: matrix products come from libraries anyway, other kernels use
        it only for their grid, and compiling for every rung of the ladder would take a minute.
        """
        self._is_compiled = True
        # The default of 8 is too low for kinds of layers × gradients on or off × lengths.
        torch._dynamo.config.recompile_limit = COMPILATIONS
        for layer in self.layers:
            layer.compile()

    def pooled(
        self, hidden_TH: Tensor, batch: PackedBatch, *, pooling: Pooling = "pooler"
    ) -> Tensor:
        """One vector per sequence, [B, H], computed from its token vectors.

        `mean` averages them in fp32, `cls` takes the first, `pooler` applies the trained layer to
        it.
        """
        if pooling == "mean":
            lengths_B = on(hidden_TH.device, torch.from_numpy(batch.lengths))
            sequence_T = torch.repeat_interleave(lengths_B, output_size=batch.tokens)
            sums_BH = hidden_TH.new_zeros(len(lengths_B), hidden_TH.shape[1], dtype=torch.float32)
            sums_BH = sums_BH.index_add(0, sequence_T, hidden_TH.float())
            return sums_BH / lengths_B[:, None]
        first_BH = hidden_TH[batch.cu_seqlens[:-1].long()]
        if pooling == "cls":
            return first_BH
        pooled_BH: Tensor = self.pooler(first_BH)
        return pooled_BH

    def read_tokens(self, hidden_PH: Tensor) -> Tensor:
        """Inputs of token-level heads, [P, H]; `modern` applies its prediction head first."""
        if self.config.family == "bert":
            return hidden_PH
        read_PH: Tensor = self.pooler(hidden_PH)
        return read_PH

    def _run(
        self, layer: nn.Module, hidden_TH: Tensor, mixing: Mixing, noise: Noise | None
    ) -> Tensor:
        if self.checkpoint_activations and self.training and torch.is_grad_enabled():
            # Pass the current parameters: the rounded copies are gone by the time of the backward
            # pass.
            again: Tensor = checkpoint(
                torch.func.functional_call,
                layer,
                dict(layer.named_parameters()),
                (hidden_TH, mixing, noise),
                use_reentrant=False,
            )
            return again
        if self._is_compiled:
            _let_vary(hidden_TH)
        output_TH: Tensor = layer(hidden_TH, mixing, noise)
        return output_TH


class Embeddings(nn.Module):
    """Sum of word, segment and position embeddings, with layer norm and dropout."""

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(vocabulary_size, width)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps)
        self.dropout_prob = config.hidden_dropout_prob

    def forward(self, batch: PackedBatch, noise: Noise | None) -> Tensor:
        """[T, H]."""
        embedded_TH = (
            look_up(self.word_embeddings.weight, batch.input_ids)
            + look_up(self.position_embeddings.weight, batch.position_ids)
            + look_up(self.token_type_embeddings.weight, batch.token_type_ids)
        )
        norm = self.layer_norm
        normalised_TH = layer_norm(embedded_TH, norm.weight, norm.bias, norm.eps)
        return dropout(normalised_TH, self.dropout_prob, noise)


class TokenEmbeddings(nn.Module):
    """Embeddings of the modern family: words only, with layer norm without bias.

    With `positions = "learned"`, position embeddings are added.
    """

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(vocabulary_size, width)
        self.position_embeddings: nn.Embedding | None = None
        if config.positions == "learned":
            self.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.layer_norm = nn.LayerNorm(width, eps=config.layer_norm_eps, bias=False)

    def forward(self, batch: PackedBatch, noise: Noise | None) -> Tensor:
        """[T, H]; no dropout."""
        embedded_TH = look_up(self.word_embeddings.weight, batch.input_ids)
        if self.position_embeddings is not None:
            embedded_TH = embedded_TH + look_up(self.position_embeddings.weight, batch.position_ids)
        return layer_norm(embedded_TH, self.layer_norm.weight, None, self.layer_norm.eps)


def look_up(table_NH: Tensor, ids_T: Tensor) -> Tensor:
    """The rows `ids_T` of a table, [T, H]."""
    if table_NH.device.type == "cpu":
        return apply(_LookUp, table_NH, ids_T)
    return functional.embedding(ids_T, table_NH)


class _LookUpContext(Context):
    rows: int


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: _LookUpContext, table_NH: Tensor, ids_T: Tensor) -> Tensor:
        ctx.save_for_backward(ids_T)
        ctx.rows = table_NH.shape[0]
        return functional.embedding(ids_T, table_NH)

    @staticmethod
    def backward(ctx: _LookUpContext, gradient_TH: Tensor) -> tuple[Tensor, None]:
        (ids_T,) = ctx.saved_tensors
        used_U, place_T = torch.unique(ids_T, return_inverse=True)
        sums_UH = torch.ops.aten.embedding_dense_backward(
            wide(gradient_TH), place_T, len(used_U), -1, False
        )
        table_gradient_NH = gradient_TH.new_zeros(ctx.rows, gradient_TH.shape[1])
        table_gradient_NH[used_U] = sums_UH.to(gradient_TH.dtype)
        return table_gradient_NH, None


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
    """Dense layer and tanh on the first token's vector (reference: modeling.py:224-232)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, first_BH: Tensor) -> Tensor:
        """[B, H]."""
        return torch.tanh(self.dense(first_BH))


def _let_vary(*tensors: Tensor) -> None:
    """Tell torch's compiler that the first dimension of each tensor is dynamic."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


class _NothingDrawn(TorchFunctionMode):
    """Skips the initialisation that torch's modules perform."""

    def __torch_function__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        """The tensor unchanged if `func` would initialise it."""
        if getattr(func, "__module__", "") == nn.init.__name__:
            return args[0] if args else (kwargs or {})["tensor"]
        return func(*args, **(kwargs or {}))


@contextmanager
def shapes_alone() -> Iterator[None]:
    """Modules created inside live on the meta device: names and shapes, without values.

    Their initialisation is skipped too: on the meta device, torch imports its compiler for it,
    which takes seconds.
    """
    with torch.device("meta"), _NothingDrawn():
        yield


def initialise(module: nn.Module, config: EncoderConfig) -> None:
    """Initialise every parameter of `module` from torch's global generator, in order of names.

    As in the reference: weights truncated normal, biases zero, layer norms one and zero. Truncation
    at two sigma reduces the standard deviation to 0.88 of the nominal one (modeling.py:375-377).
    """
    for name, parameter in sorted(module.named_parameters()):
        initialise_parameter(name, parameter, config)


def initialise_parameter(name: str, parameter: Tensor, config: EncoderConfig) -> None:
    """Initialise one parameter according to its role, given by its name.

    In the modern family, weights that write to the residual stream are scaled down with the number
    of layers (Warner et al. 2024, A.2).
    """
    deviation = config.initializer_range
    if config.family == "modern" and name.endswith(("output_weight", "pooler.dense.weight")):
        deviation /= math.sqrt(2 * config.num_hidden_layers)
    if "bias" in name.rpartition(".")[2]:
        nn.init.zeros_(parameter)
    elif "layer_norm" in name:
        nn.init.ones_(parameter)
    else:
        nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)
