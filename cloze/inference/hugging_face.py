"""`cloze export` and `cloze import`: models in Hugging Face's layout, to and from a workspace.

In:  a model and a new directory; with --task, a run that kept its fine-tuned models.
     For `import` a folder with config.json and model.safetensors.
Out: config.json, model.safetensors, tokenizer.json, vocab.txt and a model card.
     For `import` an artifact that stages can start from.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.inference.input_texts import ModelName
from cloze.lookup import model_directory
from cloze.options import PLACE, Place
from flows.workspace import writable_workspace

Directory = Annotated[Path, Parameter(help="A new or empty directory.")]
Folder = Annotated[Path, Parameter(help="A folder with config.json and model.safetensors.")]
Task = Annotated[
    str,
    Parameter(
        help="Export the model fine-tuned for this task instead of the encoder.",
        show_default=False,
    ),
]


def export_model(
    model: ModelName, directory: Directory, /, *, task: Task = "", place: Place = PLACE
) -> Answer:
    """Export a model."""
    if task:
        from model.inference.export import export_task

        finetuned = model_directory(model, place.space(), stage="finetune")
        written = export_task(finetuned, directory, task=task)
    else:
        from model.hugging_face.encoder_files import read_encoder_files
        from model.inference.export import export

        written = export(read_encoder_files(model_directory(model, place.space())), directory)
    paths = [str(path) for path in written]
    return Answer({"directory": str(directory), "files": paths}, "\n".join(paths), place.json)


def import_model(folder: Folder, /, *, place: Place = PLACE) -> Answer:
    """Import a model."""
    from model.inference.import_model import import_encoder

    space = writable_workspace(place.machine().workspace)
    artifact = import_encoder(folder, space.store)
    data = {"directory": artifact.directory, "digest": artifact.digest}
    return Answer(data, artifact.directory, place.json)
