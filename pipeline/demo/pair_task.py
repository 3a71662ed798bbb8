"""The pair task: whether a summary belongs to a signature.

In:  the documented functions of one module.
Out: pairs of a summary and a signature, half of them true.

The signature of a negative pair comes from another function of the same module, the one that shares
as many words with the summary as the true signature does; otherwise counting common words would
solve the task. For this comparison, names are split (`addWeightedEdges` into add, weighted, edges)
and words are stemmed.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from artifacts.rng import stream_seed
from pipeline.demo.docstring_text import paragraphs
from pipeline.demo.python_source import Docstring

LABELS = ("match", "other")
PAIR_TASK: dict[str, str | tuple[str, ...]] = {
    "name": "pairs",
    "kind": "pair_classification",
    "labels": LABELS,
    "description": "Does this summary belong to this signature, or to another one of its module "
    "that shares as many words with it?",
}

MIN_WORDS, MAX_WORDS = 4, 30
"""Length of the summaries to use."""

_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
_ENDING = re.compile(r"(?<=...)(ations?|ings?|ions?|ers?|ies|ied|ed|es|ly|al|[sye])$")


@dataclass(frozen=True)
class Pair:
    """A summary, a signature, and whether they belong together."""

    text_a: str
    text_b: str
    label: str
    """`match` or `other`."""


@dataclass(frozen=True)
class Function:
    """A documented function whose summary is unique in its module."""

    summary: str
    """The first sentence of its docstring."""
    signature: str
    summary_stems: frozenset[str]
    signature_stems: frozenset[str]


def pairs(docstrings: Sequence[Docstring], *, seed: int) -> Iterator[tuple[Pair, Pair]]:
    """A positive and a negative pair with the same summary for each function of a module."""
    functions = documented_functions(docstrings)
    for function in functions:
        others = [other for other in functions if other.signature != function.signature]
        if others:
            wanted = len(function.summary_stems & function.signature_stems)
            other = min(
                others,
                key=lambda one: (
                    abs(len(function.summary_stems & one.signature_stems) - wanted),
                    int(stream_seed(seed, "pair", function.summary, one.signature)),
                ),
            )
            yield (
                Pair(function.summary, function.signature, "match"),
                Pair(function.summary, other.signature, "other"),
            )


def stems(text: str) -> frozenset[str]:
    """The stems of words of at least three letters, with names split."""
    parts = (part.lower() for part in _PART.findall(text))
    return frozenset(_ENDING.sub("", part) for part in parts if len(part) > 2)


def documented_functions(docstrings: Sequence[Docstring]) -> list[Function]:
    """The functions whose summaries are sentences, one per distinct summary."""
    found: dict[str, Function] = {}
    for docstring in docstrings:
        own_name = docstring.name.rpartition(".")[2]
        if not docstring.parameters or own_name.startswith("__"):
            continue
        first = next(iter(paragraphs(docstring.text)), "")
        summary = _SENTENCE_END.split(first, maxsplit=1)[0]
        if MIN_WORDS <= summary.count(" ") + 1 <= MAX_WORDS and summary not in found:
            found[summary] = Function(
                summary, docstring.signature, stems(summary), stems(docstring.signature)
            )
    return list(found.values())
