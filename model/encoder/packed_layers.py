"""The layers of a BERT encoder for inference on a CPU: packed once, computed in one call.

In:  the layers, whose parameters do not change any more; [T, H] from the embeddings, and the batch.
Out: [T, H], the output of the last layer; or [L + 1, T, H], input and output of every layer.

`Layer` multiplies by weights as they are stored, so a product first copies them into the order in
which it reads them; of a single sentence that is most of the time. Here they are copied when a
model is loaded. A batch needs no padding, because no library generates code for its shape.

In int8, every column of a weight has a scale of its own, and every token a scale and an offset for
each product. Sums, bias, GELU and norms are float32; what is between them, and the products of
attention, is bfloat16 where the processor multiplies that. Embeddings are not quantised.
"""

import threading
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from cloze.artifacts.arrays import starts_of
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import PackedBatch
from cloze.model.encoder.bert import Layer, side_by_side
from cloze.model.encoder.operations.grouped_attention import WIDEST, sight_of
from cloze.model.encoder.operations.native_kernels import kernels
from cloze.model.encoder.operations.products import TILE

# L layers, T tokens of all sequences, H width, I intermediate width; a dense layer's depth and
# number of columns


def packable(config: EncoderConfig, parameter: Tensor, *, int8: bool = False) -> bool:
    """Whether there are kernels for layers of this shape with parameters such as this one.

    With tile units (AMX), bfloat16 products are the library's, which uses them.
    """
    native = kernels(parameter.dtype) if parameter.is_cpu else None
    heads, width = config.num_attention_heads, config.hidden_size
    return (
        native is not None
        and (int8 or not native.has_tiles)
        and config.family == "bert"
        and config.layer_type == "transformer"
        and not (width | config.intermediate_size) % TILE
        and width // heads <= WIDEST
    )


class PackedLayers:
    """Layers in the order of the kernel. They do not follow later changes of the modules."""

    def __init__(self, layers: Iterable[nn.Module], config: EncoderConfig, *, int8: bool) -> None:
        """Layers that are `packable`."""
        self.config, self.int8 = config, int8
        with torch.no_grad():
            known = [layer for layer in layers if isinstance(layer, Layer)]
            self._parts = [list(_parts(layer, int8=int8)) for layer in known]
            self.dtype = known[0].attention.output_weight.dtype
        self.state_dtype = _int8_states(self.dtype) if int8 else self.dtype

    @cached_property
    def _addresses(self) -> Tensor:
        """Of all parts."""
        # Valid only while `_parts` keeps the tensors alive, and only in this process.
        found = [[0 if part is None else part.data_ptr() for part in row] for row in self._parts]
        return torch.tensor(found)

    def __getstate__(self) -> dict[str, object]:
        """For copies, whose parts have addresses of their own."""
        return {name: value for name, value in vars(self).items() if name != "_addresses"}

    def computes(self, parameter: Tensor) -> bool:
        """Whether `last` and `states` may be called: not if disabled, or moved or cast since."""
        enabled = kernels(self.state_dtype) is not None
        return enabled and parameter.is_cpu and parameter.dtype == self.dtype

    def last(self, hidden_TH: Tensor, batch: PackedBatch) -> Tensor:
        """[T, H] of the dtype of `hidden_TH`, which is overwritten; without gradients."""
        state_TH = hidden_TH.to(self.state_dtype).contiguous()
        self._encode(state_TH, batch, is_kept=False)
        return state_TH.to(self.dtype)

    def states(self, hidden_TH: Tensor, batch: PackedBatch) -> Tensor:
        """[L + 1, T, H] of the dtype of `hidden_TH`, without gradients."""
        depth, dtype = len(self._parts), self.state_dtype
        states = torch.empty(depth + 1, *hidden_TH.shape, dtype=dtype)
        states[0] = hidden_TH
        self._encode(states, batch, is_kept=True)
        return states.to(self.dtype)

    def _encode(self, states: Tensor, batch: PackedBatch, *, is_kept: bool) -> None:
        """Call the kernel, whose input is at the beginning of `states`."""
        native = kernels(self.state_dtype)
        assert native is not None
        config, (tokens, width) = self.config, states.shape[-2:]
        sizes = width, config.intermediate_size, config.num_attention_heads
        lengths = batch.lengths
        # As in `GroupedAttention`, without dropout.
        starts, unused = starts_of(lengths), np.zeros_like(lengths)
        places = torch.from_numpy(np.stack((starts, lengths, unused, unused)))
        native(
            "encode",
            *(len(self._parts), self._addresses, *sizes, config.layer_norm_eps),
            *(int(config.hidden_act == "gelu_tanh"), int(self.int8), int(is_kept)),
            *(len(lengths), places, tokens, *sight_of(config), states),
            _room(native("encoding_room", tokens, *sizes)),
        )


_kept = threading.local()


def _room(size: int) -> Tensor:
    """So many bytes of working memory, of this thread, which keeps them for its next call."""
    # torch returns memory of this size to the operating system, and the page faults of taking it
    # again are a twentieth of the time of 2,048 tokens.
    found: Tensor | None = getattr(_kept, "room", None)
    if found is None or len(found) < size:
        found = _kept.room = torch.empty(size, dtype=torch.uint8)
    return found


def _parts(layer: Layer, *, int8: bool) -> Iterator[Tensor | None]:
    """Tensors in the order of `Layer` in inference.c."""
    attention, feed_forward = layer.attention, layer.feed_forward
    for part, weights in (
        (
            attention,
            (
                side_by_side(*attention.parameters()),
                (attention.output_weight.mT, attention.output_bias),
            ),
        ),
        (
            feed_forward,
            (
                (feed_forward.intermediate_weight, feed_forward.intermediate_bias),
                (feed_forward.output_weight.mT, feed_forward.output_bias),
            ),
        ),
    ):
        for weight, bias in weights:
            # Without int8, null pointers keep the places of scales and sums.
            panels, *scales = _quantised(weight) if int8 else (_packed(weight), None, None)
            yield from (panels, bias.float().contiguous(), *scales)
        yield from (
            each.float().contiguous() for each in (part.layer_norm_weight, part.layer_norm_bias)
        )


def _int8_states(dtype: torch.dtype) -> torch.dtype:
    """What is kept between products in int8: bfloat16 where its own products are fast."""
    native = kernels()
    # Rounding to bfloat16 changes vectors by a tenth of what int8 does, and halves attention, which
    # beside products in int8 is a quarter of the time of 256 tokens.
    return torch.bfloat16 if native and native("multiplies_bfloat16") else dtype


def _packed(weight: Tensor) -> Tensor:
    """The panels of a weight, [depth, columns]."""
    native = kernels(weight.dtype)
    assert native is not None
    panels = torch.empty(weight.numel(), dtype=weight.dtype)
    native("pack_weight", *weight.shape, weight, *weight.stride(), panels)
    return panels


def _quantised(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The panels of a weight [depth, columns] in int8; scales and sums of the columns."""
    native = kernels(weight.dtype)
    assert native is not None
    panels = torch.empty(weight.numel(), dtype=torch.int8)
    # A token is x ≈ scale · byte + lowest, so x·w = scale (bytes·w) + lowest Σw: with the sums Σw
    # of the columns, a token's offset costs one multiplication for each column.
    scales, sums = torch.empty(2, weight.shape[1])
    native("quantise_weight", *weight.shape, weight, *weight.stride(), panels, scales, sums)
    return panels, scales, sums
