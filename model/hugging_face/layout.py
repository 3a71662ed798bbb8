"""Hugging Face's layout of an encoder: `config.json` and parameter names, to and from ours.

In:  an `EncoderConfig` or the contents of a `config.json`; parameter names of `PretrainingModel`
     (or of its encoder), or of `BertForPreTraining` and `ModernBertForMaskedLM`.
Out: the counterpart on the other side. A model that cannot be reproduced exactly is refused.

transformers 5 reads `layer_types` and `rope_parameters` of a ModernBERT, version 4
`global_attn_every_n_layers` and two RoPE bases. Both forms are written, and either is read.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from pydantic import JsonValue
from torch import Tensor

from cloze.artifacts.config import parse
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import SIZE_NAMES, EncoderConfig, Family, Objective

MODERN_TYPE = "modernbert"

FULL, LOCAL = "full_attention", "sliding_attention"

OUR_ACTIVATION = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Hugging Face's `hidden_act` to ours; several of its names are the same function."""

THEIR_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new"}

_SHARED = (*SIZE_NAMES, "max_position_embeddings", "initializer_range")

SAME_NAME: Mapping[Family, tuple[str, ...]] = {
    "bert": (
        *_SHARED,
        *("type_vocab_size", "layer_norm_eps"),
        *("hidden_dropout_prob", "attention_probs_dropout_prob"),
    ),
    "modern": (
        *_SHARED,
        *("local_attention", "global_attn_every_n_layers"),
        *("global_rope_theta", "local_rope_theta"),
    ),
}
"""Fields with the same name on both sides."""

RENAMED: Mapping[Family, tuple[str, ...]] = {
    "bert": ("hidden_act",),
    "modern": ("norm_eps", "hidden_activation", "layer_types", "rope_parameters"),
}
"""Their other fields that must agree with the section `cloze` of the same file."""

MODERN_DEFAULTS: Mapping[str, JsonValue] = {
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}
"""Defaults of ModernBertConfig that differ from ours."""

REQUIRED: Mapping[Family, Mapping[str, tuple[JsonValue, ...]]] = {
    "bert": {
        "model_type": ("bert",),
        "position_embedding_type": (None, "absolute"),
        "is_decoder": (None, False),
        "add_cross_attention": (None, False),
        "tie_word_embeddings": (None, True),
    },
    "modern": {
        **{f"{part}_bias": (None, False) for part in ("norm", "attention", "mlp", "classifier")},
        "decoder_bias": (None, True),
        "tie_word_embeddings": (None, True),
        "rope_scaling": (None,),
    },
}
"""Accepted values in a `config.json`; None: the field may be missing."""


def hugging_face_config(
    encoder: EncoderConfig, vocabulary_size: int, *, objective: Objective = "masked_lm"
) -> dict[str, JsonValue]:
    """`config.json` of our encoder: the fields of its Hugging Face class, and ours under `cloze`.

    An encoder that no class of `transformers` implements gets a model type of its own, which
    `transformers` refuses. `special_ids` are added separately.
    """
    ours: dict[str, JsonValue] = {"cloze": encoder.model_dump(mode="json")}
    same = {name: getattr(encoder, name) for name in SAME_NAME[encoder.family]}
    activation = THEIR_ACTIVATION[encoder.hidden_act]
    if encoder.family == "bert":
        return {
            "architectures": ["BertForPreTraining"],
            "model_type": "cloze-lstm" if encoder.layer_type == "lstm" else "bert",
            "vocab_size": vocabulary_size,
            "pad_token_id": 0,
            **same,
            "hidden_act": activation,
            **ours,
            **({"cloze_objective": objective} if objective != "masked_lm" else {}),
        }
    required = REQUIRED["modern"]
    # transformers' class has gated layers and rotary positions only.
    is_theirs = encoder.gated and encoder.positions == "rotary"
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": MODERN_TYPE if is_theirs else "cloze-modern",
        "vocab_size": vocabulary_size,
        # Within any vocabulary, where the defaults of the class are not; `special_ids` has the real
        # ones.
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
        **dict.fromkeys(("cls_token_id", "sep_token_id"), 0),
        **same,
        "norm_eps": encoder.layer_norm_eps,
        "hidden_activation": activation,
        "classifier_activation": activation,
        "initializer_cutoff_factor": 2.0,
        "layer_types": _layer_types(encoder),
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": encoder.global_rope_theta},
            LOCAL: {"rope_type": "default", "rope_theta": encoder.local_rope_theta},
        },
        # The last accepted value is the one we write; None: leave the field out.
        **{name: accepted[-1] for name, accepted in required.items() if accepted[-1] is not None},
        **{f"{part}_dropout": 0.0 for part in ("attention", "embedding", "mlp", "classifier")},
        "classifier_pooling": "cls",
        **ours,
    }


def special_ids(family: Family, tokenizer: SubwordTokenizer) -> dict[str, JsonValue]:
    """Special-token ids for `config.json`, where the defaults of its class do not fit.

    ModernBertConfig's default ids lie beyond the end of most vocabularies.
    """
    if family == "bert":
        return {"pad_token_id": tokenizer.pad_id} if tokenizer.pad_id else {}
    return {
        "pad_token_id": tokenizer.pad_id,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), tokenizer.cls_id),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), tokenizer.sep_id),
    }


ROBERTA_TYPES = ("roberta", "xlm-roberta", "camembert")
"""Encoders with BERT's architecture whose positions begin after the id of the padding token."""

_ROBERTA_HEAD = {
    "lm_head.dense.": "cls.predictions.transform.dense.",
    "lm_head.layer_norm.": "cls.predictions.transform.LayerNorm.",
    "lm_head.decoder.": "cls.predictions.decoder.",
    "lm_head.bias": "cls.predictions.bias",
    "roberta.": "bert.",
}
"""Beginnings of its parameter names and of BERT's."""


def first_position(table: Mapping[str, JsonValue]) -> int:
    """The position of the first token: 0 but in RoBERTa's relatives, usually 2."""
    if table.get("model_type") not in ROBERTA_TYPES:
        return 0
    # `transformers` starts positions at pad_token_id + 1.
    pad = table.get("pad_token_id", 1)
    return pad + 1 if isinstance(pad, int) else 2


def as_bert(table: Mapping[str, JsonValue]) -> Mapping[str, JsonValue]:
    """The `config.json` of a BERT that computes the same as RoBERTa or one of its relatives."""
    positions, first = table.get("max_position_embeddings", 512), first_position(table)
    if not first or not isinstance(positions, int):
        return table
    return {
        **table,
        "model_type": "bert",
        # Those before the first are never used.
        "max_position_embeddings": positions - first,
        "type_vocab_size": 2,
    }


def tensors_as_bert(
    tensors: Mapping[str, Tensor], table: Mapping[str, JsonValue]
) -> dict[str, Tensor]:
    """The tensors of that BERT: other names, no positions before the first, two segments."""
    first, renamed = first_position(table), dict(tensors)
    if not first:
        return renamed
    for name, tensor in tensors.items():
        found = (pair for pair in _ROBERTA_HEAD.items() if name.startswith(pair[0]))
        old, new = next(found, ("", ""))
        present = new + name.removeprefix(old)
        del renamed[name]
        if present.endswith("embeddings.position_embeddings.weight"):
            # A copy: a view would keep the rows before it in memory.
            renamed[present] = tensor[first:].clone()
        elif present.endswith("token_type_embeddings.weight") and len(tensor) == 1:
            # RoBERTa has one segment, which ours uses for both.
            renamed[present] = tensor.repeat(2, 1)
        else:
            renamed[present] = tensor
    return renamed


def encoder_config(table: Mapping[str, JsonValue], *, source: str) -> EncoderConfig:
    """Our configuration of the encoder that a `config.json` describes."""
    if "cloze" in table:
        # The section `cloze` is ours and complete; the rest of the file must not contradict it.
        ours = parse(EncoderConfig, table["cloze"], source=source)
        # Whoever edits `hidden_size` in the file and not in our section would otherwise get the old
        # one.
        written = hugging_face_config(ours, 0)
        for name in ("model_type", *SAME_NAME[ours.family], *RENAMED[ours.family]):
            if name in table and table[name] != written[name]:
                raise UsageError(
                    f"{source}: {name} is {table[name]!r}, but its section cloze has "
                    f"{written[name]!r}; change both, or delete the section cloze"
                )
        return ours
    table = as_bert(table)
    family: Family = "modern" if table.get("model_type") == MODERN_TYPE else "bert"
    for key, accepted in REQUIRED[family].items():
        if table.get(key) not in accepted:
            raise UsageError(
                f"{source}: {key} is {table.get(key)!r}, expected {accepted[-1]!r}; "
                "only encoders with the architecture of BERT, RoBERTa or ModernBERT can be read"
            )
    if family == "modern":
        return _modern_encoder_config(table, source=source)
    activation = table.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in OUR_ACTIVATION:
        raise UsageError(
            f"{source}: hidden_act {activation!r} is not one of {', '.join(OUR_ACTIVATION)}; "
            "only encoders with BERT's architecture can be read"
        )
    # What the file leaves out has the same default there and here.
    sizes = {name: table[name] for name in SAME_NAME["bert"] if name in table}
    fields = {**sizes, "preset": None, "hidden_act": OUR_ACTIVATION[activation]}
    return parse(EncoderConfig, fields, source=source)


def _modern_encoder_config(table: Mapping[str, JsonValue], *, source: str) -> EncoderConfig:
    """Our configuration of the encoder that a ModernBertConfig describes."""
    activation = table.get("hidden_activation", "gelu")
    heads = table.get("classifier_activation", "gelu")
    if not isinstance(activation, str) or activation not in OUR_ACTIVATION or heads != activation:
        raise UsageError(
            f"{source}: hidden_activation {activation!r} and classifier_activation {heads!r}; "
            f"expected the same for both, one of {', '.join(OUR_ACTIVATION)}"
        )
    # Version 4 of transformers has a base for global layers and perhaps one for local ones; version
    # 5 has one `rope_parameters` for each kind. The later form wins where both are there.
    fields = {name: table.get(name, MODERN_DEFAULTS.get(name)) for name in SAME_NAME["modern"]}
    if fields["local_rope_theta"] is None:  # version 4: the same base as in global layers
        fields["local_rope_theta"] = fields["global_rope_theta"]
    names = {FULL: "global_rope_theta", LOCAL: "local_rope_theta"}
    parameters = table.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not set(parameters) <= set(names):
        raise UsageError(
            f"{source}: expected rope_parameters for {FULL} and {LOCAL}, found {parameters!r:.100}"
        )
    for kind, found in parameters.items():
        if not isinstance(found, dict) or found.get("rope_type", "default") != "default":
            named = found.get("rope_type") if isinstance(found, dict) else found
            raise UsageError(
                f"{source}: rope_type {named!r} for {kind}; only 'default' can be read"
            )
        fields[names[kind]] = found.get("rope_theta", fields[names[kind]])
    types = table.get("layer_types")
    if isinstance(types, list):
        # The first global layer after layer 0; none: all others are local.
        fields["global_attn_every_n_layers"] = next(
            (number for number, kind in enumerate(types) if number and kind == FULL),
            len(types),
        )
    fields |= {
        "family": "modern",
        "preset": None,
        "layer_norm_eps": table.get("norm_eps", 1e-5),
        "hidden_act": OUR_ACTIVATION[activation],
        "hidden_dropout_prob": table.get("attention_dropout", 0.0),
        "initializer_range": table.get("initializer_range", 0.02),
    }
    encoder = parse(EncoderConfig, fields, source=source)
    # Any pattern but the periodic one differs from what was derived above.
    if types not in (None, _layer_types(encoder)):
        raise UsageError(
            f"{source}: expected layer_types with {FULL} in every n-th of "
            f"{encoder.num_hidden_layers} layers, starting with the first, and {LOCAL} in all "
            "others; other patterns are not supported"
        )
    return encoder


def _layer_types(encoder: EncoderConfig) -> list[JsonValue]:
    every = encoder.global_attn_every_n_layers
    return [LOCAL if number % every else FULL for number in range(encoder.num_hidden_layers)]


_PARAMETER = re.compile(r"(?:encoder\.layers\.(\d+)\.)?(.+)[._]((?:weight|bias).*)")
"""The number of the layer, if the parameter is in one; the module; weight or bias."""

_TRANSPOSED = re.compile(r".*\.(query|key|value|intermediate)_weight")
"""[in, out] here, [out, in] in Hugging Face (see `model/encoder/operations/products.py`)."""

_BERT_MODULES = {
    **{
        f"encoder.embeddings.{name}": f"bert.embeddings.{name}"
        for name in ("word_embeddings", "position_embeddings", "token_type_embeddings")
    },
    "encoder.embeddings.layer_norm": "bert.embeddings.LayerNorm",
    "encoder.pooler.dense": "bert.pooler.dense",
    "masked_lm.transform": "cls.predictions.transform.dense",
    "masked_lm.layer_norm": "cls.predictions.transform.LayerNorm",
    "masked_lm.output": "cls.predictions",
    "next_sentence.output": "cls.seq_relationship",
    **{f"attention.{part}": f"attention.self.{part}" for part in ("query", "key", "value")},
    "attention.output": "attention.output.dense",
    "attention.layer_norm": "attention.output.LayerNorm",
    "feed_forward.intermediate": "intermediate.dense",
    "feed_forward.output": "output.dense",
    "feed_forward.layer_norm": "output.LayerNorm",
    "lstm": "lstm",  # Hugging Face has no such layer, so our name is kept
}

_MODERN_MODULES = {
    "encoder.embeddings.position_embeddings": "model.embeddings.position_embeddings",
    "encoder.embeddings.word_embeddings": "model.embeddings.tok_embeddings",
    "encoder.embeddings.layer_norm": "model.embeddings.norm",
    "encoder.layer_norm": "model.final_norm",
    "encoder.pooler.dense": "head.dense",
    "encoder.pooler.layer_norm": "head.norm",
    "masked_lm.output": "decoder",
    "attention.layer_norm": "attn_norm",
    "attention.projection": "attn.Wqkv",
    "attention.output": "attn.Wo",
    "feed_forward.layer_norm": "mlp_norm",
    "feed_forward.input": "mlp.Wi",
    "feed_forward.output": "mlp.Wo",
}


@dataclass(frozen=True)
class Layout:
    """How Hugging Face names the parts of one family."""

    classes: str
    """Prefix of its class names."""

    pretraining: str
    """Its class with the pre-training heads, without that prefix."""

    modules: Mapping[str, str]
    """Modules, our name to theirs; those of a layer without the layer's name."""

    layer: str
    """Prefix of their layers' parameters."""

    bare: tuple[str, ...]
    """Prefixes of parameter names in files saved from a class without heads."""

    prefix: str
    """The prefix that those names lack."""

    heads: tuple[str, ...]
    """Prefixes of the parameters that an encoder without pre-training heads lacks."""

    masked_lm: tuple[str, ...]
    """Those of them without which it fills no masks."""

    pooler: str
    """Prefix of the pooler's parameters."""

    tied: Mapping[str, str]
    """Duplicated tensors in some files, and the tensors they must equal."""

    extras: tuple[str, ...] = ()
    """Other tensors in the files that are not weights of the encoder."""

    def name(self, ours: str) -> str:
        """Hugging Face's name of our parameter, in the class with pre-training heads."""
        found = _PARAMETER.fullmatch(ours)
        assert found is not None
        layer, module, kind = found.groups()
        name = f"{self.modules[module]}.{kind}"
        return name if layer is None else f"{self.layer}.{layer}.{name}"

    @property
    def word_embeddings(self) -> str:
        """Name of the word embeddings."""
        return self.name("encoder.embeddings.word_embeddings.weight")

    @property
    def over_vocabulary(self) -> tuple[str, ...]:
        """Tensors with a row for every word-piece."""
        return (self.word_embeddings, self.name("masked_lm.output_bias"), *self.tied)


LAYOUTS: Mapping[Family, Layout] = {
    "bert": Layout(
        classes="Bert",
        pretraining="ForPreTraining",
        modules=_BERT_MODULES,
        layer="bert.encoder.layer",
        bare=("embeddings.", "encoder.", "pooler."),
        prefix="bert.",
        heads=("cls.",),
        masked_lm=("cls.predictions.",),
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
        modules=_MODERN_MODULES,
        layer="model.layers",
        bare=("embeddings.", "layers.", "final_norm."),
        prefix="model.",
        heads=("head.", "decoder."),
        masked_lm=("head.", "decoder."),
        pooler="head.",
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
    ),
}


def to_hugging_face(parameters: Mapping[str, Tensor], family: Family = "bert") -> dict[str, Tensor]:
    """`PretrainingModel.state_dict()` under Hugging Face's names and in its orientation.

    The decoder is not duplicated: Hugging Face ties its weight to the word embeddings, and BERT's
    bias to `cls.predictions.bias`, when loading.
    """
    layout = LAYOUTS[family]
    return {layout.name(name): _turned(name, value) for name, value in parameters.items()}


def from_hugging_face(
    tensors: Mapping[str, Tensor],
    names: Iterable[str],
    family: Family = "bert",
    *,
    as_views: bool = False,
) -> dict[str, Tensor]:
    """The tensors of our parameters `names`; a KeyError carries Hugging Face's missing name.

    `as_views`: for models that are not trained; matrices that are stored the other way round are
    not copied but have strides, which updates and files cannot have.
    """
    layout = LAYOUTS[family]
    turned = _view if as_views else _turned
    return {name: turned(name, tensors[layout.name(name)]) for name in names}


def _view(name: str, tensor: Tensor) -> Tensor:
    return tensor.mT if _TRANSPOSED.fullmatch(name) else tensor


def _turned(name: str, tensor: Tensor) -> Tensor:
    # Contiguous, since a safetensors file has no strides.
    return _view(name, tensor).contiguous() if _TRANSPOSED.fullmatch(name) else tensor
