"""A smaller encoder made of a larger one's weights, from which distillation begins.

In:  the encoder that teaches; how many layers the student has, and how wide it is.
Out: the student's shape, and its initial weights: layers evenly spaced among the teacher's (Sanh et
     al. 2019), and for a smaller width their projection on the directions in which the teacher's
     states vary most, with the heads and inner units whose weights are largest.
"""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from cloze.artifacts.errors import UsageError
from cloze.model.config import EncoderConfig

# H width of the teacher, W of the student; A values of all heads, I inner units

LAYERS = "encoder.layers."

AXES: Mapping[str, str] = {
    **{f"attention.{part}_weight": "HA" for part in ("query", "key", "value", "output")},
    **{f"attention.{part}_bias": "A" for part in ("query", "key", "value")},
    "attention.output_bias": "H",
    "feed_forward.intermediate_weight": "HI",
    "feed_forward.intermediate_bias": "I",
    "feed_forward.output_weight": "HI",
    "feed_forward.output_bias": "H",
    "embeddings.word_embeddings.weight": "-H",
    "embeddings.position_embeddings.weight": "-H",
    "embeddings.token_type_embeddings.weight": "-H",
    "pooler.dense.weight": "HH",
    "pooler.dense.bias": "H",
    "masked_lm.transform.weight": "HH",
    "masked_lm.transform.bias": "H",
    "next_sentence.output.weight": "-H",
    "head.weight": "-H",
}
"""The meaning of each axis of a BERT's parameters, by the end of their names; `-` is kept as it is,
as are parameters that are not listed. Layer norms are apart: their scale is a diagonal."""


def student_shape(teacher: EncoderConfig, *, layers: int, width: int = 0) -> EncoderConfig:
    """The shape of a student with `layers` layers; `width` 0: as wide as its teacher.

    Heads keep their width, and inner units their share. What cannot be made of the teacher is a
    `UsageError`.
    """
    if teacher.attention_direction != "bidirectional" or teacher.layer_type != "transformer":
        raise UsageError(
            f"the teacher is {teacher.attention_direction.replace('_', ' ')}, of "
            f"{teacher.layer_type} layers; expected a bidirectional transformer encoder"
        )
    if not 1 <= layers <= teacher.num_hidden_layers:
        raise UsageError(
            f"layers {layers}: the teacher has {teacher.num_hidden_layers}; expected 1 to as many"
        )
    sizes = {"num_hidden_layers": layers, "preset": None}
    if width in (0, teacher.hidden_size):
        return EncoderConfig.model_validate({**teacher.model_dump(), **sizes})
    if teacher.family != "bert":
        raise UsageError(
            f"width {width}: only encoders of BERT's family can be made narrower; leave it out, "
            "and choose fewer layers"
        )
    head = teacher.hidden_size // teacher.num_attention_heads
    if not 0 < width < teacher.hidden_size or width % head:
        raise UsageError(
            f"width {width}: expected a multiple of {head}, the width of the teacher's heads, "
            f"below its {teacher.hidden_size}"
        )
    # Multiplied first, so that a share of 4 inner units per unit of width stays 4.
    inner = teacher.intermediate_size * width // teacher.hidden_size
    sizes |= {
        "hidden_size": width,
        "num_attention_heads": width // head,
        "intermediate_size": inner,
    }
    return EncoderConfig.model_validate({**teacher.model_dump(), **sizes})


def kept_layers(teacher: int, student: int) -> list[int]:
    """The teacher's layers that the student begins with, evenly spaced, with first and last."""
    if student == 1:
        return [0]
    return [round(number * (teacher - 1) / (student - 1)) for number in range(student)]


def student_weights(
    teacher: Mapping[str, Tensor], shape: EncoderConfig, student: EncoderConfig
) -> dict[str, Tensor]:
    """The student's initial parameters, of the `teacher`'s, which has this `shape`.

    Names are those of `PretrainingModel` or `TaskModel`; what the teacher lacks is missing.
    """
    numbers = kept_layers(shape.num_hidden_layers, student.num_hidden_layers)
    chosen = dict(_renumbered(teacher, numbers))
    if student.hidden_size == shape.hidden_size:
        return {name: value.clone() for name, value in chosen.items()}
    # One basis for the whole network: residual connections add up the states of all layers, which
    # must therefore have their directions in common.
    basis_HW = _basis(teacher, student.hidden_size)
    kept = {number: _kept_units(chosen, number, shape, student) for number in range(len(numbers))}
    return {name: _reduced(name, value, basis_HW, kept) for name, value in chosen.items()}


def _renumbered(
    parameters: Mapping[str, Tensor], numbers: Sequence[int]
) -> Iterable[tuple[str, Tensor]]:
    """The parameters outside the layers, and those of the layers `numbers`, from 0."""
    for name, value in parameters.items():
        if not name.startswith(LAYERS):
            yield name, value
    for new, old in enumerate(numbers):
        before = f"{LAYERS}{old}."
        for name, value in parameters.items():
            if name.startswith(before):
                yield f"{LAYERS}{new}.{name.removeprefix(before)}", value


def _basis(teacher: Mapping[str, Tensor], width: int) -> Tensor:
    """[H, W] orthonormal: the directions in which the word embeddings vary most."""
    words_VH = teacher["encoder.embeddings.word_embeddings.weight"].double()
    # The second moment rather than the variance: the mean is part of every state.
    moments_HH = words_VH.T @ words_VH
    # In rising order of the eigenvalues.
    _, vectors_HH = torch.linalg.eigh(moments_HH)
    basis_HW: Tensor = vectors_HH[:, -width:].float()
    return basis_HW


def _kept_units(
    parameters: Mapping[str, Tensor], layer: int, shape: EncoderConfig, student: EncoderConfig
) -> dict[str, Tensor]:
    """By axis, the values of heads and the inner units of a layer that the student keeps.

    Those whose incoming and outgoing weights are largest, in the teacher's order.
    """
    of_layer = f"{LAYERS}{layer}."

    def norms(name: str) -> Tensor:
        found: Tensor = torch.linalg.vector_norm(parameters[of_layer + name].float(), dim=0)
        return found

    heads, size = shape.num_attention_heads, shape.hidden_size // shape.num_attention_heads
    # What a head can add to a state is bounded by the product of both norms; queries and keys
    # decide only where it looks.
    values = norms("attention.value_weight") * norms("attention.output_weight")
    best = values.view(heads, size).sum(1).topk(student.num_attention_heads).indices
    places = (best.sort().values[:, None] * size + torch.arange(size)).flatten()
    units = norms("feed_forward.intermediate_weight") * norms("feed_forward.output_weight")
    inner = units.topk(student.intermediate_size).indices.sort().values
    return {"A": places, "I": inner}


def _reduced(
    name: str, value: Tensor, basis_HW: Tensor, kept: Mapping[int, Mapping[str, Tensor]]
) -> Tensor:
    """One parameter in the student's width."""
    own = name.removeprefix("encoder.")
    layer = -1
    if own.startswith("layers."):
        number, _, own = own.removeprefix("layers.").partition(".")
        layer = int(number)
    if "layer_norm" in own:
        if own.endswith("bias"):
            return value @ basis_HW
        # A scale by direction becomes a matrix in another basis, of which the diagonal is kept.
        return torch.einsum("hw,h,hw->w", basis_HW, value, basis_HW)
    # An axis of states is rotated into the basis; heads and inner units are picked whole, as a
    # nonlinearity stands between their weights.
    for axis, meaning in enumerate(AXES.get(own, "")):
        if meaning == "H":
            value = (value.movedim(axis, -1) @ basis_HW).movedim(-1, axis)
        elif meaning != "-":
            value = value.index_select(axis, kept[layer][meaning])
    return value.contiguous()
