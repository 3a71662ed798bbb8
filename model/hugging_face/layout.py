"""Hugging Face's description of an encoder and ours: `config.json`, and names of parameters.

In:  an `EncoderConfig` or the table of a `config.json`; a name of `PretrainingModel` (or of its
     encoder) or of `BertForPreTraining` and `ModernBertForMaskedLM`.
Out: the other one. What cannot be computed faithfully is refused, never approximated.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue
from torch import Tensor

from artifacts.config import parse
from artifacts.errors import UsageError
from artifacts.tokenizer import SubwordTokenizer
from model.config import EncoderConfig, Family, Objective
from model.hugging_face.modern_config import (
    COMPARED,
    MODEL_TYPE,
    OUR_ACTIVATION,
    THEIR_ACTIVATION,
    modern_encoder_config,
    modern_table,
)

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
    """`config.json` of our encoder: the fields of its class there, and ours under `cloze`.

    Encoders that none of its classes implements get a type of their own, which `transformers`
    refuses.
    """
    if encoder.family == "modern":
        return modern_table(encoder, vocabulary_size)
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


def special_ids(family: Family, tokenizer: SubwordTokenizer) -> dict[str, JsonValue]:
    """The ids of special tokens, for `config.json`, where its class has defaults of its own.

    ModernBertConfig's lie beyond most vocabularies.
    """
    if family == "bert":
        return {}
    return {
        "pad_token_id": tokenizer.pad_id,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), tokenizer.cls_id),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), tokenizer.sep_id),
    }


def encoder_config(table: Mapping[str, JsonValue], *, source: str) -> EncoderConfig:
    """Our configuration of the encoder that a `config.json` describes."""
    if "cloze" in table:
        ours = parse(EncoderConfig, table["cloze"], source=source)
        written = hugging_face_config(ours, 0)
        compared = COMPARED if ours.family == "modern" else (*SAME_NAME, "hidden_act")
        for name in ("model_type", *compared):
            if name in table and table[name] != written[name]:
                raise UsageError(
                    f"{source}: {name} is {table[name]!r}, but its part cloze says "
                    f"{written[name]!r}; change both, or delete the part cloze"
                )
        return ours
    if table.get("model_type") == MODEL_TYPE:
        return modern_encoder_config(table, source=source)
    for key, accepted in REQUIRED.items():
        if table.get(key) not in accepted:
            raise UsageError(
                f"{source}: {key} is {table.get(key)!r}, expected {accepted[-1]!r}; "
                "only encoders with the architecture of BERT or ModernBERT can be read"
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

_BERT_OUTSIDE = {
    **{
        f"encoder.embeddings.{name}.weight": f"bert.embeddings.{name}.weight"
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
    },
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

_BERT_INSIDE = {
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
    },  # they have no such layer: the encoder keeps our names
}

_MODERN_OUTSIDE = {
    "encoder.embeddings.position_embeddings.weight": "model.embeddings.position_embeddings.weight",
    "encoder.embeddings.word_embeddings.weight": "model.embeddings.tok_embeddings.weight",
    "encoder.embeddings.layer_norm.weight": "model.embeddings.norm.weight",
    "encoder.layer_norm.weight": "model.final_norm.weight",
    "encoder.pooler.dense.weight": "head.dense.weight",
    "encoder.pooler.layer_norm.weight": "head.norm.weight",
    "masked_lm.output_bias": "decoder.bias",
}

_MODERN_INSIDE = {
    "attention.layer_norm_weight": "attn_norm.weight",
    "attention.projection_weight": "attn.Wqkv.weight",
    "attention.output_weight": "attn.Wo.weight",
    "feed_forward.layer_norm_weight": "mlp_norm.weight",
    "feed_forward.input_weight": "mlp.Wi.weight",
    "feed_forward.output_weight": "mlp.Wo.weight",
}


@dataclass(frozen=True)
class Layout:
    """How Hugging Face names the parts of one family."""

    classes: str
    """Prefix of its class names."""

    pretraining: str
    """Its class with the pre-training heads, without that prefix."""

    outside: Mapping[str, str]
    """Parameters outside the layers, our name to theirs."""

    inside: Mapping[str, str]
    """Parameters of a layer, our name to theirs."""

    layer: str
    """Prefix of their layers' parameters."""

    bare: tuple[str, ...]
    """Prefixes of names in files that a class without heads has written."""

    prefix: str
    """The prefix that those lack."""

    heads: tuple[str, ...]
    """Prefixes of what an encoder without pre-training heads lacks."""

    pooler: str
    """Prefix of the pooler's parameters."""

    tied: Mapping[str, str]
    """Tensors that some files duplicate, and the ones that they must equal."""

    extras: tuple[str, ...] = ()
    """Other tensors without weights of the encoder."""

    @property
    def word_embeddings(self) -> str:
        """Name of the word embeddings."""
        return self.outside["encoder.embeddings.word_embeddings.weight"]

    @property
    def over_vocabulary(self) -> tuple[str, ...]:
        """Tensors with a row for every word-piece."""
        return (self.word_embeddings, self.outside["masked_lm.output_bias"], *self.tied)


LAYOUTS: Mapping[Family, Layout] = {
    "bert": Layout(
        classes="Bert",
        pretraining="ForPreTraining",
        outside=_BERT_OUTSIDE,
        inside=_BERT_INSIDE,
        layer="bert.encoder.layer",
        bare=("embeddings.", "encoder.", "pooler."),
        prefix="bert.",
        heads=("cls.",),
        pooler="bert.pooler.",
        tied={
            "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        extras=("bert.embeddings.position_ids",),
    ),
    "modern": Layout(
        classes="ModernBert",
        pretraining="ForMaskedLM",
        outside=_MODERN_OUTSIDE,
        inside=_MODERN_INSIDE,
        layer="model.layers",
        bare=("embeddings.", "layers.", "final_norm."),
        prefix="model.",
        heads=("head.", "decoder."),
        pooler="head.",
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    ),
}

_TRANSPOSED = re.compile(r".*\.(query|key|value|intermediate)_weight")
"""Kept [in, out] here and [out, in] there (`model/encoder/operations/products.py` says why)."""


def hugging_face_name(name: str, family: Family = "bert") -> str:
    """Hugging Face's name of our parameter `name`, in the class with pre-training heads."""
    layout, layer = LAYOUTS[family], _LAYER.fullmatch(name)
    if layer is None:
        return layout.outside[name]
    return f"{layout.layer}.{layer[1]}.{layout.inside[layer[2]]}"


def to_hugging_face(parameters: Mapping[str, Tensor], family: Family = "bert") -> dict[str, Tensor]:
    """`PretrainingModel.state_dict()` under Hugging Face's names and in its orientation.

    The decoder is not duplicated: Hugging Face ties its weight to the word embeddings, and BERT's
    bias to `cls.predictions.bias`, when loading.
    """
    return {
        hugging_face_name(name, family): _turned(name, value) for name, value in parameters.items()
    }


def from_hugging_face(
    tensors: Mapping[str, Tensor], names: Iterable[str], family: Family = "bert"
) -> dict[str, Tensor]:
    """The tensors for our parameter `names`; KeyError with Hugging Face's name of a missing one."""
    return {name: _turned(name, tensors[hugging_face_name(name, family)]) for name in names}


def _turned(name: str, tensor: Tensor) -> Tensor:
    return tensor.mT.contiguous() if _TRANSPOSED.fullmatch(name) else tensor
