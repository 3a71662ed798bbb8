"""A trained encoder, read from files and checked: configuration, tokenizer, weights.

In:  a directory: an artifact of Cloze or a model in Hugging Face's layout.
Out: `EncoderFiles`, which can be exported, imported, and turned into fresh modules for fine-tuning
     and evaluation: pre-trained, or randomly initialised with the same shape.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import JsonValue
from torch import Tensor, nn

from artifacts.errors import IntegrityError, UsageError
from artifacts.manifest import Manifest
from artifacts.tokenizer import (
    SubwordTokenizer,
    WordPieceTokenizer,
    read_tokenizer_json,
    read_vocab_txt,
)
from model.config import EncoderConfig, Objective
from model.encoder.encoder import Encoder, initialise_parameter, shapes_alone
from model.encoder.pretraining import PretrainingModel
from model.hugging_face.layout import (
    LAYOUTS,
    Layout,
    encoder_config,
    from_hugging_face,
    hugging_face_name,
    to_hugging_face,
)
from model.hugging_face.sentence_modules import SentenceModules, read_sentence_modules
from model.hugging_face.source import Source, check_tied, open_source, read_weights
from model.tasks.features import Places

CARD = "README.md"
CONFIG = "config.json"
ENCODER_PREFIX = "encoder."
WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
PADDED_TO = (8, 16, 32, 64, 128)
"""Vocabularies are padded to multiples of these for faster matrix products."""

NOT_IN_THE_WEIGHTS = {
    "preset",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "initializer_range",
}
"""Fields in which a run may differ from its initial checkpoint."""

NOT_IN_MODERN_WEIGHTS = {"max_position_embeddings", "global_rope_theta"}
"""Further such fields without a position table, so that a second phase can train on longer
sequences.
"""


@dataclass(frozen=True)
class EncoderFiles:
    """A trained encoder: its weights and everything that describes them."""

    config: EncoderConfig
    tokenizer: SubwordTokenizer
    parameters: dict[str, Tensor]
    """float32 parameters of `PretrainingModel`, by our names; pooler and heads may be missing."""

    missing: tuple[str, ...] = ()
    """Parameters of pooler and heads that the source lacks, by Hugging Face's names."""

    ignored: tuple[str, ...] = ()
    """Tensors of the source that are not part of the encoder, such as a task's head."""

    card: str | None = None
    """The model card of the source."""

    manifest: Manifest | None = None
    """How the source was made, if it is an artifact of Cloze."""

    objective: Objective = "masked_lm"
    """Pre-training objective."""

    modules: SentenceModules | None = None
    """How sentence-transformers computes vectors with it, if it came with such modules."""

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The parameters under Hugging Face's names."""
        return to_hugging_face(self.parameters, self.config.family)

    @property
    def layout(self) -> Layout:
        """Hugging Face's names of its parts."""
        return LAYOUTS[self.config.family]

    @property
    def licence(self) -> str:
        """The licence lines of the model card's header."""
        header = (self.card or "").removeprefix("---").partition("\n---")[0]
        lines = re.findall(r"^(license(?:_name|_link)?: *\S.*)$", header, re.MULTILINE)
        return "".join(f"{line.rstrip()}\n" for line in lines)

    @property
    def has_pooler(self) -> bool:
        """Whether it has a trained pooler."""
        return not any(name.startswith(self.layout.pooler) for name in self.missing)

    @property
    def has_heads(self) -> bool:
        """Whether it has its pre-training heads: masked LM and, for BERT, next sentence."""
        return not any(name.startswith(self.layout.heads) for name in self.missing)

    @property
    def fills_masks(self) -> bool:
        """Whether it was trained as a masked language model and has that head."""
        return "masked_lm.output_bias" in self.parameters and self.objective == "masked_lm"

    @property
    def pooling(self) -> Literal["mean", "cls"]:
        """The pooling that it was trained with, else the mean."""
        return self.modules.pooling if self.modules else "mean"

    @property
    def parameter_count(self) -> int:
        """Parameters of the encoder with both pre-training heads."""
        with shapes_alone():
            model = PretrainingModel(self.config, self.tokenizer.size)
        return sum(parameter.numel() for parameter in model.parameters())

    def reaching(self, positions: int) -> "EncoderFiles":
        """The same encoder for at least `positions` tokens, unless it has a position table."""
        if self.config.has_position_table or self.config.max_position_embeddings >= positions:
            return self
        longer = self.config.model_copy(update={"max_position_embeddings": positions})
        return replace(self, config=longer)

    def pretraining_model(self, *, pretrained: bool, seed: int) -> PretrainingModel:
        """The encoder with both pre-training heads, fp32; missing weights are initialised."""
        with shapes_alone():
            model = PretrainingModel(self.config, self.tokenizer.size)
        self._fill(model, pretrained=pretrained, seed=seed)
        return model

    def encoder(self, *, pretrained: bool, seed: int, used_ids: Places | None = None) -> Encoder:
        """The encoder alone, fp32, with the word embeddings of `used_ids` only, if given.

        Random weights, and a missing pooler, are initialised from `seed`.
        """
        size = self.tokenizer.size if used_ids is None else len(used_ids)
        with shapes_alone():
            encoder = Encoder(self.config, size)
        self._fill(
            encoder, pretrained=pretrained, seed=seed, prefix=ENCODER_PREFIX, used_ids=used_ids
        )
        return encoder

    def _fill(
        self,
        module: nn.Module,
        *,
        pretrained: bool,
        seed: int,
        prefix: str = "",
        used_ids: Places | None = None,
    ) -> None:
        """Materialise a module on the meta device: every parameter gets a value."""
        torch.manual_seed(seed)
        values = {}
        for name, parameter in sorted(module.named_parameters()):
            if pretrained and prefix + name in self.parameters:
                whole = self.parameters[prefix + name]
                pruned = used_ids is not None and name == WORD_EMBEDDINGS
                values[name] = whole[torch.from_numpy(used_ids)] if pruned else whole.clone()
            else:
                values[name] = torch.empty(parameter.shape)
                initialise_parameter(prefix + name, values[name], self.config)
        module.load_state_dict(values, assign=True)


def read_shape(location: str | Path | Source) -> tuple[EncoderConfig, SubwordTokenizer]:
    """Configuration and tokenizer of the model at `location`, without reading its weights."""
    source = location if isinstance(location, Source) else open_source(location)
    if CONFIG not in source.names:
        raise UsageError(
            f"{source.directory}: no config.json; expected an artifact of Cloze or Hugging Face's "
            "layout (config.json, model.safetensors, tokenizer.json or vocab.txt)"
        )
    table = source.read_table(CONFIG)
    return encoder_config(table, source=f"{source.directory}/{CONFIG}"), read_tokenizer(source)


def refuse_another_shape(given: EncoderConfig, wanted: EncoderConfig, *, where: str) -> None:
    """Refuse an initial checkpoint `where` whose weights do not fit the configured encoder."""
    compared = set(EncoderConfig.model_fields) - NOT_IN_THE_WEIGHTS
    if not wanted.has_position_table:
        compared -= NOT_IN_MODERN_WEIGHTS
    if given.family != wanted.family:
        compared = {"family"}  # sizes of two families are not comparable
    changed = [
        f"{name}: it has {getattr(given, name)}, wanted {getattr(wanted, name)}"
        for name in sorted(compared)
        if getattr(given, name) != getattr(wanted, name)
    ]
    if changed:
        raise UsageError(f"{where}: another shape ({'; '.join(changed)}); set [encoder] to its own")


def read_encoder_files(location: str | Path | Source) -> EncoderFiles:
    """Read and check the model at `location`."""
    source = location if isinstance(location, Source) else open_source(location)
    config, tokenizer = read_shape(source)
    layout = LAYOUTS[config.family]
    tensors = read_weights(source, layout)
    check_tied(tensors, layout, source=source.directory)
    # Some vocabularies are padded (30,528 rows for 30,522 tokens): drop the unused rows. Any number
    # of rows that padding cannot explain means another vocabulary, which is refused below.
    words = tensors.get(layout.word_embeddings)
    rows = tokenizer.size if words is None else len(words)
    if rows in {-(-tokenizer.size // multiple) * multiple for multiple in PADDED_TO}:
        for name in layout.over_vocabulary:
            if name in tensors:
                tensors[name] = tensors[name][: tokenizer.size]
    with shapes_alone():
        model = PretrainingModel(config, tokenizer.size)
    ours = model.state_dict()
    wanted = to_hugging_face(ours, config.family)
    missing = tuple(name for name in wanted if name not in tensors)
    essential = [name for name in missing if not name.startswith((layout.pooler, *layout.heads))]
    if essential:
        raise IntegrityError(
            f"{source.directory}: no tensor {essential[0]} ({len(essential)} missing); config.json "
            f"and weights do not belong together, or the weights are not {layout.classes}'s"
        )
    for name, parameter in wanted.items():
        if name in tensors and tensors[name].shape != parameter.shape:
            raise IntegrityError(
                f"{source.directory}: {name} is {list(tensors[name].shape)}, config.json and "
                f"tokenizer say {list(parameter.shape)}; the files do not belong together"
            )
    present = [name for name in ours if hugging_face_name(name, config.family) in tensors]
    is_next_token = source.read_table(CONFIG).get("cloze_objective") == "next_token"
    return EncoderFiles(
        config=config,
        tokenizer=tokenizer,
        parameters=from_hugging_face(tensors, present, config.family),
        missing=missing,
        ignored=tuple(sorted(set(tensors) - {*wanted, *layout.tied, *layout.extras})),
        card=source.read_text(CARD) if CARD in source.names else None,
        manifest=source.manifest,
        objective="next_token" if is_next_token else "masked_lm",
        modules=read_sentence_modules(source, positions=config.max_position_embeddings),
    )


def read_tokenizer(source: Source) -> SubwordTokenizer:
    """The tokenizer beside the weights: tokenizer.json, else vocab.txt."""
    settings: dict[str, JsonValue] = {}
    where = f"{source.directory}/tokenizer_config.json"
    if "tokenizer_config.json" in source.names:
        settings = source.read_table("tokenizer_config.json")
    if settings.get("do_basic_tokenize", True) is False or settings.get("never_split"):
        raise UsageError(
            f"{where}: do_basic_tokenize = false and never_split are not honoured; save the model "
            "with a fast tokenizer, whose tokenizer.json has every setting"
        )
    if "tokenizer.json" in source.names:
        tokenizer = read_tokenizer_json(source.path("tokenizer.json"))
        if not isinstance(tokenizer, WordPieceTokenizer):
            return tokenizer  # its class in transformers has no such options
        strips = tokenizer.strip_accents
        in_use = {
            "do_lower_case": tokenizer.lowercase,
            "strip_accents": tokenizer.lowercase if strips is None else strips,
            "tokenize_chinese_chars": tokenizer.split_chinese,
        }
        for name, value in in_use.items():
            if settings.get(name) not in (None, value):
                raise UsageError(
                    f"{where}: {name} is {settings[name]}, but tokenizer.json says {value}; "
                    "correct one of the two"
                )
        return tokenizer
    if "vocab.txt" not in source.names:
        raise UsageError(
            f"{source.directory}: no tokenizer.json and no vocab.txt; put the one it was trained "
            "with beside the weights"
        )
    if "added_tokens.json" in source.names:
        raise UsageError(
            f"{source.directory}/added_tokens.json: words beyond vocab.txt; save the model with a "
            "fast tokenizer, whose tokenizer.json has them"
        )
    strip_accents = settings.get("strip_accents")
    return read_vocab_txt(
        source.path("vocab.txt"),
        lowercase=bool(settings.get("do_lower_case", True)),
        strip_accents=None if strip_accents is None else bool(strip_accents),
        split_chinese=bool(settings.get("tokenize_chinese_chars", True)),
    )
