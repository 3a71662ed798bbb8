"""Our parameter names and Hugging Face's, one to one.

In:  a name of `PretrainingModel` (or its encoder).
Out: the name of the same tensor in `BertForPreTraining`, and back.
"""

import re
from collections.abc import Iterable, Mapping

from torch import Tensor

_LAYER = re.compile(r"encoder\.layers\.(\d+)\.(.+)")

_EMBEDDINGS = {
    f"encoder.embeddings.{name}.weight": f"bert.embeddings.{name}.weight"
    for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
}

_OUTSIDE = {
    **_EMBEDDINGS,
    "encoder.embeddings.layer_norm.weight": "bert.embeddings.LayerNorm.weight",
    "encoder.embeddings.layer_norm.bias": "bert.embeddings.LayerNorm.bias",
    "encoder.pooler.dense.weight": "bert.pooler.dense.weight",
    "encoder.pooler.dense.bias": "bert.pooler.dense.bias",
    "masked_lm.transform.weight": "cls.predictions.transform.dense.weight",
    "masked_lm.transform.bias": "cls.predictions.transform.dense.bias",
    "masked_lm.layer_norm.weight": "cls.predictions.transform.LayerNorm.weight",
    "masked_lm.layer_norm.bias": "cls.predictions.transform.LayerNorm.bias",
    "masked_lm.output_bias": "cls.predictions.bias",
    "next_sentence.output.weight": "cls.seq_relationship.weight",
    "next_sentence.output.bias": "cls.seq_relationship.bias",
}

_INSIDE = {
    **{
        f"attention.{part}_{kind}": f"attention.self.{part}.{kind}"
        for part in ("query", "key", "value")
        for kind in ("weight", "bias")
    },
    "attention.output_weight": "attention.output.dense.weight",
    "attention.output_bias": "attention.output.dense.bias",
    "attention.layer_norm_weight": "attention.output.LayerNorm.weight",
    "attention.layer_norm_bias": "attention.output.LayerNorm.bias",
    "feed_forward.intermediate_weight": "intermediate.dense.weight",
    "feed_forward.intermediate_bias": "intermediate.dense.bias",
    "feed_forward.output_weight": "output.dense.weight",
    "feed_forward.output_bias": "output.dense.bias",
    "feed_forward.layer_norm_weight": "output.LayerNorm.weight",
    "feed_forward.layer_norm_bias": "output.LayerNorm.bias",
}

_TRANSPOSED = re.compile(r".*\.(query|key|value|intermediate)_weight")
"""Kept [in, out] here and [out, in] there (`model/encoder/products.py` says why)."""


def hugging_face_name(name: str) -> str:
    """The name of our parameter `name` in `BertForPreTraining`."""
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return _OUTSIDE[name]
    return f"bert.encoder.layer.{layer[1]}.{_INSIDE[layer[2]]}"


def to_hugging_face(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`PretrainingModel.state_dict()` under Hugging Face's names and in its orientation.

    The decoder is not repeated: its weight is the word embeddings, its bias `cls.predictions.bias`,
    and Hugging Face ties them when it loads.
    """
    return {hugging_face_name(name): _turned(name, value) for name, value in parameters.items()}


def from_hugging_face(tensors: Mapping[str, Tensor], names: Iterable[str]) -> dict[str, Tensor]:
    """The tensors for our parameter `names`; KeyError with Hugging Face's name of a missing one."""
    return {name: _turned(name, tensors[hugging_face_name(name)]) for name in names}


def _turned(name: str, tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous() if _TRANSPOSED.fullmatch(name) else tensor
