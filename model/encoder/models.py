"""The encoder, and the models that put heads on it.

In:  `PackedBatch`.
Out: `Encoder`: one vector per token, and one per sequence. `PretrainingModel`: `PretrainingSums`,
     summed losses and correct predictions of masked tokens and, for BERT, next sentences.
     `TaskModel`: fp32 logits of a linear layer. `SentenceModel`: vectors of whole sequences.

The encoder is BERT's (Devlin et al. 2019), or that of the modern family. Pre-training
heads are as in the reference (run_pretraining.py:240-305). Summing lets the trainer divide by the
counts of the global batch, so the loss does not depend on how a batch is split (a documented
departure: the reference averages per replica).

Initial values are also as in the reference: weights truncated normal, biases zero, layer norms one
and zero. Truncation at two sigma reduces the standard deviation to 0.88 of the nominal one
(modeling.py:375-377).
"""

import math
import pkgutil
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Literal, Protocol, Self

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from cloze.artifacts.errors import UsageError
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import NO_NEXT_SENTENCE, PackedBatch, on
from cloze.model.encoder.bert import Layer
from cloze.model.encoder.bilstm import BiLSTM
from cloze.model.encoder.comparison import FEATURES, packed_comparison
from cloze.model.encoder.embeddings import Embeddings
from cloze.model.encoder.losses import PretrainingSums, hits, masked_lm_loss
from cloze.model.encoder.modern import ModernLayer, PredictionHead
from cloze.model.encoder.operations.activation import APPROXIMATION
from cloze.model.encoder.operations.attention import BACKENDS, backend_name, layer_attention
from cloze.model.encoder.operations.dropout import Noise, dropout, noise_from
from cloze.model.encoder.operations.grouped_attention import Attend, attention_kernel
from cloze.model.encoder.operations.products import wide
from cloze.model.encoder.operations.residual import LayerNorm
from cloze.model.encoder.packed_layers import PackedLayers, packable
from cloze.model.encoder.scaled_linear import ScaledLinear

# T tokens of all sequences, P positions among them, M of them masked, B sequences, V vocabulary,
# H width

COMPILATIONS = 32
"""Maximum number of compilations of the layers; beyond it, torch runs them eagerly."""

HEAD_DROPOUT = 0.1
"""Before a classifier's head (reference: run_classifier.py:598)."""

HEAD_PLACE = 1 << 20
"""Address of the head's dropout, distinct from those of the encoder's layers."""

TRUNCATED = 0.8796
"""Standard deviation of a normal distribution that is truncated at two sigma."""

Pooling = Literal["mean", "cls", "pooler"]

HeadInput = Literal["pooler", "mean", "cls", "comparison"]
"""What a classifier reads of a sequence: the pooler's output; a vector of length 1; or the pooler's
output beside the features of both segments in comparison.py."""

OTHER_LAYERS = {"lstm": "cloze.paper.lstm:LstmLayer"}
"""Layers that stand beside the core, by `encoder.layer_type`: `module:class`, imported on first
use."""


class LayerClass(Protocol):
    """What such a class offers."""

    def __call__(self, config: EncoderConfig) -> nn.Module:
        """A layer: called with [T, H], its mixing and dropout noise, it returns [T, H]."""

    def mixing(self, batch: PackedBatch, config: EncoderConfig) -> object:
        """How the tokens of a batch interact, which all layers are given."""


Mixing = Attend | object
"""How the tokens of a batch interact in one layer: attention, or that of another kind of layer."""


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

        `fp8` computes the products of the layers in FP8 (products.py); the encoder must be
        bfloat16.
        """
        super().__init__()
        self.config = config
        self.vocabulary_size = vocabulary_size
        self.attention = attention
        self.checkpoint_activations = checkpoint_activations
        self._is_compiled = False
        self._packed: PackedLayers | None = None
        other = OTHER_LAYERS.get(config.layer_type)
        self._other: LayerClass | None = pkgutil.resolve_name(other) if other else None
        self.embeddings = Embeddings(config, vocabulary_size)
        self.layer_norm: LayerNorm | None = None
        width, depth = config.hidden_size, range(config.num_hidden_layers)
        if config.family == "modern":
            self.layers = nn.ModuleList(
                ModernLayer(config, is_first=not number) for number in depth
            )
            self.layer_norm = LayerNorm(width, eps=config.layer_norm_eps, bias=False)
            self.pooler: nn.Sequential = PredictionHead(config)
        else:
            self.layers = nn.ModuleList(
                self._other(config) if self._other else Layer(config, fp8=fp8) for _ in depth
            )
            dense = nn.Linear(width, width)  # reference: modeling.py:224-232
            self.pooler = nn.Sequential(OrderedDict(dense=dense, tanh=nn.Tanh()))
        initialise(self, config)

    @property
    def attention_backend(self) -> str:
        """Name of the attention backend used on the device of the parameters."""
        if self._other:
            return "none"
        words = self.embeddings.word_embeddings.weight
        return backend_name(self.attention, device=words.device, dtype=words.dtype)

    def attention_facts(self, dtype: torch.dtype) -> str:
        """The attention kernels used for `dtype` here, and the number of layers of each."""
        config = self.config
        if self._other:
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
        packed = self._packed_input(batch)
        if packed is not None:
            layers, hidden_TH = packed
            return layers.last(hidden_TH, batch)
        # Without gradients, only the state that a layer reads is held, not those of all layers.
        (last,) = deque(self._states(batch, dropout), maxlen=1)
        return last

    def _packed_input(self, batch: PackedBatch) -> tuple[PackedLayers, Tensor] | None:
        """The packed layers and their input, [T, H]; None if the modules themselves compute."""
        # Packed layers have no backward pass.
        words = self.embeddings.word_embeddings.weight
        if self._packed is None or torch.is_grad_enabled() or not self._packed.computes(words):
            return None
        self._check_length(batch)
        return self._packed, self.embeddings(batch, None)

    def _check_length(self, batch: PackedBatch) -> None:
        if batch.max_seqlen > self.config.max_position_embeddings:
            raise UsageError(
                f"a sequence of {batch.max_seqlen} tokens, but the encoder has "
                f"{self.config.max_position_embeddings} positions; truncate the input, or "
                "raise encoder.max_position_embeddings"
            )

    def hidden_states(self, batch: PackedBatch, dropout: int | Noise | None = None) -> list[Tensor]:
        """Vectors of the embeddings and of every layer, L + 1 tensors [T, H].

        The last one of a modern encoder is normalised.
        """
        return list(self._states(batch, dropout))

    def state_after(self, batch: PackedBatch, depth: int) -> Tensor:
        """Vectors after the first `depth` layers, [T, H]; the others are not computed."""
        return next(islice(self._states(batch, None), depth, None))

    def continued(self, state_TH: Tensor, batch: PackedBatch, depth: int) -> Tensor:
        """Vectors of the last layer, [T, H], from those after `depth` layers; without dropout."""
        filled = batch.filled()
        # Tokens of padding have vectors of 0: nothing reads them.
        padded = functional.pad(state_TH, (0, 0, 0, filled.tokens - batch.tokens))
        (last,) = deque(self._layer_states(padded, filled, batch.tokens, first=depth), maxlen=1)
        return last

    def _states(self, batch: PackedBatch, dropout: int | Noise | None) -> Iterator[Tensor]:
        """Vectors of the embeddings, then of one layer after the other, as they are computed.

        Padding sequences are appended to the batch, so that few distinct shapes occur.
        """
        packed = self._packed_input(batch)
        if packed is not None:
            layers, hidden_TH = packed
            yield from layers.states(hidden_TH, batch)
            return
        self._check_length(batch)
        noise = None
        if self.training:
            seed = int(torch.randint(1 << 62, ())) if dropout is None else dropout
            device = self.embeddings.word_embeddings.weight.device
            noise = seed if isinstance(seed, Noise) else noise_from(seed, device)
        # Addresses of dropout: 0 for the embeddings, then the layers from 1.
        filled = batch.filled()
        states = self._layer_states(
            self.embeddings(filled, noise and noise.at(0)), filled, batch.tokens, noise=noise
        )
        yield from states

    def _layer_states(
        self,
        state: Tensor,
        batch: PackedBatch,
        tokens: int,
        *,
        noise: Noise | None = None,
        first: int = 0,
    ) -> Iterator[Tensor]:
        """`state` and what each layer from `first` on makes of it, cut to the first `tokens`."""
        # Padding, up to a rung of the ladder or the GPU's bucket, is cut off again at the end.
        # What is appended are sequences of their own: no real token attends to them, so they change
        # nothing but the shape.
        is_filled = batch.tokens > tokens
        mixings: Sequence[Mixing]
        if self._other:
            mixings = [self._other.mixing(batch, self.config)] * len(self.layers)
        elif self.config.family == "modern":
            mixings = layer_attention(batch, self.config, backend=self.attention_backend)
        else:
            attend = BACKENDS[self.attention_backend](batch, self.config)
            mixings = [attend] * len(self.layers)
        # Mark these sizes before the first call: otherwise torch would compile for exactly this
        # batch, and again for the next.
        if self._is_compiled:
            held = [value for mixing in set(mixings) for value in vars(mixing).values()]
            _let_vary(batch.cu_seqlens, *(value for value in held if isinstance(value, Tensor)))
        for number in range(first, len(self.layers)):
            yield state[:tokens] if is_filled else state
            place = noise and noise.at(number + 1)
            state = self._run(self.layers[number], state, mixings[number], place)
        if self.layer_norm is not None:
            state = self.layer_norm(state)
        yield state[:tokens] if is_filled else state

    def pack(self, *, int8: bool = False) -> bool:
        """Pack the layers for inference on a CPU, if there are kernels for them; whether there are.

        Until `train`, parameters of the layers must not be changed: results without gradients would
        not follow. On another device or in another dtype, the layers are computed unpacked.
        """
        self._packed = None
        if packable(self.config, self.embeddings.word_embeddings.weight, int8=int8):
            self._packed = PackedLayers(self.layers, self.config, int8=int8)
        return self._packed is not None

    def train(self, mode: bool = True) -> Self:
        """As in torch; layers that are about to be trained are unpacked."""
        if mode:
            self._packed = None
        return super().train(mode)

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
        # sums in float32, whatever the dtype: a bfloat16 sum of hundreds of vectors stops growing
        if pooling == "mean":
            lengths_B = on(hidden_TH.device, torch.from_numpy(batch.lengths))
            sequence_T = torch.repeat_interleave(lengths_B, output_size=batch.tokens)
            sums_BH = hidden_TH.new_zeros(len(lengths_B), hidden_TH.shape[1], dtype=torch.float32)
            sums_BH = sums_BH.index_add(0, sequence_T, hidden_TH.float())
            return sums_BH / lengths_B[:, None]
        # [CLS] is the first token of each sequence.
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


def _let_vary(*tensors: Tensor) -> None:
    """Tell torch's compiler that the first dimension of each tensor is dynamic."""
    for tensor in tensors:
        torch._dynamo.maybe_mark_dynamic(tensor, 0)


class PretrainingModel(nn.Module):
    """The encoder with pre-training heads: `BertForPreTraining` or `ModernBertForMaskedLM`.

    The heads are initialised from torch's global generator.
    """

    def __init__(self, encoder: Encoder) -> None:
        super().__init__()
        self.encoder = encoder
        config = encoder.config
        self.masked_lm = MaskedLanguageModelHead(config, encoder.vocabulary_size)
        self.next_sentence: nn.Sequential | None = None
        if config.family == "bert":  # class 0: the second segment is the next one; 1: a random one
            output = nn.Linear(config.hidden_size, 2)
            self.next_sentence = nn.Sequential(OrderedDict(output=output))
        for head in (self.masked_lm, self.next_sentence):
            if head is not None:
                initialise(head, config)

    def forward(self, batch: PackedBatch, dropout: int | Noise | None = None) -> PretrainingSums:
        """Summed losses and correct predictions of a batch; M and B may be 0."""
        filled = batch.filled()
        hidden_TH = self.encoder(filled, dropout)
        # Only the M masked tokens pass through the head: the vocabulary's logits are the widest
        # product.
        loss, correct = masked_lm_loss(
            self._transformed(hidden_TH[filled.masked_lm_positions]),
            self.encoder.embeddings.word_embeddings.weight,
            self.masked_lm.output_bias,
            filled.masked_lm_ids,
        )
        if self.next_sentence is None:
            nothing = torch.zeros((), device=hidden_TH.device)
            return PretrainingSums(loss, nothing, correct, nothing.long())
        # `batch` rather than `filled`: no vectors for the padding sequences at the end.
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
        transformed_MH: Tensor = self.masked_lm(self.encoder.read_tokens(hidden_MH))
        return transformed_MH


class MaskedLanguageModelHead(nn.Sequential):
    """Dense, GELU, layer norm; the output weights are tied to the word embeddings.

    In the modern family the first three are part of the encoder, and the input is unchanged.
    """

    def __init__(self, config: EncoderConfig, vocabulary_size: int) -> None:
        super().__init__()
        if config.family == "bert":
            self.transform = nn.Linear(config.hidden_size, config.hidden_size)
            self.activation = nn.GELU(APPROXIMATION[config.hidden_act])
            self.layer_norm = LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.output_bias = nn.Parameter(torch.empty(vocabulary_size))


class TaskModel(nn.Module):
    """The encoder and one linear layer, optionally with a BiLSTM between them.

    The head is initialised from torch's global generator.
    """

    def __init__(
        self,
        encoder: Encoder,
        *,
        outputs: int,
        head_dropout: bool = True,
        bilstm: bool = False,
        pooling: HeadInput = "pooler",
    ) -> None:
        """`pooling`: what the head reads of a sequence."""
        super().__init__()
        self.encoder = encoder
        self.pooling: HeadInput = pooling
        parts = 1 + FEATURES if pooling == "comparison" else 1
        self.head = ScaledLinear(parts * encoder.config.hidden_size, outputs)
        self.head_dropout = HEAD_DROPOUT if head_dropout else 0.0
        initialise(self.head, encoder.config)
        width = encoder.config.hidden_size
        self.bilstm = BiLSTM(width, width) if bilstm else None

    def forward(
        self, batch: PackedBatch, positions: Tensor | None, dropout_seed: int | None = None
    ) -> Tensor:
        """Logits of the pooled sequences, or of the tokens at `positions`; [rows, outputs] fp32."""
        read = self.read(batch, positions, dropout_seed)
        noise = Noise((dropout_seed, HEAD_PLACE)) if dropout_seed is not None else None
        logits: Tensor = self.head(dropout(read, self.head_dropout, noise))
        return logits.float()

    def read(
        self,
        batch: PackedBatch,
        positions: Tensor | None = None,
        dropout_seed: int | None = None,
    ) -> Tensor:
        """What the head reads, [rows, H]; with a comparison [rows, 5 H]."""
        hidden_TH = self.encoder(batch, dropout_seed)
        if self.bilstm is not None:
            hidden_TH = self.bilstm(hidden_TH, batch.lengths.tolist())
        if positions is not None:
            return self.encoder.read_tokens(hidden_TH[positions])
        if self.pooling in ("mean", "cls"):
            vectors = self.encoder.pooled(hidden_TH, batch, pooling=self.pooling)
            return functional.normalize(vectors.float(), dim=-1).to(hidden_TH.dtype)
        if self.encoder.config.attention_direction != "left_to_right":
            pooled = self.encoder.pooled(hidden_TH, batch)
        else:  # only the last token attends to the whole sequence, as in OpenAI GPT
            pooled = self.encoder.pooler(hidden_TH[batch.cu_seqlens[1:].long() - 1])
        if self.pooling == "pooler":
            return pooled
        table = self.encoder.embeddings.word_embeddings.weight
        words_TH = functional.embedding(batch.input_ids, table)
        compared = packed_comparison(hidden_TH, words_TH, batch)
        return torch.cat((pooled, compared.to(pooled.dtype)), dim=-1)


class SentenceModel(nn.Module):
    """The encoder alone, for comparing vectors of whole sequences (Reimers, Gurevych 2019)."""

    bilstm = None

    def __init__(self, encoder: Encoder, *, pooling: Literal["mean", "cls"] = "mean") -> None:
        super().__init__()
        self.encoder = encoder
        self.pooling: Literal["mean", "cls"] = pooling

    def forward(
        self, batch: PackedBatch, positions: Tensor | None, dropout_seed: int | None = None
    ) -> Tensor:
        """Vectors of length 1, [B, H] fp32; `positions` is None."""
        hidden_TH = self.encoder(batch, dropout_seed)
        return functional.normalize(
            self.encoder.pooled(hidden_TH, batch, pooling=self.pooling).float(), dim=-1
        )


def initialise(module: nn.Module, config: EncoderConfig) -> None:
    """Initialise every parameter of `module`, in order of names."""
    for name, parameter in sorted(module.named_parameters()):
        initialise_parameter(name, parameter, config)


def initialise_parameter(name: str, parameter: Tensor, config: EncoderConfig) -> None:
    """Initialise one parameter according to its role, given by its name.

    In the modern family, weights that write to the residual stream are scaled down with the number
    of layers (Warner et al. 2024, A.2).
    """
    deviation = config.initializer_range
    # Both halves of a layer end in `output_weight`; the prediction head's dense layer follows suit.
    if config.family == "modern" and name.endswith(("output_weight", "pooler.dense.weight")):
        deviation /= math.sqrt(2 * config.num_hidden_layers)
    # Biases first: a norm's bias is called `layer_norm_bias`.
    if "bias" in name.rpartition(".")[2]:
        nn.init.zeros_(parameter)
    elif "layer_norm" in name:
        nn.init.ones_(parameter)
    else:
        nn.init.trunc_normal_(parameter, std=deviation, a=-2 * deviation, b=2 * deviation)


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
