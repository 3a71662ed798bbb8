"""The model card of a fine-tuned model.

In:  its task, the model, the fit whose weights it has, the manifest it came with.
Out: README.md in the form that Hugging Face's hub shows. No text of the data appears.
"""

from artifacts.manifest import Manifest
from artifacts.results import Trial
from model.finetune.heads import TaskModel
from model.finetune.saved import SavedTask
from model.inference.model_card import header, limits, origin, table, transformers_use

_PIPELINES = {
    "classification": "text-classification",
    "pair_classification": "text-classification",
    "regression": "text-classification",
    "tagging": "token-classification",
    "span": "question-answering",
    "multiple_choice": "multiple-choice",
}


def task_card(saved: SavedTask, model: TaskModel, fit: Trial, manifest: Manifest) -> str:
    """The whole card; `fit` is the one whose weights were kept."""
    task, encoder = saved.task, model.encoder.config
    sections = [
        header(_PIPELINES[task.kind]),
        f"# {task.name}\n\nA BERT encoder of {encoder.num_hidden_layers} layers × "
        f"{encoder.hidden_size}, fine-tuned with Cloze ({task.kind.replace('_', ' ')}).",
        _recipe(saved, fit),
        _scores(fit),
        origin(manifest),
        transformers_use(saved.architecture, encoder, bilstm=model.bilstm is not None),
        limits("model", "training data"),
    ]
    return "\n\n".join(sections) + "\n"


def _recipe(saved: SavedTask, fit: Trial) -> str:
    task = saved.task
    rows: list[tuple[str, object]] = [
        ("labels", ", ".join(task.labels) or "none"),
        ("longest input", f"{task.max_seq_length} tokens"),
        ("batch", fit.batch_size),
        ("peak rate", f"{fit.learning_rate:g}"),
        ("steps", f"{fit.steps:,}"),
        ("epoch", f"{fit.chosen_epoch} of {task.epochs}"),
        ("seed", fit.seed),
    ]
    return "## Training\n\n" + table(rows)


def _scores(fit: Trial) -> str:
    splits = {"dev": fit.dev, "test": fit.test, **fit.more}
    rows = [
        (f"{split} {metric}", f"{value:.4f}")
        for split, values in splits.items()
        for metric, value in values.items()
    ]
    note = "The best of its seeds on dev, so these figures flatter it; the report has all seeds."
    return f"## Scores\n\n{table(rows)}\n\n{note}"
