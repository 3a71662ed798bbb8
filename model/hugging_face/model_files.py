"""Models read from and written to files: pre-trained encoders and fine-tuned models.

In:  a directory: an artifact of Cloze or a model in Hugging Face's layout; the weights of a trial,
     and its task.
Out: `EncoderFiles`, an encoder that can be exported, imported, and turned into fresh modules for
     fine-tuning and evaluation: pre-trained, or randomly initialised with the same shape.
     `models/TASK/`, a fine-tuned model: model.safetensors with the parameter names of the task's
     Hugging Face class, config.json with the sections `cloze` and `cloze_task`, tokenizer.json; for
     a model of sentence vectors also sentence-transformers' modules.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import JsonValue
from safetensors.torch import save
from torch import Tensor, nn

from cloze.artifacts.config import Config, parse
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.manifest import FileEntry, Manifest
from cloze.artifacts.store import put_bytes, put_json
from cloze.artifacts.tokenizer import SubwordTokenizer
from cloze.model.config import EncoderConfig, Family, Objective, TaskConfig
from cloze.model.encoder.models import (
    Encoder,
    HeadInput,
    PretrainingModel,
    SentenceModel,
    TaskModel,
    initialise_parameter,
    shapes_alone,
)
from cloze.model.hugging_face.layout import (
    LAYOUTS,
    Layout,
    from_hugging_face,
    hugging_face_config,
    special_ids,
    to_hugging_face,
)
from cloze.model.hugging_face.sentence_modules import (
    DOCUMENT,
    NORMALIZE,
    QUERY,
    SentenceModules,
    read_sentence_modules,
)
from cloze.model.hugging_face.source import (
    CONFIG,
    Source,
    open_source,
    read_shape,
    read_tokenizer,
    read_weights,
)
from cloze.model.tasks.base import Problem
from cloze.model.tasks.features import Places
from cloze.model.tasks.problems import family_of

CARD = "README.md"
ENCODER_PREFIX = "encoder."
WORD_EMBEDDINGS = "embeddings.word_embeddings.weight"
PADDED_TO = (8, 16, 32, 64, 128)
"""Vocabularies are padded to multiples of these for faster matrix products."""

MODELS = "models/"
HEAD = "head."
HEADS = {"BertForQuestionAnswering": "qa_outputs."}
"""Prefix of the head's parameters in a class of `transformers`; in all others `classifier.`."""

BILSTM = "bilstm."
"""Prefixes of our parameters besides the encoder's. No Hugging Face class has a BiLSTM, so its
names are kept.
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
        return self._has(self.layout.pooler)

    @property
    def has_masked_lm(self) -> bool:
        """Whether it has the head that predicts tokens."""
        return self._has(*self.layout.masked_lm)

    @property
    def fills_masks(self) -> bool:
        """Whether it was trained as a masked language model and has that head."""
        return self.has_masked_lm and self.objective == "masked_lm"

    @property
    def architecture(self) -> str:
        """The class of `transformers` with the heads that it has."""
        kind = "ForMaskedLM" if self.has_masked_lm else "Model"
        if self._has(*self.layout.heads):
            kind = self.layout.pretraining
        return self.layout.classes + kind

    def _has(self, *prefixes: str) -> bool:
        return not any(name.startswith(prefixes) for name in self.missing)

    @property
    def pooling(self) -> Literal["mean", "cls"]:
        """The pooling that it was trained with, else the mean."""
        single = self.modules.single_pooling if self.modules else "mean"
        if single is None:
            raise UsageError(
                "the encoder's modules.json has a Dense, LayerNorm or TermVectors module, another "
                "pooling than mean or cls, or lowercases: such vectors can be used but not "
                "trained; start from the encoder that it was made from, or remove the file to "
                "train the encoder's mean vectors"
            )
        return single

    @property
    def parameter_count(self) -> int:
        """Parameters of the encoder with both pre-training heads."""
        with shapes_alone():
            model = PretrainingModel(Encoder(self.config, self.tokenizer.size))
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
            model = PretrainingModel(Encoder(self.config, self.tokenizer.size))
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
        # Drawn in order of names, so that what is missing does not depend on the model's structure.
        torch.manual_seed(seed)
        values = {}
        for name, parameter in sorted(module.named_parameters()):
            if pretrained and prefix + name in self.parameters:
                whole = self.parameters[prefix + name]
                pruned = used_ids is not None and name == WORD_EMBEDDINGS
                # cloned, since several trials start from the same files
                values[name] = whole[torch.from_numpy(used_ids)] if pruned else whole.clone()
            else:
                values[name] = torch.empty(parameter.shape)
                initialise_parameter(prefix + name, values[name], self.config)
        module.load_state_dict(values, assign=True)


def read_encoder_files(
    location: str | Path | Source, *, for_inference: bool = False
) -> EncoderFiles:
    """Read and check the model at `location`.

    `for_inference`: parameters may be views of the file's pages, which are not to be trained.
    """
    source = location if isinstance(location, Source) else open_source(location)
    config, tokenizer = read_shape(source)
    layout = LAYOUTS[config.family]
    tensors = read_weights(source, layout)
    # Some vocabularies are padded (30,528 rows for 30,522 tokens): drop the unused rows. Any number
    # of rows that padding cannot explain means another vocabulary, which is refused below.
    words = tensors.get(layout.word_embeddings)
    rows = tokenizer.size if words is None else len(words)
    if rows in {-(-tokenizer.size // multiple) * multiple for multiple in PADDED_TO}:
        for name in layout.over_vocabulary:
            if name in tensors:
                tensors[name] = tensors[name][: tokenizer.size]
    with shapes_alone():
        model = PretrainingModel(Encoder(config, tokenizer.size))
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
    # By our names, of which some are missing: heads and pooler, which are initialised where they
    # are needed.
    present = [name for name in ours if layout.name(name) in tensors]
    is_next_token = source.read_table(CONFIG).get("cloze_objective") == "next_token"
    return EncoderFiles(
        config=config,
        tokenizer=tokenizer,
        parameters=from_hugging_face(tensors, present, config.family, as_views=for_inference),
        missing=missing,
        ignored=tuple(sorted(set(tensors) - {*wanted, *layout.tied, *layout.extras})),
        card=source.read_text(CARD, errors="replace") if CARD in source.names else None,
        manifest=source.manifest,
        # An encoder that predicts next tokens has the same head, but fills no masks.
        objective="next_token" if is_next_token else "masked_lm",
        modules=read_sentence_modules(source, tokenizer, positions=config.max_position_embeddings),
    )


class SavedTask(Config):
    """The section `cloze_task` of a fine-tuned model's `config.json`."""

    task: TaskConfig
    """The task as trained, with its labels and thresholds."""

    outputs: int
    """Width of the head."""

    head_dropout: bool
    """Whether it was trained with dropout before the head."""

    licence: str = ""
    """The licence lines of the initial encoder's model card."""

    pooling: HeadInput = "pooler"
    """What the head reads."""

    def architecture(self, family: Family) -> str:
        """The equivalent class of `transformers`; of a head on sentence vectors, its encoder's."""
        exported = family_of(self.task.kind).exported_as
        own = exported.architecture if self.pooling == "pooler" else "Model"
        return LAYOUTS[family].classes + own

    @property
    def pipeline(self) -> str:
        """Hugging Face's name for the kind of task."""
        return family_of(self.task.kind).exported_as.pipeline

    def head(self, family: Family) -> str:
        """Prefix of the head's parameter names in that class."""
        return HEADS.get(self.architecture(family), "classifier.")


@dataclass(frozen=True)
class TrainedModel:
    """A fine-tuned encoder with its head, as it is to be saved."""

    problem: Problem
    """What it solves."""
    task: TaskConfig
    """Its configuration, as returned by `calibrated`."""
    weights: Mapping[str, Tensor]
    """Of encoder and head, by our names."""
    pooling: HeadInput = "pooler"
    """What its head reads of a text."""


def save_model(output: str, model: TrainedModel, initial: EncoderFiles) -> list[FileEntry]:
    """Write `models/TASK/…` into an unfinished artifact; `initial`: what it was trained from."""
    family, problem = initial.config.family, model.problem
    saved = SavedTask(
        task=model.task,
        outputs=problem.outputs,
        head_dropout=problem.head_dropout,
        licence=initial.licence,
        pooling=model.pooling,
    )
    # The head's names differ by task; the encoder's are those of pre-training.
    weights = model.weights
    inner = {name: value for name, value in weights.items() if name.startswith(ENCODER_PREFIX)}
    outer = {name: value for name, value in weights.items() if name not in inner}
    tensors = {**to_hugging_face(inner, family), **_renamed(outer, HEAD, saved.head(family))}
    config: dict[str, JsonValue] = {
        **hugging_face_config(initial.config, initial.tokenizer.size),
        **special_ids(family, initial.tokenizer),
        "architectures": [saved.architecture(family)],
        "cloze_task": saved.model_dump(mode="json"),
    }
    # Hugging Face derives the number of outputs from the label map.
    if labels := problem.output_names:
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
    if problem.exported_as.problem_type:
        config["problem_type"] = problem.exported_as.problem_type
    if problem.exported_as.problem_type == "regression":
        # CrossEncoder's default for a single output is a sigmoid.
        config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    # Safetensors refuses tensors that share memory or have gaps.
    contiguous = {name: value.cpu().contiguous() for name, value in tensors.items()}
    files = {
        "model.safetensors": save(contiguous, metadata={"format": "pt"}),
        "tokenizer.json": initial.tokenizer.tokenizer_json().encode(),
    }
    if problem.reads == "vectors":
        modules = _modules_of(model.task, initial)
        files |= modules.files(width=initial.config.hidden_size)
    folder = f"{MODELS}{problem.config.name}"
    return [
        put_json(output, config, name=f"{folder}/config.json"),
        *(put_bytes(output, content, name=f"{folder}/{name}") for name, content in files.items()),
    ]


def _modules_of(task: TaskConfig, initial: EncoderFiles) -> SentenceModules:
    """The modules of an encoder trained to compare texts; the task's prompts replace its own."""
    given, own = initial.modules, task.retrieval
    prompts = {QUERY: own.query_prompt or "", DOCUMENT: own.passage_prompt or ""}
    return SentenceModules(
        (initial.pooling,),
        (NORMALIZE,),
        # Training on the beginnings of texts saves time; search still reads as much as before.
        max(task.max_seq_length, given.max_seq_length if given else 0),
        prompts={
            **(given.prompts if given else {}),
            **(prompts if any(prompts.values()) else {}),
        },
        default_prompt=given.default_prompt if given else "",
    )


def saved_source(artifact: Source, task: str) -> Source:
    """Files of the model of `task`, or of the only model, among those of a finetune artifact."""
    # models/TASK/FILE
    known = sorted({name.split("/")[0] for name in artifact.inside(MODELS).names})
    if task not in known and (task or len(known) != 1):
        found = ", ".join(known) or "none; fine-tune without save = 'none'"
        raise UsageError(
            f"{artifact.directory}: no model of task {task!r}, it has {found}"
            if task or not known
            else f"{artifact.directory}: has the tasks {found}; name one of them"
        )
    return artifact.inside(f"{MODELS}{task or known[0]}/")


def head_pooling(source: Source) -> HeadInput:
    """What the head of a saved task reads; `pooler` for any other model."""
    section = source.read_table(CONFIG).get("cloze_task")
    if not isinstance(section, dict):
        return "pooler"
    return parse(SavedTask, section, source=f"{source.directory}/{CONFIG}").pooling


def read_model(
    source: Source,
) -> tuple[TaskModel | SentenceModel, SavedTask, SubwordTokenizer]:
    """The fine-tuned model that `save_model` wrote, in fp32 and evaluation mode, with its task.

    For a model in an artifact, see `saved_source`.
    """
    config = source.read_table("config.json")
    where = f"{source.directory}/config.json"
    if "cloze" not in config or "cloze_task" not in config:
        raise UsageError(f"{where}: no cloze_task; expected a model saved by finetune")
    saved = parse(SavedTask, config["cloze_task"], source=where)
    encoder_config = parse(EncoderConfig, config["cloze"], source=where)
    family = encoder_config.family
    tokenizer, tensors = read_tokenizer(source), read_weights(source, LAYOUTS[family])
    with shapes_alone():
        encoder = Encoder(encoder_config, tokenizer.size)
        model: TaskModel | SentenceModel
        if saved.task.family.compares_vectors:
            positions = encoder_config.max_position_embeddings
            modules = read_sentence_modules(source, tokenizer, positions=positions)
            single = modules.single_pooling if modules else None
            model = SentenceModel(encoder, pooling=single or "mean")
        else:
            model = TaskModel(
                encoder,
                outputs=saved.outputs,
                head_dropout=saved.head_dropout,
                bilstm=any(name.startswith(BILSTM) for name in tensors),
                pooling=saved.pooling,
            )
    names = [name for name in model.state_dict() if name.startswith(ENCODER_PREFIX)]
    # A modern encoder's own head has the same prefix as ours, so select before renaming.
    prefix = saved.head(family)
    own = {name: value for name, value in tensors.items() if name.startswith((prefix, BILSTM))}
    outer = _renamed(own, prefix, HEAD)
    try:
        model.load_state_dict({**from_hugging_face(tensors, names, family), **outer}, assign=True)
    except KeyError as error:
        raise IntegrityError(f"{source.directory}: no tensor {error.args[0]}") from None
    return model.eval(), saved, tokenizer


def read_cross_encoder(source: Source) -> tuple[TaskModel, SubwordTokenizer, int]:
    """A model with one score for a pair of texts: ours, or of the class ForSequenceClassification.

    And the number of tokens to which it truncates pairs.
    """
    # Without that file, reading the encoder says what is expected.
    table = source.read_table(CONFIG) if CONFIG in source.names else {}
    where = f"{source.directory}/{CONFIG}"
    if "cloze_task" in table:
        model, saved, tokenizer = read_model(source)
        if not isinstance(model, TaskModel) or not saved.task.family.reranks:
            raise UsageError(
                f"{where}: no reranker: the model of a task of the kind {saved.task.kind}; "
                "expected one of the kind reranking, or a cross-encoder"
            )
        return model, tokenizer, saved.task.max_seq_length
    files = read_encoder_files(source)
    tensors = read_weights(source, files.layout)
    weight, bias = (tensors.get(f"classifier.{name}") for name in ("weight", "bias"))
    if weight is None or bias is None or len(weight) != 1 or not files.has_pooler:
        outputs = "no classifier.weight" if weight is None else f"{len(weight)} outputs"
        raise UsageError(
            f"{source.directory}: no reranker: {outputs}; expected a model of "
            f"{files.layout.classes}ForSequenceClassification with one output for a pair of texts, "
            "or of a task of the kind reranking"
        )
    if files.config.family == "modern" and table.get("classifier_pooling", "cls") != "cls":
        raise UsageError(f"{where}: classifier_pooling is not cls, the only one that can be read")
    model = TaskModel(files.encoder(pretrained=True, seed=0), outputs=1)
    model.head.load_state_dict({"weight": weight, "bias": bias})
    positions = files.config.max_position_embeddings
    settings = "tokenizer_config.json"
    limit = source.read_table(settings).get("model_max_length") if settings in source.names else 0
    # Tokenizers without a limit have one of 10^30.
    longest = int(min(limit, positions)) if isinstance(limit, int | float) and limit else positions
    return model.eval(), files.tokenizer, longest


def _renamed(tensors: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    """The tensors, with the prefix `old` of their names replaced by `new`."""
    return {
        new + name.removeprefix(old) if name.startswith(old) else name: value
        for name, value in tensors.items()
    }
