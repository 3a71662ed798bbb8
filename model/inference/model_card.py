"""The model card: what a stranger must know before using an encoder.

In:  `EncoderFiles`; for an encoder of ours, its manifest.
Out: README.md in the form that Hugging Face's hub shows: a YAML header, then Markdown.

Only what is known is said; nothing of the corpus' text appears.
"""

from collections.abc import Iterable
from typing import Any

from artifacts.manifest import Manifest
from model.config import EncoderConfig
from model.inference.encoder_files import EncoderFiles


def model_card(files: EncoderFiles) -> str:
    """The whole card."""
    sections = [header("fill-mask"), _title(files), _architecture(files)]
    if files.manifest is not None:
        sections += [_training(files.manifest), _scores(files.manifest), origin(files.manifest)]
    sections += [transformers_use(_class(files), files.config), limits("encoder", "corpus")]
    return "\n\n".join(section for section in sections if section) + "\n"


def header(pipeline: str) -> str:
    """The YAML that the hub reads; `pipeline` is its name for what the model does."""
    return f"---\nlibrary_name: transformers\npipeline_tag: {pipeline}\ntags:\n- bert\n- cloze\n---"


def _title(files: EncoderFiles) -> str:
    config = files.config
    return (
        f"# BERT encoder, {config.num_hidden_layers} layers × {config.hidden_size}\n\n"
        "A bidirectional transformer encoder (Devlin et al. 2019), pre-trained with Cloze."
    )


def _architecture(files: EncoderFiles) -> str:
    config = files.config
    parameters = sum(tensor.numel() for tensor in files.tensors.values())
    return "## Architecture\n\n" + table(
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
            ("parameters", f"{parameters:,}"),
        ]
    )


def _training(manifest: Manifest) -> str:
    recipe: dict[str, Any] = manifest.config.get("pretrain", {})
    if not recipe:
        return ""
    optimizer = recipe["optimizer"]
    lengths = ", ".join(
        f"{phase['max_seq_length']} tokens for {phase['share']:.0%} of the steps"
        for phase in recipe["phases"]
    )
    both = "masked language model and next sentence"
    return "## Training\n\n" + table(
        [
            ("steps", f"{recipe['steps']:,}"),
            ("sequences per step", recipe["batch_size"]),
            ("sequence lengths", lengths),
            ("losses", both if recipe["next_sentence_loss"] else "masked language model"),
            ("optimizer", f"{optimizer['name']}, peak rate {optimizer['learning_rate']:g}"),
            ("precision", recipe["precision"]),
            ("seed", manifest.config["seed"]),
        ]
    )


def _scores(manifest: Manifest) -> str:
    heldout = manifest.statistics.get("heldout")
    if not heldout:
        return ""
    rows = [(name.replace("_", " "), _number(value)) for name, value in heldout.items()]
    return "## On held-out documents\n\n" + table(rows)


def origin(manifest: Manifest) -> str:
    """Which artifact it is and what that was made from."""
    inputs = [(f"input {role}", f"`{digest[:16]}`") for role, digest in manifest.inputs.items()]
    versions = [(name, version) for name, version in manifest.versions.items()]
    return "## Origin\n\n" + table(
        [("artifact", f"`{manifest.digest[:16]}`"), ("stage", manifest.stage), *inputs, *versions]
    )


def _class(files: EncoderFiles) -> str:
    return "BertForMaskedLM" if files.has_heads else "BertModel"


def transformers_use(name: str, encoder: EncoderConfig, *, bilstm: bool = False) -> str:
    """How `transformers` loads it as its class `name`, where that computes the same."""
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


def limits(what: str, source: str) -> str:
    """What not to expect of it."""
    return (
        f"## Limits\n\nThe {what} knows what its {source} says, errors and prejudices included, "
        "and no more. Judge it on your own data before relying on it."
    )


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Two columns without a heading."""
    lines = [f"| {name} | {value} |" for name, value in rows]
    return "\n".join(["| | |", "|---|---|", *lines])


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
