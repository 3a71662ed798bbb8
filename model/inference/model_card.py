"""Model cards of encoders and fine-tuned models.

In:  `EncoderFiles`, with a manifest if the encoder was trained here; or a fine-tuned model and its
     trial.
Out: README.md as shown on Hugging Face's hub: a YAML header, then Markdown.

Cards contain no text of the corpus or of the labelled data. From the card of a third-party model
only the licence is kept, which applies to the weights.
"""

from collections.abc import Iterable, Mapping
from typing import TypeGuard

from artifacts.manifest import Manifest
from artifacts.results import Trial
from model.config import EncoderConfig, Family
from model.encoder.models import SentenceModel, TaskModel
from model.hugging_face.model_files import EncoderFiles, SavedTask

TAG = "- cloze\n"
"""Marks the header of every card written here."""

_PIPELINES = {
    "classification": "text-classification",
    "pair_classification": "text-classification",
    "multi_label_classification": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "span": "question-answering",
    "multiple_choice": "multiple-choice",
    "retrieval": "sentence-similarity",
}


FAMILIES: Mapping[Family, str] = {"bert": "BERT", "modern": "ModernBERT"}
"""Names of the architectures."""

SOURCES = {"BERT": "Devlin et al. 2019", "ModernBERT": "Warner et al. 2024"}


def is_ours(card: str | None) -> TypeGuard[str]:
    """Whether a card was written here, and so describes these weights."""
    return card is not None and card.startswith("---\n") and TAG in card.split("---\n")[1]


def model_card(files: EncoderFiles) -> str:
    """The card of an encoder that was pre-trained here, or imported."""
    config, modules = files.config, files.modules
    family = FAMILIES[config.family]
    sections = [
        _header("sentence-similarity" if modules else "fill-mask", family, licence=files.licence),
        f"# {family} encoder, {config.num_hidden_layers} layers × {config.hidden_size}\n\n"
        f"A bidirectional transformer encoder ({SOURCES[family]}), "
        f"{'imported into' if files.card or modules else 'pre-trained with'} Cloze.",
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
    name = files.layout.classes + ("ForMaskedLM" if files.has_heads else "Model")
    return _joined([*sections, _transformers_use(name, config), _limits("encoder", "corpus")])


def task_card(
    saved: SavedTask, model: TaskModel | SentenceModel, trial: Trial, manifest: Manifest
) -> str:
    """The card of a fine-tuned model, whose weights are those of `trial`."""
    task, encoder = saved.task, model.encoder.config
    family = FAMILIES[encoder.family]
    recipe: list[tuple[str, object]] = [
        ("labels", ", ".join(task.labels) or "none"),
        ("longest input", f"{task.max_seq_length} tokens"),
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
    return _joined(
        [
            _header(_PIPELINES[task.kind], family, licence=saved.licence),
            f"# {task.name}\n\nA {family} encoder of {encoder.num_hidden_layers} layers × "
            f"{encoder.hidden_size}, fine-tuned with Cloze ({task.kind.replace('_', ' ')}).",
            _table("Training", recipe),
            _table("Scores", scores),
            "The best of its seeds on dev, so these figures flatter it; the report has all seeds.",
            _origin(manifest),
            _transformers_use(
                saved.architecture(encoder.family), encoder, bilstm=model.bilstm is not None
            ),
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


def _limits(what: str, source: str) -> str:
    return (
        f"## Limits\n\nThe {what} knows what its {source} says, errors and prejudices included, "
        "and no more. Judge it on your own data before relying on it."
    )


def _table(title: str, rows: Iterable[tuple[str, object]]) -> str:
    """A heading, and a two-column table without a header row."""
    lines = [f"| {name} | {value} |" for name, value in rows]
    return f"## {title}\n\n" + "\n".join(["| | |", "|---|---|", *lines])
