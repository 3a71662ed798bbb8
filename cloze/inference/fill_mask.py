"""`cloze fill-mask`: the likeliest words for each [MASK].

In:  a model and texts.
Out: for every [MASK] the best word-pieces with their probabilities, text by text.
"""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import tee
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer, put_lines
from cloze.inference.models import ModelName, Text, metered, texts_or_lines
from cloze.names import model_directory
from cloze.options import PLACE, Place
from model.inference.fill_mask import Fill
from model.inference.load import load

TopK = Annotated[int, Parameter(help="How many word-pieces for each [MASK].")]

Filled = tuple[str, list[list[Fill]]]
"""A text, and for each of its [MASK] the fills."""


def fill_mask(
    model: ModelName, /, *texts: Text, top_k: TopK = 5, place: Place = PLACE
) -> Answer | None:
    """Fill masks."""
    loaded = load(model_directory(model, place.space()))
    asked, shown = tee(texts_or_lines(texts))
    found = zip(shown, loaded.fill_masks(asked, top_k=top_k), strict=True)
    answers = found if texts else metered(found, verb="fill-mask", unit="texts")
    if place.json:
        return Answer([_data(answer) for answer in answers], "", as_json=True)
    put_lines(line for answer in answers for line in _lines(answer))
    return None


def _data(answer: Filled) -> dict[str, object]:
    text, masks = answer
    return {"text": text, "masks": [[asdict(fill) for fill in fills] for fills in masks]}


def _lines(answer: Filled) -> Iterator[str]:
    text, masks = answer
    yield text
    for fills in masks:
        yield "  " + "   ".join(f"{fill.token} {fill.probability:.3f}" for fill in fills)
