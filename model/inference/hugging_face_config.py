"""`config.json`: Hugging Face's description of a BERT encoder, and ours.

In:  an `EncoderConfig`, or the table of a `config.json`.
Out: the other one. What we cannot compute faithfully is refused, never approximated.
"""

from collections.abc import Mapping
from typing import Any

from artifacts.config import parse
from artifacts.errors import UsageError
from model.config import EncoderConfig

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


def hugging_face_config(encoder: EncoderConfig, vocabulary_size: int) -> dict[str, Any]:
    """`config.json` of our encoder: BertConfig's fields, and ours under `cloze`."""
    return {
        "architectures": ["BertForPreTraining"],
        "model_type": "bert",
        "vocab_size": vocabulary_size,
        "pad_token_id": 0,
        **encoder.model_dump(include=set(SAME_NAME)),
        "hidden_act": THEIR_ACTIVATION[encoder.hidden_act],
        "cloze": encoder.model_dump(mode="json"),
    }


def encoder_config(table: Mapping[str, Any], *, source: str) -> EncoderConfig:
    """Our configuration of the encoder that a `config.json` describes."""
    if "cloze" in table:
        return parse(EncoderConfig, table["cloze"], source=source)
    for key, accepted in REQUIRED.items():
        if table.get(key) not in accepted:
            raise UsageError(
                f"{source}: {key} is {table.get(key)!r}, expected {accepted[-1]!r}; "
                "only encoders with BERT's architecture can be read"
            )
    activation = table.get("hidden_act", "gelu")
    if activation not in OUR_ACTIVATION:
        raise UsageError(
            f"{source}: hidden_act {activation!r} is not one of {', '.join(OUR_ACTIVATION)}; "
            "only encoders with BERT's architecture can be read"
        )
    sizes = {name: table[name] for name in SAME_NAME if name in table}
    ours = {**sizes, "preset": None, "hidden_act": OUR_ACTIVATION[activation]}
    return parse(EncoderConfig, ours, source=source)
