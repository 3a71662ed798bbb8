"""`cloze embed`: one vector per text.

In:  a model and texts.
Out: a NumPy file of float32, [texts, width]; with --json the vectors themselves.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import Parameter

from artifacts.errors import UsageError
from cloze.answer import Answer
from cloze.models import ModelName, Text, texts_or_lines
from cloze.names import model_directory
from cloze.options import PLACE, Place
from model.use.load import load

Target = Annotated[Path | None, Parameter(help="File to write, NAME.npy.")]
Pooling = Annotated[
    Literal["mean", "cls", "pooler"], Parameter(help="All tokens' mean, or the first token's.")
]
Truncate = Annotated[bool, Parameter(negative="", help="Cut texts that are too long.")]


def embed(
    model: ModelName,
    /,
    *texts: Text,
    output: Target = None,
    pooling: Pooling = "mean",
    truncate: Truncate = False,
    place: Place = PLACE,
) -> Answer:
    """Embed texts."""
    if output is None and not place.json:
        raise UsageError("nowhere to put the vectors; add --output NAME.npy or --json")
    loaded = load(model_directory(model, place.space()))
    vectors = loaded.embed(list(texts_or_lines(texts)), pooling=pooling, truncate=truncate)
    data: dict[str, Any] = {"shape": list(vectors.shape)}
    if output is None:
        return Answer({**data, "vectors": vectors.tolist()}, "", place.json)
    np.save(output, vectors)
    text = f"{output}: {vectors.shape[0]} vectors of {vectors.shape[1]} float32"
    return Answer({**data, "file": str(output)}, text, place.json)
