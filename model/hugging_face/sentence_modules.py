"""Sentence-transformers' modules: how a text's vector is computed with an encoder.

In:  modules.json and the files it refers to: the modules after the encoder, prompts, limits.
Out: `SentenceModules`: the text that is encoded, its longest length, and the vector of its tokens,
     equal to those of sentence-transformers 6; the same files again for an export.

Pooling (all six modes, also several), Dense, LayerNorm, Normalize and Dropout are computed, and
term vectors, a module of ours. Any other module, or an option that is not understood, is refused: a
vector that is nearly right would rank wrongly in silence.
"""

import json
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, cast, get_args

import tokenizers
import torch
from pydantic import JsonValue
from safetensors.torch import save
from torch import Tensor
from torch.nn import functional

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.tokenizer import SubwordTokenizer, WordPieceTokenizer
from cloze.model.data.batch import PackedBatch, on
from cloze.model.hugging_face.source import Source, read_tensors
from cloze.model.hugging_face.term_vectors import TYPE, TermVectors

# T tokens of a batch, B sequences, H hidden size, D width of a vector

MODULES = "modules.json"
SETTINGS = "config_sentence_transformers.json"
LIMITS = re.compile(r"sentence_\w+_config\.json")
LIMITS_NAME = "sentence_bert_config.json"

PoolingMode = Literal["cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken"]
MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
"""In the order in which several are concatenated."""

FORMER_NAMES: dict[str, PoolingMode] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Version 5's flags, one for each mode."""

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda values: values,
    "Tanh": torch.tanh,
    "ReLU": torch.relu,
    "GELU": functional.gelu,
    "Sigmoid": torch.sigmoid,
}
"""Of a Dense module, by the name of torch's class."""

OTHER_SETTINGS = frozenset(
    {"__version__", "model_type", "prompts", "default_prompt_name", "similarity_fn_name"}
)
WITHOUT_EFFECT: Mapping[str, tuple[JsonValue, ...]] = {
    "transformer_task": (None, "feature-extraction"),
    "module_output_name": (None, "token_embeddings"),
    **dict.fromkeys(("model_args", "tokenizer_args", "config_args"), (None, {})),
    **dict.fromkeys(("model_kwargs", "processor_kwargs", "config_kwargs"), (None, {})),
    **dict.fromkeys(("query_length", "document_length", "processing_kwargs"), (None, {})),
}
"""Accepted values of the encoder's other settings."""

QUERY, DOCUMENT = "query", "document"
"""Prompts of `encode_query` and `encode_document`."""

_MODULE_TYPES = "sentence_transformers.models."
_PLAIN_FOLDER = re.compile(r"[A-Za-z0-9_]{1,100}")  # file systems allow 255 bytes


@dataclass(frozen=True)
class ModuleStep:
    """A module after the pooling."""

    kind: Literal["Dense", "LayerNorm", "Normalize"]
    activation: str = "Identity"
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """`linear.weight` and `linear.bias`, or `norm.weight` and `norm.bias`."""

    def __call__(self, vectors_BD: Tensor, batch: PackedBatch) -> Tensor:
        """The vectors of the batch's sequences after this module."""
        if self.kind == "Normalize":
            return functional.normalize(vectors_BD, dim=-1)
        # in fp32, as sentence-transformers has them
        own = {name: on(vectors_BD.device, tensor) for name, tensor in self.tensors.items()}
        if self.kind == "LayerNorm":
            weight = own["norm.weight"]
            return functional.layer_norm(vectors_BD, weight.shape, weight, own["norm.bias"])
        # [B, width] after a Dense module
        wide = functional.linear(vectors_BD, own["linear.weight"], own.get("linear.bias"))
        return ACTIVATIONS[self.activation](wide)

    def width(self, before: int) -> int:
        """Width of its vectors, from that of its inputs."""
        return len(self.tensors["linear.weight"]) if self.kind == "Dense" else before

    def files(self, folder: str, *, width: int) -> dict[str, bytes]:
        """Its files; `width` is that of its inputs."""
        if self.kind == "Normalize":
            return {}
        config: dict[str, JsonValue] = {"dimension": width}
        if self.kind == "Dense":
            module = "linear" if self.activation == "Identity" else "activation"
            config = {
                "in_features": width,
                "out_features": self.width(width),
                "bias": "linear.bias" in self.tensors,
                "activation_function": f"torch.nn.modules.{module}.{self.activation}",
            }
        return {
            f"{folder}/config.json": _json(config),
            f"{folder}/model.safetensors": save(dict(self.tensors), metadata={"format": "pt"}),
        }


NORMALIZE = ModuleStep("Normalize")


@dataclass(frozen=True)
class SentenceModules:
    """How a text's vector is computed with an encoder."""

    pooling: tuple[PoolingMode, ...]
    """Concatenated."""

    steps: tuple[ModuleStep | TermVectors, ...]
    max_seq_length: int
    """Maximum number of tokens, special ones included; longer texts are truncated."""

    prompts: Mapping[str, str] = field(default_factory=dict)
    """Texts put before another, by name."""

    default_prompt: str = ""
    """Name of the prompt of a text for which none is named."""

    lowercase: bool = False
    """Whether texts are lowercased before an encoder that is not uncased."""

    similarity: str = "cosine"

    @property
    def single_pooling(self) -> Literal["mean", "cls"] | None:
        """The pooling of vectors that only differ from it by their length; None: they are others.

        These are the vectors that can be trained further.
        """
        if any(step.kind != "Normalize" for step in self.steps) or self.lowercase:
            return None
        if self.pooling == ("mean",):
            return "mean"
        return "cls" if self.pooling == ("cls",) else None

    def prompt(self, name: str | None = None) -> str:
        """The prompt called `name`; None: the default one."""
        if name is None:
            return self.prompts.get(self.default_prompt, "")
        if name not in self.prompts and name not in (QUERY, DOCUMENT):
            raise UsageError(
                f"no prompt {name!r} among those of the model: {', '.join(self.prompts) or 'none'}"
            )
        return self.prompts.get(name, "")

    def width(self, hidden_size: int) -> int:
        """Width of a vector."""
        width = hidden_size * len(self.pooling)
        for step in self.steps:
            width = step.width(width)
        return width

    def text(self, text: str, prompt: str) -> str:
        """The text that is encoded."""
        whole = prompt + text
        return _LOWERCASE.normalize_str(whole) if self.lowercase else whole

    def vectors(self, hidden_TH: Tensor, batch: PackedBatch) -> Tensor:
        """One vector per sequence, [B, D] fp32, from the encoder's last layer."""
        # fp32 even for a bfloat16 encoder: sums over tokens
        found = [pooled(hidden_TH.float(), batch, mode) for mode in self.pooling]
        vectors_BD = torch.cat(found, dim=-1)
        for step in self.steps:
            vectors_BD = step(vectors_BD, batch)
        return vectors_BD

    def files(self, *, width: int) -> dict[str, bytes]:
        """The files for sentence-transformers; `width`: the encoder's hidden size."""
        kinds = ["Transformer", "Pooling", *(step.kind for step in self.steps)]
        modules: list[JsonValue] = [
            {
                "idx": n,
                "name": str(n),
                "path": f"{n}_{kind}" if n else "",
                "type": TYPE if kind == TermVectors.kind else _MODULE_TYPES + kind,
            }
            for n, kind in enumerate(kinds)
        ]
        # Flags, as version 5 wrote them, are read by both versions.
        pooling: dict[str, JsonValue] = {
            name: mode in self.pooling for name, mode in FORMER_NAMES.items()
        }
        files = {
            MODULES: _json(modules),
            LIMITS_NAME: _json(
                {"max_seq_length": self.max_seq_length, "do_lower_case": self.lowercase}
            ),
            "1_Pooling/config.json": _json({"word_embedding_dimension": width, **pooling}),
        }
        # Poolings are concatenated; each step begins with the width of the one before.
        width *= len(self.pooling)
        for number, step in enumerate(self.steps, start=2):
            files |= step.files(f"{number}_{step.kind}", width=width)
            width = step.width(width)
        if self.prompts or self.similarity != "cosine":
            settings: dict[str, JsonValue] = {
                "prompts": {**self.prompts},
                "default_prompt_name": self.default_prompt or None,
                "similarity_fn_name": self.similarity,
            }
            files[SETTINGS] = _json(settings)
        return files


_LOWERCASE = tokenizers.normalizers.Lowercase()


def pooled(hidden_TH: Tensor, batch: PackedBatch, mode: PoolingMode) -> Tensor:
    """[B, H] one vector per sequence, from those of its tokens."""
    device = hidden_TH.device
    starts_B = batch.cu_seqlens[:-1].long()
    if mode == "cls":
        return hidden_TH[on(device, starts_B)]
    if mode == "lasttoken":
        return hidden_TH[on(device, batch.cu_seqlens[1:].long() - 1)]
    lengths_B = on(device, torch.from_numpy(batch.lengths))
    sequence_T = torch.repeat_interleave(lengths_B, output_size=batch.tokens)
    empty_BH = hidden_TH.new_zeros(len(lengths_B), hidden_TH.shape[1])
    if mode == "max":
        index_TH = sequence_T[:, None].expand_as(hidden_TH)
        # Without the zeros that are there: all values of a sequence may be negative.
        return empty_BH.scatter_reduce(0, index_TH, hidden_TH, "amax", include_self=False)
    totals_B = lengths_B.to(hidden_TH)
    if mode == "weightedmean":  # by position, from 1
        weights_T = on(device, batch.position_ids).to(hidden_TH) + 1
        hidden_TH = hidden_TH * weights_T[:, None]
        totals_B = empty_BH[:, 0].index_add(0, sequence_T, weights_T)
    if mode == "mean_sqrt_len_tokens":
        totals_B = totals_B.sqrt()
    return empty_BH.index_add(0, sequence_T, hidden_TH) / totals_B[:, None]


def read_sentence_modules(
    source: Source, tokenizer: SubwordTokenizer, *, positions: int
) -> SentenceModules | None:
    """The modules of `source`, whose encoder has `positions` positions; None if there are none."""
    if MODULES not in source.names:
        return None
    where = f"{source.directory}/{MODULES}"
    try:
        listed = json.loads(source.read_text(MODULES))
        # `sentence_transformers.models.Pooling` → Pooling; other prefixes may come.
        modules = [(str(one["type"]).rpartition(".")[2], str(one["path"])) for one in listed]
        kinds = [kind for kind, _ in modules]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(
            f"{where}: not a list of sentence-transformers' modules; copy the model again, or "
            "remove the file to use the encoder alone"
        ) from None
    after = ("Dense", "LayerNorm", "Normalize", "Dropout", TermVectors.kind)
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(after):
        raise UsageError(
            f"{where}: {', '.join(kinds)}; expected Transformer, Pooling and any of "
            f"{', '.join(after)}: remove the file to use the encoder alone"
        )
    # A name from a downloaded file must not lead out of the folder.
    for _, folder in modules[1:]:
        if not _PLAIN_FOLDER.fullmatch(folder):
            raise UsageError(f"{where}: {folder[:200]!r} is not a folder name")
    limits = _limits(source, tokenizer, positions=positions)
    pooling = _pooling(source, modules[1][1])
    settings = source.read_table(SETTINGS) if SETTINGS in source.names else {}
    _refuse_others(f"{source.directory}/{SETTINGS}", settings, OTHER_SETTINGS)
    named = settings.get("prompts")
    stated = named if isinstance(named, dict) else {}
    prompts = {name: str(text or "") for name, text in stated.items()}
    default = str(settings.get("default_prompt_name") or "")
    if default and default not in prompts:
        raise UsageError(
            f"{source.directory}/{SETTINGS}: default_prompt_name {default!r} is none of the "
            f"prompts {', '.join(prompts) or '(none)'}; correct one of the two"
        )
    include = _settings(source, modules[1][1]).get("include_prompt", True)
    if not include and any(prompts.values()):
        raise UsageError(
            f"{source.directory}/{modules[1][1]}: include_prompt = false is not supported with "
            "prompts; remove modules.json to use the encoder alone"
        )
    return SentenceModules(
        pooling=pooling,
        # Dropout does nothing at inference.
        steps=tuple(
            _step(source, kind, folder) for kind, folder in modules[2:] if kind != "Dropout"
        ),
        max_seq_length=limits[0],
        prompts=prompts,
        default_prompt=default,
        lowercase=limits[1],
        similarity=str(settings.get("similarity_fn_name") or "cosine"),
    )


def _limits(source: Source, tokenizer: SubwordTokenizer, *, positions: int) -> tuple[int, bool]:
    """The longest sequence, and whether texts are lowercased first."""
    name = next((name for name in source.names if LIMITS.fullmatch(name)), "")
    table = source.read_table(name) if name else {}
    known = {"max_seq_length", "do_lower_case", "modality_config", *WITHOUT_EFFECT}
    _refuse_others(f"{source.directory}/{name}", table, known)
    for key, accepted in WITHOUT_EFFECT.items():
        if table.get(key) not in accepted:
            raise UsageError(
                f"{source.directory}/{name}: {key} is {table[key]!r}, which is not supported; "
                "remove modules.json to use the encoder alone"
            )
    # The module's own limit, else the tokenizer's, but never more than the positions.
    limit = table.get("max_seq_length")
    if limit is None and "tokenizer_config.json" in source.names:
        limit = source.read_table("tokenizer_config.json").get("model_max_length")
    longest = int(min(limit, positions)) if isinstance(limit, int | float) else positions
    if longest < 3:
        raise UsageError(
            f"{source.directory}/{name}: max_seq_length {limit} leaves no room for a text"
        )
    # An uncased tokenizer lowercases anyway.
    lowercase = bool(table.get("do_lower_case")) and not tokenizer.lowercase
    if lowercase and not (isinstance(tokenizer, WordPieceTokenizer) and not tokenizer.added):
        raise UsageError(
            f"{source.directory}/{name}: do_lower_case with added tokens, or without WordPiece, is "
            "not supported; lowercase the texts and set do_lower_case = false"
        )
    return longest, lowercase


def _pooling(source: Source, folder: str) -> tuple[PoolingMode, ...]:
    where = f"{source.directory}/{folder}/config.json"
    table = _settings(source, folder)
    sizes = {"word_embedding_dimension", "embedding_dimension"}
    _refuse_others(where, table, {*sizes, *FORMER_NAMES, "pooling_mode", "include_prompt"})
    mode = table.get("pooling_mode")
    if mode is None:
        return tuple(mode for name, mode in FORMER_NAMES.items() if table.get(name)) or ("mean",)
    modes = mode if isinstance(mode, list) else [mode]
    if not modes or not set(map(str, modes)) <= set(MODES):
        raise UsageError(f"{where}: pooling_mode {mode!r}, expected some of {', '.join(MODES)}")
    return cast(tuple[PoolingMode, ...], tuple(modes))


def _step(source: Source, kind: str, folder: str) -> ModuleStep | TermVectors:
    if kind == "Normalize":
        table: Mapping[str, JsonValue] = {}
        try:
            table = source.read_table(f"{folder}/config.json")
        except (FileNotFoundError, IntegrityError):  # older versions write none
            return NORMALIZE
        _refuse_inputs(f"{source.directory}/{folder}", table)
        return NORMALIZE
    table = _settings(source, folder)
    where = f"{source.directory}/{folder}"
    if kind == TermVectors.kind:
        return TermVectors.of(table, _tensors(source, folder), where=where)
    _refuse_inputs(where, table)
    if table.get("use_residual"):
        raise UsageError(f"{where}: use_residual is not supported; remove modules.json")
    # sentence-transformers' default
    named = str(table.get("activation_function", "torch.nn.modules.activation.Tanh"))
    activation = named.rpartition(".")[2] if kind == "Dense" else "Identity"
    if activation not in ACTIVATIONS or (kind == "Dense" and not named.startswith("torch.nn.")):
        raise UsageError(
            f"{where}: activation_function {named}, expected one of {', '.join(ACTIVATIONS)}"
        )
    tensors = _tensors(source, folder)
    own = ("linear.weight", "linear.bias") if kind == "Dense" else ("norm.weight", "norm.bias")
    if own[0] not in tensors or not set(tensors) <= set(own):
        raise IntegrityError(f"{where}: tensors {', '.join(tensors)}, expected {', '.join(own)}")
    return ModuleStep(
        cast(Literal["Dense", "LayerNorm"], kind),
        activation,
        {name: tensor.to(torch.float32).contiguous() for name, tensor in tensors.items()},
    )


def _tensors(source: Source, folder: str) -> dict[str, Tensor]:
    try:
        return read_tensors(source, f"{folder}/model.safetensors")
    except (FileNotFoundError, IntegrityError):
        raise UsageError(
            f"{source.directory}/{folder}: no model.safetensors; a pytorch_model.bin can execute "
            "code and is not read: load the model with sentence-transformers and save it again"
        ) from None


def _settings(source: Source, folder: str) -> dict[str, JsonValue]:
    try:
        return source.read_table(f"{folder}/config.json")
    except (FileNotFoundError, IntegrityError):
        raise UsageError(
            f"{source.directory}/{folder}/config.json: missing, but {MODULES} lists it; copy the "
            "model again, or remove modules.json to use the encoder alone"
        ) from None


def _refuse_inputs(where: str, table: Mapping[str, JsonValue]) -> None:
    for key in ("module_input_name", "module_output_name"):
        if table.get(key) not in (None, "sentence_embedding"):
            raise UsageError(f"{where}: {key} is {table[key]!r}, expected 'sentence_embedding'")


def _refuse_others(where: str, table: Mapping[str, JsonValue], known: Collection[str]) -> None:
    """Refuse settings that are set, but not known."""
    for key, value in table.items():
        # Falsy values stand for settings that are off, known or not.
        if key not in known and value not in (None, False, {}, []):
            raise UsageError(
                f"{where}: {key} is {value!r:.100}, which is not supported; remove modules.json to "
                "use the encoder alone"
            )


def _json(value: JsonValue) -> bytes:
    return (json.dumps(value, indent=1) + "\n").encode()
