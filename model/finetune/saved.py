"""Fine-tuned models: writing and reading their files.

In:  the weights of a trial, and its task.
Out: `models/TASK/`: model.safetensors with the parameter names of the task's Hugging Face class,
     config.json with the sections `cloze` and `cloze_task`, tokenizer.json; for a model of sentence
     vectors also sentence-transformers' modules.
"""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import JsonValue
from safetensors.torch import save
from torch import Tensor

from artifacts.config import GrownConfig, parse
from artifacts.errors import IntegrityError, UsageError
from artifacts.manifest import FileEntry
from artifacts.store import Artifact, put_bytes, put_json
from artifacts.tokenizer import SubwordTokenizer
from model.config import EncoderConfig, Family, TaskConfig
from model.encoder.encoder import Encoder, shapes_alone
from model.finetune.heads import SentenceModel, TaskModel
from model.hugging_face.encoder_files import ENCODER_PREFIX, EncoderFiles, read_tokenizer
from model.hugging_face.layout import (
    LAYOUTS,
    from_hugging_face,
    hugging_face_config,
    special_ids,
    to_hugging_face,
)
from model.hugging_face.sentence_modules import SentenceModules, read_sentence_modules
from model.hugging_face.source import Source, artifact_source, read_weights
from model.tasks.base import Problem

MODELS = "models/"
HEAD = "head."
BILSTM = "bilstm."
"""Prefixes of our parameters besides the encoder's. No Hugging Face class has a BiLSTM, so its
names are kept.
"""

_CLASSES = {
    "classification": "ForSequenceClassification",
    "pair_classification": "ForSequenceClassification",
    "multi_label_classification": "ForSequenceClassification",
    "regression": "ForSequenceClassification",
    "tagging": "ForTokenClassification",
    "span": "ForQuestionAnswering",
    "multiple_choice": "ForMultipleChoice",
    "retrieval": "Model",
}


class SavedTask(GrownConfig):
    """The section `cloze_task` of a fine-tuned model's `config.json`."""

    later_fields: ClassVar[frozenset[str]] = frozenset({"licence"})

    task: TaskConfig
    """The task as trained, with its labels and thresholds."""

    outputs: int
    """Width of the head."""

    head_dropout: bool
    """Whether it was trained with dropout before the head."""

    licence: str = ""
    """The licence lines of the initial encoder's model card."""

    def architecture(self, family: Family) -> str:
        """The equivalent class of `transformers`."""
        return LAYOUTS[family].classes + _CLASSES[self.task.kind]

    def head(self, family: Family) -> str:
        """Prefix of the head's parameter names in that class."""
        return "qa_outputs." if (family, self.task.kind) == ("bert", "span") else "classifier."


def save_model(
    output: str,
    problem: Problem,
    task: TaskConfig,
    weights: Mapping[str, Tensor],
    initial: EncoderFiles,
) -> list[FileEntry]:
    """Write `models/TASK/…` into an unfinished artifact; `task`: as returned by `calibrated`."""
    family = initial.config.family
    saved = SavedTask(
        task=task,
        outputs=problem.outputs,
        head_dropout=problem.head_dropout,
        licence=initial.licence,
    )
    inner = {name: value for name, value in weights.items() if name.startswith(ENCODER_PREFIX)}
    outer = {name: value for name, value in weights.items() if name not in inner}
    tensors = {
        **to_hugging_face(inner, family),
        **_renamed(outer, HEAD, saved.head(family)),
    }
    config: dict[str, JsonValue] = {
        **hugging_face_config(initial.config, initial.tokenizer.size),
        **special_ids(family, initial.tokenizer),
        "architectures": [saved.architecture(family)],
        "cloze_task": saved.model_dump(mode="json"),
    }
    # Hugging Face derives the number of outputs from the label map.
    labels = ("score",) if problem.config.kind == "regression" else problem.labels
    if labels:
        config["id2label"] = {str(number): label for number, label in enumerate(labels)}
        config["label2id"] = {label: number for number, label in enumerate(labels)}
    if not problem.exclusive:
        config["problem_type"] = "multi_label_classification"  # the default is a softmax
    folder = f"{MODELS}{problem.config.name}"
    contiguous = {name: value.cpu().contiguous() for name, value in tensors.items()}
    tokenizer = initial.tokenizer.tokenizer_json().encode()
    modules = {}
    if problem.reads == "vectors":
        described = SentenceModules(initial.pooling, True, task.max_seq_length)
        modules = described.files(width=initial.config.hidden_size)
    return [
        put_bytes(
            output,
            save(contiguous, metadata={"format": "pt"}),
            name=f"{folder}/model.safetensors",
        ),
        put_json(output, config, name=f"{folder}/config.json"),
        put_bytes(output, tokenizer, name=f"{folder}/tokenizer.json"),
        *(put_bytes(output, file, name=f"{folder}/{name}") for name, file in modules.items()),
    ]


def saved_source(artifact: Artifact, task: str) -> Source:
    """Files of the model of `task`, or of the only model in a finetune artifact."""
    names = [entry.name for entry in artifact.manifest.files if entry.name.startswith(MODELS)]
    known = sorted({name.removeprefix(MODELS).split("/")[0] for name in names})
    if task not in known and (task or len(known) != 1):
        found = ", ".join(known) or "none; fine-tune without save = 'none'"
        raise UsageError(
            f"{artifact.directory}: no model of task {task!r}, it has {found}"
            if task or not known
            else f"{artifact.directory}: has the tasks {found}; name one of them"
        )
    return artifact_source(artifact, folder=f"{MODELS}{task or known[0]}/")


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
        if saved.task.kind == "retrieval":
            positions = encoder_config.max_position_embeddings
            modules = read_sentence_modules(source, positions=positions)
            model = SentenceModel(encoder, pooling=modules.pooling if modules else "mean")
        else:
            model = TaskModel(
                encoder,
                outputs=saved.outputs,
                head_dropout=saved.head_dropout,
                bilstm=any(name.startswith(BILSTM) for name in tensors),
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


def _renamed(tensors: Mapping[str, Tensor], old: str, new: str) -> dict[str, Tensor]:
    """The tensors, with the prefix `old` of their names replaced by `new`."""
    return {
        new + name.removeprefix(old) if name.startswith(old) else name: value
        for name, value in tensors.items()
    }
