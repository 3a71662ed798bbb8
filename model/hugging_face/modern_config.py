"""Conversion between ModernBertConfig and our configuration.

In:  an `EncoderConfig` of the modern family, or the table of a `config.json`.
Out: the other one. What cannot be computed faithfully is refused, never approximated.

transformers 5 reads `layer_types` and `rope_parameters`, version 4 `global_attn_every_n_layers` and
two bases; both are written, and either is read.
"""

from collections.abc import Mapping

from pydantic import JsonValue

from artifacts.config import parse
from artifacts.errors import UsageError
from model.config import EncoderConfig

MODEL_TYPE = "modernbert"

OUR_ACTIVATION = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
}
"""Hugging Face's `hidden_act` to ours; several of its names are the same function."""

THEIR_ACTIVATION = {"gelu": "gelu", "gelu_tanh": "gelu_new"}

SAME_NAME = (
    *("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size"),
    *("max_position_embeddings", "initializer_range"),
    *("local_attention", "global_attn_every_n_layers", "global_rope_theta", "local_rope_theta"),
)
"""Fields that both sides call the same."""

COMPARED = (*SAME_NAME, "norm_eps", "hidden_activation", "layer_types", "rope_parameters")
"""Fields in which a table must not contradict its part `cloze`."""

FULL, LOCAL = "full_attention", "sliding_attention"

DEFAULTS: dict[str, JsonValue] = {
    "max_position_embeddings": 8192,
    "local_attention": 128,
    "global_attn_every_n_layers": 3,
    "global_rope_theta": 160_000.0,
    "local_rope_theta": 10_000.0,
}
"""Defaults of ModernBertConfig that differ from ours."""

REQUIRED = {
    **{f"{part}_bias": (None, False) for part in ("norm", "attention", "mlp", "classifier")},
    "decoder_bias": (None, True),
    "tie_word_embeddings": (None, True),
    "rope_scaling": (None,),
}
"""What a `config.json` must say (None: may leave out)."""


def modern_table(encoder: EncoderConfig, vocabulary_size: int) -> dict[str, JsonValue]:
    """`config.json` of our encoder: ModernBertConfig's fields, and ours under `cloze`.

    The ids of special tokens are added later (`layout.special_ids`). Without gates or rotary
    positions it is not a ModernBERT, and `transformers` refuses its type.
    """
    is_theirs = encoder.gated and encoder.positions == "rotary"
    activation = THEIR_ACTIVATION[encoder.hidden_act]
    return {
        "architectures": ["ModernBertForMaskedLM"],
        "model_type": MODEL_TYPE if is_theirs else "cloze-modern",
        "vocab_size": vocabulary_size,
        **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
        **dict.fromkeys(("cls_token_id", "sep_token_id"), 0),
        **encoder.model_dump(include=set(SAME_NAME)),
        **{name: getattr(encoder, name) for name in SAME_NAME[-4:]},
        "norm_eps": encoder.layer_norm_eps,
        "hidden_activation": activation,
        "classifier_activation": activation,
        "initializer_cutoff_factor": 2.0,
        "layer_types": _layer_types(encoder.num_hidden_layers, encoder.global_attn_every_n_layers),
        "rope_parameters": {
            FULL: {"rope_type": "default", "rope_theta": encoder.global_rope_theta},
            LOCAL: {"rope_type": "default", "rope_theta": encoder.local_rope_theta},
        },
        **{name: accepted[-1] for name, accepted in REQUIRED.items() if accepted[-1] is not None},
        **{f"{part}_dropout": 0.0 for part in ("attention", "embedding", "mlp", "classifier")},
        "classifier_pooling": "cls",
        "cloze": encoder.model_dump(mode="json"),
    }


def modern_encoder_config(table: Mapping[str, JsonValue], *, source: str) -> EncoderConfig:
    """Our configuration of the encoder that a ModernBertConfig describes."""
    for key, accepted in REQUIRED.items():
        if table.get(key) not in accepted:
            raise UsageError(
                f"{source}: {key} is {table[key]!r}, expected {accepted[-1]!r}; the modern family "
                "is read as ModernBERT and Ettin have it"
            )
    activation = table.get("hidden_activation", "gelu")
    heads = table.get("classifier_activation", "gelu")
    if not isinstance(activation, str) or activation not in OUR_ACTIVATION or heads != activation:
        raise UsageError(
            f"{source}: hidden_activation {activation!r} and classifier_activation {heads!r}; "
            f"expected the same for both, one of {', '.join(OUR_ACTIVATION)}"
        )
    fields = {
        **{name: table.get(name, DEFAULTS.get(name)) for name in SAME_NAME},
        **_rotations(table, source=source),
        "family": "modern",
        "preset": None,
        "layer_norm_eps": table.get("norm_eps", 1e-5),
        "hidden_act": OUR_ACTIVATION[activation],
        "hidden_dropout_prob": table.get("attention_dropout", 0.0),
        "initializer_range": table.get("initializer_range", 0.02),
    }
    types = table.get("layer_types")
    if isinstance(types, list):
        fields["global_attn_every_n_layers"] = next(
            (number for number, kind in enumerate(types) if number and kind == FULL),
            len(types),
        )
    encoder = parse(EncoderConfig, fields, source=source)
    expected = _layer_types(encoder.num_hidden_layers, encoder.global_attn_every_n_layers)
    if types not in (None, expected):
        raise UsageError(
            f"{source}: layer_types are not {FULL} in every n-th of {encoder.num_hidden_layers} "
            f"layers, from the first on, and {LOCAL} in the others; only such encoders can be read"
        )
    return encoder


def _layer_types(layers: int, every: int) -> list[JsonValue]:
    return [LOCAL if number % every else FULL for number in range(layers)]


def _rotations(table: Mapping[str, JsonValue], *, source: str) -> dict[str, JsonValue]:
    """The RoPE bases of both kinds of layers, as written by either version of transformers."""
    whole = table.get("global_rope_theta", DEFAULTS["global_rope_theta"])
    local = table.get("local_rope_theta", DEFAULTS["local_rope_theta"])
    # in version 4 a local base of null means the global one
    bases = {FULL: whole, LOCAL: whole if local is None else local}
    parameters = table.get("rope_parameters") or {}
    if not isinstance(parameters, dict) or not set(parameters) <= set(bases):
        raise UsageError(
            f"{source}: rope_parameters are for {FULL} and {LOCAL} each; found {parameters!r:.100}"
        )
    for kind, found in parameters.items():
        if not isinstance(found, dict) or found.get("rope_type", "default") != "default":
            named = found.get("rope_type") if isinstance(found, dict) else found
            raise UsageError(
                f"{source}: rope_type {named!r} for {kind}; only 'default' can be read"
            )
        bases[kind] = found.get("rope_theta", bases[kind])
    return {"global_rope_theta": bases[FULL], "local_rope_theta": bases[LOCAL]}
