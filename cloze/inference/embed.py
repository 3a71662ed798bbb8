"""`cloze embed`: one vector per text.

In:  a model and texts.
Out: a NumPy file of float32, [texts, width]; else a line of JSON per text, the vector; with --json
     one array at the end.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from artifacts.errors import UsageError
from cloze.answer import Answer, put_lines
from cloze.inference.models import ModelName, Text, metered, texts_or_lines
from cloze.names import model_directory
from cloze.options import PLACE, Place
from model.inference.embed import write_vectors
from model.inference.load import load

Target = Annotated[
    Path | None, Parameter(help="File to write, NAME.npy; without it, one vector a line.")
]
Pooling = Annotated[
    Literal["mean", "cls", "pooler"],
    Parameter(help="All tokens' mean, the first token, or the pooler's output for it."),
]
Layers = Annotated[
    str,
    Parameter(
        help="Which layers, side by side: 0 is the embeddings, -1 the last; the paper's best "
        "features are -4,-3,-2,-1.",
        allow_leading_hyphen=True,
    ),
]
Truncate = Annotated[bool, Parameter(negative="", help="Cut texts that are too long.")]


def embed(
    model: ModelName,
    /,
    *texts: Text,
    output: Target = None,
    pooling: Pooling = "mean",
    layers: Layers = "-1",
    truncate: Truncate = False,
    place: Place = PLACE,
) -> Answer | None:
    """Embed texts."""
    chosen = _numbers(layers)
    loaded = load(model_directory(model, place.space()))
    found = loaded.embed_stream(
        texts_or_lines(texts), pooling=pooling, layers=chosen, truncate=truncate
    )
    vectors = found if texts else metered(found, verb="embed", unit="texts")
    width = loaded.config.hidden_size * len(chosen)
    if output is not None:
        count = write_vectors(output, vectors, width=width)
        text = f"{output}: {count} vectors of {width} float32"
        return Answer({"shape": [count, width], "file": str(output)}, text, place.json)
    if place.json:
        listed = [vector.tolist() for vector in vectors]
        return Answer({"shape": [len(listed), width], "vectors": listed}, "", as_json=True)
    put_lines(json.dumps(vector.tolist()) for vector in vectors)
    return None


def _numbers(layers: str) -> tuple[int, ...]:
    try:
        return tuple(int(number) for number in layers.split(","))
    except ValueError:
        raise UsageError(
            f"--layers {layers}: expected numbers divided by commas, for example -4,-3,-2,-1"
        ) from None
