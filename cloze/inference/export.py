"""`cloze export`: an encoder, or a fine-tuned model, in Hugging Face's layout.

In:  a model and a new directory; with --task, a run that kept its fine-tuned models.
Out: config.json, model.safetensors, tokenizer.json, vocab.txt, a model card.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.inference.models import ModelName
from cloze.names import model_directory
from cloze.options import PLACE, Place
from model.hugging_face.encoder_files import read_encoder_files
from model.inference.export import export as write_export
from model.inference.export import export_task

Target = Annotated[Path, Parameter(help="A new or empty directory.")]
Task = Annotated[
    str,
    Parameter(help="The model fine-tuned for this task, not the encoder.", show_default=False),
]


def export(
    model: ModelName, directory: Target, /, *, task: Task = "", place: Place = PLACE
) -> Answer:
    """Export a model."""
    if task:
        finetuned = model_directory(model, place.space(), stage="finetune")
        written = export_task(finetuned, directory, task=task)
    else:
        written = write_export(read_encoder_files(model_directory(model, place.space())), directory)
    paths = [str(path) for path in written]
    return Answer({"directory": str(directory), "files": paths}, "\n".join(paths), place.json)
