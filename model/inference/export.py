"""Export of models in Hugging Face's layout, and import as artifacts for stages to start from.

In:  `EncoderFiles`, or a finetune artifact with saved models and a task's name; a directory.
Out: config.json, model.safetensors, tokenizer.json, tokenizer_config.json, vocab.txt, README.md,
     for `transformers` and Cloze; a sentence encoder also has sentence-transformers' modules and
     gives the same vectors there. An imported encoder is a committed artifact with the same files
     as one from the pretrain stage.

The same encoder always gives the same bytes, so that digests verify a round trip of export and
import. Model cards contain no text of the corpus or of the labelled data; from the card of a
third-party model only the licence is kept, which applies to the weights.
"""

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from pathlib import Path
from typing import TypeGuard

from pydantic import JsonValue
from safetensors.torch import save

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.manifest import MANIFEST_NAME, Manifest
from cloze.artifacts.results import Trial, Trials
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, Store, commit, open_artifact, put_bytes
from cloze.artifacts.tokenizer import CLS, MASK, PAD, SEP, UNK, SubwordTokenizer
from cloze.model.config import EncoderConfig, Family
from cloze.model.encoder.models import SentenceModel, TaskModel
from cloze.model.hugging_face.layout import hugging_face_config, special_ids
from cloze.model.hugging_face.model_files import (
    CARD,
    EncoderFiles,
    SavedTask,
    read_encoder_files,
    read_model,
    saved_source,
)
from cloze.model.hugging_face.source import artifact_source
from cloze.model.hugging_face.term_vectors import TermVectors

IMPORT = "import"
IMPORT_FORMAT_VERSION = 1

UNFINISHED = ".unfinished"
"""File in a directory that an export has begun to fill: the same command empties it and begins
again."""

TAG = "- cloze\n"
"""Marks the header of every card written here."""

FAMILIES: Mapping[Family, str] = {"bert": "BERT", "modern": "ModernBERT"}
"""Names of the architectures."""

TERMS_NOTE = """\
## Term vectors

A text's vector is moved towards the vectors of its terms, which are fitted to one collection of
documents; others may be found worse than without. sentence-transformers computes it with the code
in `term_vectors.py`:

```python
SentenceTransformer("this folder", trust_remote_code=True)
```"""

SOURCES = {"BERT": "Devlin et al. 2019", "ModernBERT": "Warner et al. 2024"}


def export_encoder(
    files: EncoderFiles, directory: str | Path, *, is_all: bool = True
) -> list[Path]:
    """Write the encoder into a new or empty `directory`; return the paths written.

    One in which an export was interrupted is emptied first. Unless `is_all`, the directory is
    marked as unfinished until `finish_export`.
    """
    return _write_folder(contents(files), directory, is_all=is_all)


def export_task(
    location: str, directory: str | Path, *, task: str = "", is_all: bool = True
) -> list[Path]:
    """Write the model of `task`; otherwise like `export_encoder`."""
    if not filesystem.exists(filesystem.join(location, MANIFEST_NAME)):
        raise UsageError(f"{location}: not a finetune artifact; name a run, or its directory")
    artifact = open_artifact(location)
    source = saved_source(artifact_source(artifact), task)
    model, saved, tokenizer = read_model(source)
    files = {name: Path(source.path(name)).read_bytes() for name in source.names}
    longest = min(saved.task.max_seq_length, model.encoder.config.max_position_embeddings)
    # Longer inputs than in training would be new to the model, though it may have positions for
    # them.
    files |= _tokenizer_files(tokenizer, model.encoder.config, longest=longest)
    names = {entry.name for entry in artifact.manifest.files}
    trial = _kept_trial(artifact, saved) if "trials.json" in names else None
    card = task_card(saved, model, trial, artifact.manifest).encode()
    return _write_folder({**files, CARD: card}, directory, is_all=is_all)


def _kept_trial(artifact: Artifact, saved: SavedTask) -> Trial:
    """The trial whose model was saved."""
    trials = Trials.model_validate(artifact.read_json("trials.json")).trials
    wanted = (saved.task.name, "pretrained", "")
    candidates = [trial for trial in trials if (trial.task, trial.system, trial.point) == wanted]
    # The same choice as in fine-tuning, which saved the model of the trial with the highest merit.
    return max(candidates, key=lambda trial: trial.merit)


def import_encoder(location: str | Path, store: Store) -> Artifact:
    """Import the encoder at `location` into the store, unless it is already there."""
    files = read_encoder_files(location)
    written = contents(files)
    # The key is that of the content, so the same encoder is imported once, wherever it lies.
    table = StageTable(
        stage=IMPORT,
        format_version=IMPORT_FORMAT_VERSION,
        # The digests of its files are the artifact's whole configuration.
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


def contents(files: EncoderFiles, *, made: str = "") -> dict[str, bytes]:
    """The exported files, by name; `made`: how, for the card of new weights."""
    tensors = {name: tensor.contiguous() for name, tensor in files.tensors.items()}
    config: dict[str, JsonValue] = {
        **hugging_face_config(files.config, files.tokenizer.size, objective=files.objective),
        **special_ids(files.config.family, files.tokenizer),
        "architectures": [files.architecture],
        "pad_token_id": files.tokenizer.pad_id,
    }
    return {
        "config.json": _json(config),
        "model.safetensors": save(tensors, metadata={"format": "pt"}),
        **_tokenizer_files(
            files.tokenizer, files.config, longest=files.config.max_position_embeddings
        ),
        **(files.modules.files(width=files.config.hidden_size) if files.modules else {}),
        CARD: (
            # Terms may have been added to an encoder whose card does not tell of them.
            files.card
            if is_ours(files.card) and not made and not has_terms(files)
            else model_card(files, made=made)
        ).encode(),
    }


def _tokenizer_files(
    tokenizer: SubwordTokenizer, encoder: EncoderConfig, *, longest: int
) -> dict[str, bytes]:
    """The tokenizer in every form that loaders look for; they truncate to `longest` tokens."""
    config: dict[str, JsonValue] = {
        "model_max_length": longest,
        "pad_token": PAD,
        "unk_token": UNK,
        "cls_token": CLS,
        "sep_token": SEP,
        "mask_token": MASK,
        **tokenizer.transformers_options(),  # perhaps with other names
    }
    if encoder.family == "modern":  # its classes have no token types
        config["model_input_names"] = ["input_ids", "attention_mask"]
    return {**tokenizer.files(), "tokenizer_config.json": _json(config)}


def finish_export(directory: str | Path) -> None:
    """Declare that `directory` is complete."""
    (Path(directory) / UNFINISHED).unlink()


def _write_folder(
    contents: Mapping[str, bytes], directory: str | Path, *, is_all: bool
) -> list[Path]:
    target = Path(directory)
    mark = target / UNFINISHED
    # Only what an earlier export has begun is emptied; anything else is refused.
    if mark.is_file():
        # Files in deeper folders first; folders stay, they are written into again.
        for path in sorted(target.rglob("*"), reverse=True):
            if path != mark and (path.is_symlink() or not path.is_dir()):
                path.unlink()
    elif target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise UsageError(f"{target}: exists already; name a new or empty directory")
    target.mkdir(parents=True, exist_ok=True)
    # The mark comes before the first file and goes after the last, so a folder without one is never
    # half an export.
    mark.touch()
    for name, content in contents.items():
        filesystem.write_bytes(str(target / name), content)
    if is_all:
        finish_export(target)
    return [target / name for name in contents]


def _json(value: Mapping[str, JsonValue]) -> bytes:
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def is_ours(card: str | None) -> TypeGuard[str]:
    """Whether a card was written here, and so describes these weights."""
    # In the header, between the first two lines of dashes.
    return card is not None and card.startswith("---\n") and TAG in card.split("---\n")[1]


def has_terms(files: EncoderFiles) -> bool:
    """Whether its vectors are those of its terms, too."""
    steps = files.modules.steps if files.modules else ()
    return any(isinstance(step, TermVectors) for step in steps)


def model_card(files: EncoderFiles, *, made: str = "") -> str:
    """The card of an encoder that was pre-trained here, imported, or `made` in another way."""
    config, modules = files.config, files.modules
    family = FAMILIES[config.family]
    sections = [
        _header("sentence-similarity" if modules else "fill-mask", family, licence=files.licence),
        f"# {family} encoder, {config.num_hidden_layers} layers × {config.hidden_size}\n\n"
        f"A bidirectional transformer encoder ({SOURCES[family]}), "
        f"{made or ('imported into' if files.card or modules else 'pre-trained with')} Cloze.",
        _table(
            "Architecture",
            [
                ("layers", config.num_hidden_layers),
                ("hidden size", config.hidden_size),
                ("attention heads", config.num_attention_heads),
                ("intermediate size", config.intermediate_size),
                ("positions", config.max_position_embeddings),
                ("attention", config.attention_direction.replace("_", " ")),
                ("activation", config.hidden_act),
                ("vocabulary", f"{files.tokenizer.size:,} word-pieces"),
                ("letter case", "lower-cased" if files.tokenizer.lowercase else "kept"),
                ("parameters", f"{sum(tensor.numel() for tensor in files.parameters.values()):,}"),
            ],
        ),
    ]
    if files.manifest is not None:
        sections += [*_pretraining(files.manifest), _origin(files.manifest)]
    if has_terms(files):
        sections.append(TERMS_NOTE)
    name = files.layout.classes + ("ForMaskedLM" if files.has_masked_lm else "Model")
    return _joined([*sections, _transformers_use(name, config), _limits("encoder", "corpus")])


def task_card(
    saved: SavedTask, model: TaskModel | SentenceModel, trial: Trial | None, manifest: Manifest
) -> str:
    """The card of a fine-tuned model, whose weights are those of `trial`; None: of a student."""
    task, encoder = saved.task, model.encoder.config
    family = FAMILIES[encoder.family]
    recipe: list[tuple[str, object]] = [
        ("labels", ", ".join(task.labels) or "none"),
        ("longest input", f"{task.max_seq_length} tokens"),
    ]
    how, scores = "distilled from a larger model", []
    note = "Scores are on rows that it has not learnt; its teacher may have been trained on them."
    if trial:
        how = "fine-tuned"
        note = (
            "The best of its seeds on dev, so these figures flatter it; the report has all seeds."
        )
        recipe += [
            ("batch", trial.batch_size),
            ("peak rate", f"{trial.learning_rate:g}"),
            ("steps", f"{trial.steps:,}"),
            ("epoch", f"{trial.chosen_epoch} of {task.epochs}"),
            ("seed", trial.seed),
        ]
        scores = [
            (f"{split} {metric}", f"{value:.4f}")
            for split, values in {"dev": trial.dev, "test": trial.test, **trial.more}.items()
            for metric, value in values.items()
        ]
    else:
        # A student has no trial of its own.
        quality = manifest.statistics["quality"]
        scores = [(name, f"{value}") for name, value in quality.items()]
    return _joined(
        [
            _header(saved.pipeline, family, licence=saved.licence),
            f"# {task.name}\n\nA {family} encoder of {encoder.num_hidden_layers} layers × "
            f"{encoder.hidden_size}, {how} with Cloze ({task.kind.replace('_', ' ')}).",
            _table("Training", recipe),
            _table("Scores", scores),
            note,
            _origin(manifest),
            _transformers_use(
                saved.architecture(encoder.family), encoder, bilstm=model.bilstm is not None
            )
            if saved.pooling == "pooler"
            else _vector_use(saved.pooling),
            _limits("model", "training data"),
        ]
    )


def _joined(sections: Iterable[str]) -> str:
    return "\n\n".join(sections) + "\n"


def _header(pipeline: str, family: str, *, licence: str = "") -> str:
    """The YAML header; `pipeline` is the hub's name for the kind of task."""
    tags = f"{licence}tags:\n- {family.lower()}\n{TAG}"
    return f"---\nlibrary_name: transformers\npipeline_tag: {pipeline}\n{tags}---"


def _pretraining(manifest: Manifest) -> list[str]:
    """The recipe and the held-out scores, as far as the manifest contains them."""
    sections = []
    recipe = manifest.config.get("pretrain", {})
    if recipe:
        optimizer = recipe["optimizer"]
        lengths = ", ".join(
            f"{phase['max_seq_length']} tokens for {phase['share']:.0%} of the steps"
            for phase in recipe["phases"]
        )
        losses = "masked language model"
        if recipe["next_sentence_loss"]:
            losses += " and next sentence"
        if recipe.get("objective") == "next_token":
            losses = "next token, from one side"
        rows = [
            ("steps", f"{recipe['steps']:,}"),
            ("sequences per step", recipe["batch_size"]),
            ("sequence lengths", lengths),
            ("losses", losses),
            ("optimizer", f"{optimizer['name']}, peak rate {optimizer['learning_rate']:g}"),
            ("precision", recipe["precision"]),
            ("seed", manifest.config["seed"]),
        ]
        sections.append(_table("Training", rows))
    scores = [
        (name.replace("_", " "), f"{value:.4g}" if isinstance(value, float) else str(value))
        for name, value in manifest.statistics.get("heldout", {}).items()
    ]
    return [*sections, _table("On held-out documents", scores)] if scores else sections


def _origin(manifest: Manifest) -> str:
    """The artifact's digest, its inputs and versions."""
    inputs = [(f"input {role}", f"`{digest[:16]}`") for role, digest in manifest.inputs.items()]
    artifact = [("artifact", f"`{manifest.digest[:16]}`"), ("stage", manifest.stage)]
    return _table("Origin", [*artifact, *inputs, *manifest.versions.items()])


def _transformers_use(name: str, encoder: EncoderConfig, *, bilstm: bool = False) -> str:
    """How to load it as the class `name` of `transformers`, if that is equivalent."""
    direction = encoder.attention_direction.replace("_", " ")
    strange = [f"{direction} attention"] if direction != "bidirectional" else []
    strange += ["a BiLSTM before its head"] if bilstm else []
    if strange:
        return (
            f"## Use\n\nIt has {' and '.join(strange)}, which `transformers` does not know of "
            'BERT: loaded there it computes something else. Use `cloze.load("this folder")`.'
        )
    return (
        "## Use\n\n```python\n"
        f"from transformers import AutoTokenizer, {name}\n\n"
        f'model = {name}.from_pretrained("this folder")\n'
        'tokenizer = AutoTokenizer.from_pretrained("this folder")\n```'
    )


def _vector_use(pooling: str) -> str:
    """How to use a head on what no class of `transformers` computes."""
    what = f"the {pooling} vector of a text, scaled to length 1"
    if pooling == "comparison":
        what = "the pooler's output beside a comparison of both texts' mean vectors and words"
    return (
        f"## Use\n\nIts head reads {what}, which no class of `transformers` does: use "
        '`cloze.load_task("this folder")`, or a graph (`--onnx`).'
    )


def _limits(what: str, source: str) -> str:
    return (
        f"## Limits\n\nThe {what} knows what its {source} says, errors and prejudices included, "
        "and no more. Judge it on your own data before relying on it."
    )


def _table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A heading, and a two-column table without a header row."""
    lines = [f"| {name} | {_cell(value)} |" for name, value in rows]
    return f"## {title}\n\n" + "\n".join(["| | |", "|---|---|", *lines])


def _cell(value: object) -> str:
    """The text of a value, for example a label, which cannot end its cell or line."""
    return " ".join(str(value).replace("|", "\\|").split())
