"""`cloze fill-mask`: the most probable tokens for each [MASK].

In:  a model and texts.
Out: the best tokens for every [MASK] with their probabilities, text by text.
"""

from dataclasses import asdict
from itertools import tee
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer, print_lines
from cloze.inference.input_texts import ModelName, Text, metered, texts_or_lines
from cloze.lookup import model_directory
from cloze.options import PLACE, Place
from model.inference.load import load

TopK = Annotated[int, Parameter(help="Number of tokens for each [MASK].")]


def fill_mask(
    model: ModelName, /, *texts: Text, top_k: TopK = 5, place: Place = PLACE
) -> Answer | None:
    """Fill masks."""
    loaded = load(model_directory(model, place.space()))
    asked, shown = tee(texts_or_lines(texts))
    found = zip(shown, loaded.fill_masks(asked, top_k=top_k), strict=True)
    filled = found if texts else metered(found, verb="fill-mask", unit="texts")
    if place.json:
        data = [
            {"text": text, "masks": [[asdict(fill) for fill in fills] for fills in masks]}
            for text, masks in filled
        ]
        return Answer(data, "", as_json=True)
    for text, masks in filled:
        ranked = ["   ".join(f"{f.token} {f.probability:.3f}" for f in fills) for fills in masks]
        print_lines([text, *(f"  {line}" for line in ranked)])
    return None
