"""`cloze import`: a model from elsewhere as an artifact, so that stages can start from it.

In:  a folder in Hugging Face's layout.
Out: the artifact's directory.
"""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.options import PLACE, Place
from flows.workspace import writable_workspace
from model.inference.import_model import import_encoder

Folder = Annotated[Path, Parameter(help="A folder with config.json and model.safetensors.")]


def import_model(folder: Folder, /, *, place: Place = PLACE) -> Answer:
    """Import a model."""
    space = writable_workspace(place.machine().workspace)
    artifact = import_encoder(folder, space.store)
    data = {"directory": artifact.directory, "digest": artifact.digest}
    return Answer(data, artifact.directory, place.json)
