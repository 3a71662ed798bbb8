"""`cloze export`: a trained encoder in Hugging Face's layout.

In:  a model and a new directory.
Out: config.json, model.safetensors, tokenizer.json, vocab.txt, a model card.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.models import ModelName
from cloze.names import model_directory
from cloze.options import PLACE, Place
from model.use.encoder_files import read_encoder_files
from model.use.exporting import export as write_export

Target = Annotated[Path, Parameter(help="A new or empty directory.")]


def export(model: ModelName, directory: Target, /, *, place: Place = PLACE) -> Answer:
    """Export a model."""
    files = read_encoder_files(model_directory(model, place.space()))
    written = [str(path) for path in write_export(files, directory)]
    data = {"directory": str(directory), "files": written}
    return Answer(data, "\n".join(written), place.json)
