"""A fine-tuned model in Hugging Face's layout.

In:  a finetune artifact that kept its models, a task's name, a directory.
Out: config.json (with the label map), model.safetensors, the tokenizer's files, a model card;
     `transformers` and `cloze predict` both read them.
"""

from pathlib import Path

from artifacts import filesystem
from artifacts.errors import UsageError
from artifacts.manifest import MANIFEST_NAME
from artifacts.results import Trial, Trials
from artifacts.store import Artifact, open_artifact
from model.evaluation.task_scores import PRETRAINED
from model.finetune.saved import SavedTask, read_model
from model.inference.encoder_files import CARD
from model.inference.export import tokenizer_files, write_folder
from model.inference.predict import MODELS, saved_task
from model.inference.source import artifact_source
from model.inference.task_card import task_card

KEPT = ("config.json", "model.safetensors")
"""Files that are in their final form already."""


def export_task(location: str, directory: str | Path, *, task: str = "") -> list[Path]:
    """Write the model of `task` into `directory`, which must be empty or new; the paths written."""
    if not filesystem.exists(filesystem.join(location, MANIFEST_NAME)):
        raise UsageError(f"{location}: no artifact of finetune; name a run, or its directory")
    artifact = open_artifact(location)
    source = artifact_source(artifact, folder=f"{MODELS}{saved_task(artifact, task)}/")
    model, saved, tokenizer = read_model(source)
    card = task_card(saved, model, _kept_fit(artifact, saved), artifact.manifest)
    contents = {
        **{name: Path(source.path(name)).read_bytes() for name in KEPT},
        **tokenizer_files(tokenizer, positions=model.encoder.config.max_position_embeddings),
        CARD: card.encode(),
    }
    return write_folder(contents, directory)


def _kept_fit(artifact: Artifact, saved: SavedTask) -> Trial:
    """The fit whose weights the artifact has."""
    fits = Trials.model_validate(artifact.read_json("fits.json"))
    tried = [
        fit
        for fit in fits.fits
        if (fit.task, fit.system) == (saved.task.name, PRETRAINED) and not fit.point
    ]
    return max(tried, key=lambda fit: fit.merit)
