"""Export of models in Hugging Face's layout, and import as artifacts for stages to start from.

In:  `EncoderFiles`, or a finetune artifact with saved models and a task's name; a directory.
Out: config.json, model.safetensors, tokenizer.json, tokenizer_config.json, vocab.txt, README.md,
     for `transformers` and Cloze; a sentence encoder also has sentence-transformers' modules and
     gives the same vectors there. An imported encoder is a committed artifact with the same files
     as one from the pretrain stage.

The same encoder always gives the same bytes, so that digests verify a round trip of export and
import.
"""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path

from pydantic import JsonValue
from safetensors.torch import save

from artifacts import filesystem
from artifacts.errors import UsageError
from artifacts.manifest import MANIFEST_NAME
from artifacts.results import Trials
from artifacts.stage import StageTable
from artifacts.store import Artifact, Store, commit, open_artifact, put_bytes
from artifacts.tokenizer import CLS, MASK, PAD, SEP, UNK, SubwordTokenizer
from model.config import EncoderConfig
from model.encoder.models import SentenceModel
from model.hugging_face.layout import hugging_face_config, special_ids
from model.hugging_face.model_files import (
    CARD,
    EncoderFiles,
    read_encoder_files,
    read_model,
    saved_source,
)
from model.hugging_face.source import SentenceModules
from model.inference.model_card import is_ours, model_card, task_card

IMPORT = "import"
IMPORT_FORMAT_VERSION = 1


def export(files: EncoderFiles, directory: str | Path) -> list[Path]:
    """Write the encoder into a new or empty `directory`; return the paths written."""
    return _write_folder(contents(files), directory)


def export_task(location: str, directory: str | Path, *, task: str = "") -> list[Path]:
    """Write the model of `task` into a new or empty `directory`; return the paths written."""
    if not filesystem.exists(filesystem.join(location, MANIFEST_NAME)):
        raise UsageError(f"{location}: not a finetune artifact; name a run, or its directory")
    artifact = open_artifact(location)
    source = saved_source(artifact, task)
    model, saved, tokenizer = read_model(source)
    trials = Trials.model_validate(artifact.read_json("fits.json")).fits
    files = {
        "config.json": Path(source.path("config.json")).read_bytes(),
        "model.safetensors": Path(source.path("model.safetensors")).read_bytes(),
        **_tokenizer_files(tokenizer, model.encoder.config),
    }
    if isinstance(model, SentenceModel):
        described = SentenceModules(model.pooling, True, saved.task.max_seq_length)
        files |= described.files(width=model.encoder.config.hidden_size)
    kept = max(
        (
            trial
            for trial in trials
            if (trial.task, trial.system, trial.point) == (saved.task.name, "pretrained", "")
        ),
        key=lambda trial: trial.merit,
    )
    card = task_card(saved, model, kept, artifact.manifest).encode()
    return _write_folder({**files, CARD: card}, directory)


def import_encoder(location: str | Path, store: Store) -> Artifact:
    """Import the encoder at `location` into the store, unless it is already there."""
    files = read_encoder_files(location)
    written = contents(files)
    table = StageTable(
        stage=IMPORT,
        format_version=IMPORT_FORMAT_VERSION,
        config={name: sha256(content).hexdigest() for name, content in written.items()},
        output="",
    )
    found = store.find(IMPORT, table.key)
    if found is not None:
        return found
    output = store.directory(IMPORT, table.key)
    entries = [put_bytes(output, content, name=name) for name, content in written.items()]
    return commit(
        table.model_copy(update={"output": output}),
        entries,
        statistics={
            "tokenizer_digest": files.tokenizer.digest,
            "vocabulary_size": files.tokenizer.size,
            "parameters": sum(tensor.numel() for tensor in files.parameters.values()),
            "missing": list(files.missing),
            "ignored": list(files.ignored),
        },
        execution={"source": str(location)},
    )


def contents(files: EncoderFiles) -> dict[str, bytes]:
    """The exported files, by name."""
    tensors = {name: tensor.contiguous() for name, tensor in files.tensors.items()}
    config: dict[str, JsonValue] = {
        **hugging_face_config(files.config, files.tokenizer.size, objective=files.objective),
        **special_ids(files.config.family, files.tokenizer),
        "architectures": [
            files.layout.classes + (files.layout.pretraining if files.has_heads else "Model")
        ],
        "pad_token_id": files.tokenizer.pad_id,
    }
    return {
        "config.json": _json(config),
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        **_tokenizer_files(files.tokenizer, files.config),
        **(files.modules.files(width=files.config.hidden_size) if files.modules else {}),
        CARD: (files.card if is_ours(files.card) else model_card(files)).encode(),
    }


def _tokenizer_files(tokenizer: SubwordTokenizer, encoder: EncoderConfig) -> dict[str, bytes]:
    """The tokenizer in every form that loaders look for."""
    config: dict[str, JsonValue] = {
        **tokenizer.transformers_options(),
        "model_max_length": encoder.max_position_embeddings,
        "pad_token": PAD,
        "unk_token": UNK,
        "cls_token": CLS,
        "sep_token": SEP,
        "mask_token": MASK,
    }
    if encoder.family == "modern":  # its classes have no token types
        config["model_input_names"] = ["input_ids", "attention_mask"]
    own = tokenizer.files()
    return {
        "tokenizer.json": own.pop("tokenizer.json"),
        "tokenizer_config.json": _json(config),
        **own,
    }


def _write_folder(contents: Mapping[str, bytes], directory: str | Path) -> list[Path]:
    target = Path(directory)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target}: exists already; name a new or empty directory")
    written = []
    for name, content in contents.items():
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        filesystem.write_bytes(str(path), content)
        written.append(path)
    return written


def _json(value: Mapping[str, JsonValue]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()
