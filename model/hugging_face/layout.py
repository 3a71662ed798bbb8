"""Hugging Face's description of a BERT encoder and ours: `config.json`, and names of parameters.

In:  an `EncoderConfig` or the table of a `config.json`; a name of `PretrainingModel` (or of its
     encoder) or of `BertForPreTraining`.
Out: the other one. What cannot be computed faithfully is refused, never approximated.
"""

import re
from collections.abc import Iterable, Mapping

from pydantic import JsonValue
from torch import Tensor

from artifacts.config import parse
from artifacts.errors import UsageError
from model.config import EncoderConfig, Objective

SAME_NAME = (
    "num_hidden_layers",
    "hidden_size",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "layer_norm_eps",
    "initializer_range",
)
"""Fields that both sides call the same."""

OUR_ACTIVATION = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Hugging Face's `hidden_act` to ours; several of its names are the same function."""

THEIR_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new"}

REQUIRED = {
    "model_type": ("bert",),
    "position_embedding_type": (None, "absolute"),
    "is_decoder": (None, False),
    "add_cross_attention": (None, False),
    "tie_word_embeddings": (None, True),
}
"""What a `config.json` must say (None: may leave out) for its model to be a BERT encoder."""


def hugging_face_config(
    encoder: EncoderConfig, vocabulary_size: int, *, objective: Objective = "masked_lm"
) -> dict[str, JsonValue]:
    """`config.json` of our encoder: BertConfig's fields, and ours under `cloze`.

    Encoders that no class of theirs computes have a type of their own, which `transformers`
    refuses.
    """
    own = encoder.layer_type == "lstm"
    return {
        "architectures": ["BertForPreTraining"],
        "model_type": "cloze-lstm" if own else "bert",
        "vocab_size": vocabulary_size,
        "pad_token_id": 0,
        **encoder.model_dump(include=set(SAME_NAME)),
        "hidden_act": THEIR_ACTIVATION[encoder.hidden_act],
        "cloze": encoder.model_dump(mode="json"),
        **({"cloze_objective": objective} if objective != "masked_lm" else {}),
    }


def encoder_config(table: Mapping[str, JsonValue], *, source: str) -> EncoderConfig:
    """Our configuration of the encoder that a `config.json` describes."""
    if "cloze" in table:
        ours = parse(EncoderConfig, table["cloze"], source=source)
        written = hugging_face_config(ours, 0)
        for name in (*SAME_NAME, "hidden_act"):
            if name in table and table[name] != written[name]:
                raise UsageError(
                    f"{source}: {name} is {table[name]!r}, but its part cloze says "
                    f"{written[name]!r}; change both, or delete the part cloze"
                )
        return ours
    for key, accepted in REQUIRED.items():
        if table.get(key) not in accepted:
            raise UsageError(
                f"{source}: {key} is {table.get(key)!r}, expected {accepted[-1]!r}; "
                "only encoders with BERT's architecture can be read"
            )
    activation = table.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in OUR_ACTIVATION:
        raise UsageError(
            f"{source}: hidden_act {activation!r} is not one of {', '.join(OUR_ACTIVATION)}; "
            "only encoders with BERT's architecture can be read"
        )
    sizes = {name: table[name] for name in SAME_NAME if name in table}
    fields = {**sizes, "preset": None, "hidden_act": OUR_ACTIVATION[activation]}
    return parse(EncoderConfig, fields, source=source)


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
    **{
        f"lstm.{part}_l0": f"lstm.{part}_l0"
        for part in ("weight_ih", "weight_hh", "weight_hr", "bias_ih", "bias_hh")
    },  # no layer of theirs: such an encoder keeps our names
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
