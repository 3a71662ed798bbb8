"""`cloze embed`: one vector per text.

In:  a model and texts.
Out: a NumPy file of float32, [texts, width]; else one JSON array per line and text; with --json one
     document at the end.
"""

import json
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from artifacts.errors import UsageError
from cloze.answer import Answer, print_lines
from cloze.inference.input_texts import ModelName, Text, metered, texts_or_lines
from cloze.lookup import vectors_directory
from cloze.options import PLACE, Place
from model.inference.embed import write_vectors
from model.inference.load import load

OutputFile = Annotated[
    Path | None, Parameter(help="File to write, NAME.npy; without it, one vector per line.")
]
Pooling = Annotated[
    Literal["mean", "cls", "pooler"],
    Parameter(help="Mean of all tokens, the first token, or the pooler's output for it."),
]
Layers = Annotated[
    str,
    Parameter(
        help="Layers to concatenate: 0 is the embeddings, -1 the last layer; the paper's best "
        "features are -4,-3,-2,-1.",
        allow_leading_hyphen=True,
    ),
]
Truncate = Annotated[
    bool, Parameter(negative="", show_default=False, help="Truncate texts that are too long.")
]
Normalize = Annotated[
    bool, Parameter(negative="", show_default=False, help="Scale vectors to length 1.")
]


def embed(
    model: ModelName,
    /,
    *texts: Text,
    output: OutputFile = None,
    pooling: Pooling = "mean",
    layers: Layers = "-1",
    truncate: Truncate = False,
    normalize: Normalize = False,
    place: Place = PLACE,
) -> Answer | None:
    """Embed texts."""
    try:
        chosen = tuple(int(number) for number in layers.split(","))
    except ValueError:
        raise UsageError(
            f"--layers {layers}: expected numbers separated by commas, for example -4,-3,-2,-1"
        ) from None
    if output is not None and output.suffix != ".npy":
        raise UsageError(f"--output {output}: a NumPy file is written; name it {output.stem}.npy")
    loaded = load(vectors_directory(model, place.space()))
    found = loaded.embed_stream(
        texts_or_lines(texts),
        pooling=pooling,
        layers=chosen,
        truncate=truncate,
        normalize=normalize,
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
    print_lines(json.dumps(vector.tolist()) for vector in vectors)
    return None
