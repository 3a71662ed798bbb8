"""The labelled tasks of the demo: tag the names in a sentence, match summaries and signatures.

In:  the docstrings of one module with the definitions they document; the symbols of the packages.
Out: tagging: sentences as words with one tag each: a parameter of the documented function, a type,
     an exception, a function, or none of these;
     pairs: a summary and a signature, half of which belong together.

The labels come from signatures and syntax trees, which the text does not show, and the quotes that
would give them away are removed: `weight` may be a parameter in one sentence and a plain word in
the next. Ambiguous sentences, with a word that equals a parameter's name but was not set as code,
are skipped. So are sentences with one-letter parameters, and Python's built-in types count as plain
words, because their form alone would identify them.

The signature of a negative pair comes from another function of the same module, the one that shares
as many words with the summary as the true signature does; otherwise counting common words would
solve the task. For this comparison, names are split (`addWeightedEdges` into add, weighted, edges)
and words are stemmed.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

from cloze.artifacts.rng import stream_seed
from cloze.demo.docstring_text import CODE_BEGIN, CODE_END, paragraphs
from cloze.demo.packages import Docstring, Symbols

OUTSIDE = "O"
TAGS = (OUTSIDE, "B-EXC", "B-FUNC", "B-PARAM", "B-TYPE")
"""Every name is a single word, so there are no I- tags."""

TAGGING_TASK: dict[str, str | tuple[str, ...]] = {
    "name": "tagging",
    "kind": "tagging",
    "labels": TAGS,
    "description": "Which words of a documentation sentence name a parameter of the function "
    "described, a type, an exception or a function? Quotes and signature are hidden.",
}

SENTENCE_WORDS = range(6, 41)
"""Length of the sentences to use."""

MIN_WORD_SHARE = 0.7
"""Minimum share of words among the tokens of a sentence."""

# the mark of code, a name with dots, a number, or any other sign
_TOKEN = re.compile(
    rf"[{CODE_BEGIN}{CODE_END}]|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|\d+(?:\.\d+)*|[^\w\s]"
)
# the header of a parameter: `axis : `, and with its type, `axis (int): `
_HEADER = re.compile(r"[\w*.]+(?:, [\w*.]+)* : ")
_LABEL = re.compile(r"[\w*.]+(?:, [\w*.]+)*(?: ?\([^)]*\))? ?: ")
_LETTER = re.compile(r"[A-Za-z]")
_QUOTES = frozenset("'\"")
_STOPS = frozenset(".!?")

PAIR_LABELS = ("match", "other")
PAIR_TASK: dict[str, str | tuple[str, ...]] = {
    "name": "pairs",
    "kind": "pair_classification",
    "labels": PAIR_LABELS,
    "description": "Does this summary belong to this signature, or to another one of its module "
    "that shares as many words with it?",
}

SUMMARY_WORDS = range(4, 31)
"""Length of the summaries to use."""

# the words in a name: HTTP and Server in HTTPServer
_PART = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+")
_SENTENCE_END = re.compile(r"(?<=[.!?]) (?=[A-Z])")
# endings after at least three letters
_ENDING = re.compile(r"(?<=...)(ations?|ings?|ions?|ers?|ies|ied|ed|es|ly|al|[sye])$")


@dataclass(frozen=True)
class Sentence:
    """Words with one tag each."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class _Token:
    text: str
    is_code: bool
    opens: bool
    """Whether it begins a sentence."""


@dataclass(frozen=True)
class Scope:
    """The names that can occur in one docstring."""

    parameters: frozenset[str]
    """Parameters of the documented function."""

    ambiguous: frozenset[str]
    """Parameters of the enclosing class, which may be attributes here: ambiguous."""

    symbols: Symbols
    """Symbols of the docstring's own distribution and of Python."""

    everywhere: Symbols
    """Symbols of all distributions, for names that cannot be English words."""

    def tag(self, token: _Token) -> str | None:
        """The tag of a word; None if it is ambiguous or recognisable without context."""
        # In `Graph.add_edge`, the first part may be a parameter, the last one a symbol.
        first, last = token.text.partition(".")[0], token.text.rpartition(".")[2]
        if last in self.symbols.exceptions:
            return "B-EXC"
        if first in self.parameters:
            is_certain = (token.is_code or _looks_like_a_name(first)) and len(first) > 1
            return "B-PARAM" if is_certain and first == last else None
        # No English word looks like this, so symbols of all packages count.
        if _looks_like_a_name(last):
            return _tag_of_symbol(last, self.everywhere)
        # Set as code: only symbols of its own package, whose names may be English words.
        if token.is_code and len(last) > 1:
            return None if last in self.ambiguous else _tag_of_symbol(last, self.symbols)
        # A plain word that equals a type is ambiguous, except for the capital that begins a
        # sentence.
        return None if last in self.symbols.types and not token.opens else OUTSIDE


def sentences(
    docstrings: Iterable[Docstring], own: Symbols, everywhere: Symbols
) -> Iterator[Sentence]:
    """The labelled sentences of a module; `Scope` explains the symbols."""
    known = list(docstrings)
    of_class = {one.name: frozenset(one.parameters) for one in known if one.kind == "class"}
    for docstring in known:
        if docstring.kind in ("class", "function"):
            ambiguous = of_class.get(docstring.name.rpartition(".")[0], frozenset())
            scope = Scope(frozenset(docstring.parameters), ambiguous, own, everywhere)
            yield from tagged_sentences(docstring.text, scope)


def tagged_sentences(docstring: str, scope: Scope) -> Iterator[Sentence]:
    """The sentences of a docstring with at least one name and no ambiguous word."""
    for paragraph in paragraphs(docstring, mark_code=True):
        if _HEADER.match(paragraph):
            continue
        # Parentheses would give functions away.
        text = _LABEL.sub("", paragraph, count=1).replace("()", "")
        for tokens in _sentences(text):
            words = sum(_LETTER.match(token.text) is not None for token in tokens)
            if words < MIN_WORD_SHARE * len(tokens) or len(tokens) not in SENTENCE_WORDS:
                continue
            tags = [scope.tag(token) for token in tokens]
            known = tuple(tag for tag in tags if tag is not None)
            if len(known) == len(tags) and set(known) != {OUTSIDE}:
                yield Sentence(tuple(token.text for token in tokens), known)


def _sentences(text: str) -> Iterator[list[_Token]]:
    """Split a paragraph into sentences of tokens."""
    is_code = in_string = False
    opens = True
    current: list[_Token] = []
    for match in _TOKEN.finditer(text):
        found = match[0]
        if found in (CODE_BEGIN, CODE_END):
            is_code, in_string = found == CODE_BEGIN, False
            continue
        # A string within code is a value, not a name.
        in_string ^= is_code and found in _QUOTES
        # After the full stop of an abbreviation, the sentence goes on in lower case.
        if opens and current and not found[0].islower():
            yield current
            current = []
        current.append(_Token(found, is_code and not in_string, opens))
        # A full stop within code ends no sentence.
        opens = found in _STOPS and not is_code
    yield current


def _tag_of_symbol(name: str, symbols: Symbols) -> str:
    if name in symbols.types:
        return "B-TYPE"
    return "B-FUNC" if name in symbols.functions else OUTSIDE


def _looks_like_a_name(text: str) -> bool:
    """Whether a word looks like an identifier even if it was not set as code."""
    # `learning_rate` and `addEdge`, but not `NASA`.
    return "_" in text.strip("_") or (text[1:] != text[1:].lower() and text != text.upper())


@dataclass(frozen=True)
class Pair:
    """A summary, a signature, and whether they belong together."""

    text_a: str
    text_b: str
    label: str
    """`match` or `other`."""


def pairs(docstrings: Sequence[Docstring], *, seed: int) -> Iterator[tuple[Pair, Pair]]:
    """A positive and a negative pair with the same summary for each function of a module."""
    functions = documented_functions(docstrings)
    for summary, signature in functions.items():
        others = [other for other in functions.values() if other != signature]
        if others:
            wanted = _common_stems(summary, signature)
            other = min(
                others,
                key=lambda one: (
                    abs(_common_stems(summary, one) - wanted),
                    # ties are drawn by a hash
                    int(stream_seed(seed, "pair", summary, one)),
                ),
            )
            yield Pair(summary, signature, "match"), Pair(summary, other, "other")


def _common_stems(text: str, other: str) -> int:
    return len(stems(text) & stems(other))


@cache
def stems(text: str) -> frozenset[str]:
    """The stems of words of at least three letters, with names split."""
    parts = (part.lower() for part in _PART.findall(text))
    return frozenset(_ENDING.sub("", part) for part in parts if len(part) > 2)


def documented_functions(docstrings: Sequence[Docstring]) -> dict[str, str]:
    """The signatures of functions by their summaries, which are sentences and distinct."""
    found: dict[str, str] = {}
    for docstring in docstrings:
        own_name = docstring.name.rpartition(".")[2]
        if not docstring.parameters or own_name.startswith("__"):
            continue
        first = next(iter(paragraphs(docstring.text)), "")
        summary = _SENTENCE_END.split(first, maxsplit=1)[0]
        if summary.count(" ") + 1 in SUMMARY_WORDS and summary not in found:
            found[summary] = docstring.signature
    return found
