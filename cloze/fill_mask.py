"""`cloze fill-mask`: the likeliest words for each [MASK].

In:  a model and texts.
Out: for every [MASK] the best word-pieces with their probabilities.
"""

from dataclasses import asdict
from itertools import tee
from typing import Annotated

from cyclopts import Parameter

from cloze.answer import Answer
from cloze.models import ModelName, Text, texts_or_lines
from cloze.names import model_directory
from cloze.options import PLACE, Place
from model.use.fill_mask import Fill
from model.use.load import load

TopK = Annotated[int, Parameter(help="How many word-pieces for each [MASK].")]


def fill_mask(model: ModelName, /, *texts: Text, top_k: TopK = 5, place: Place = PLACE) -> Answer:
    """Fill masks."""
    loaded = load(model_directory(model, place.space()))
    asked, shown = tee(texts_or_lines(texts))
    answers = list(zip(shown, loaded.fill_masks(asked, top_k=top_k), strict=True))
    data = [
        {"text": text, "masks": [[asdict(fill) for fill in fills] for fills in masks]}
        for text, masks in answers
    ]
    lines = [line for text, masks in answers for line in (text, *map(_line, masks))]
    return Answer(data, "\n".join(lines), place.json)


def _line(fills: list[Fill]) -> str:
    return "  " + "   ".join(f"{fill.token} {fill.probability:.3f}" for fill in fills)
