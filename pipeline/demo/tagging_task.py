"""The tagging task: find the words of a sentence that name parameters, types and functions.

In:  docstrings with the definitions they document, and the symbols of the packages.
Out: sentences as words with one tag each: a parameter of the documented function, a type, an
     exception, a function, or none of these.

The labels come from signatures and syntax trees, which the text does not show, and the quotes that
would give them away are removed: `weight` may be a parameter in one sentence and a plain word in
the next. Ambiguous sentences, with a word that equals a parameter's name but was not set as code,
are skipped. So are sentences with one-letter parameters, and Python's built-in types count as plain
words, because their form alone would identify them.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.demo.docstring_text import CODE_BEGIN, CODE_END, paragraphs
from pipeline.demo.python_source import Docstring, Symbols

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

MIN_WORDS, MAX_WORDS = 6, 40
"""Length of the sentences to use."""

MIN_WORD_SHARE = 0.7
"""Minimum share of words among the tokens of a sentence."""

_TOKEN = re.compile(
    rf"[{CODE_BEGIN}{CODE_END}]|[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*|\d+(?:\.\d+)*|[^\w\s]"
)
_HEADER = re.compile(r"[\w*.]+(?:, [\w*.]+)* : ")
_LABEL = re.compile(r"[\w*.]+(?:, [\w*.]+)*(?: ?\([^)]*\))? ?: ")
_LETTER = re.compile(r"[A-Za-z]")
_QUOTES = frozenset("'\"")
_STOPS = frozenset(".!?")


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
        first, last = token.text.partition(".")[0], token.text.rpartition(".")[2]
        if last in self.symbols.exceptions:
            return "B-EXC"
        if first in self.parameters:
            is_certain = (token.is_code or _looks_like_a_name(first)) and len(first) > 1
            return "B-PARAM" if is_certain and first == last else None
        if _looks_like_a_name(last):
            return _tag_of_symbol(last, self.everywhere)
        if token.is_code and len(last) > 1:
            return None if last in self.ambiguous else _tag_of_symbol(last, self.symbols)
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
        text = _LABEL.sub("", paragraph, count=1).replace("()", "")
        for tokens in _sentences(text):
            words = sum(_LETTER.match(token.text) is not None for token in tokens)
            if words < MIN_WORD_SHARE * len(tokens) or not MIN_WORDS <= len(tokens) <= MAX_WORDS:
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
        in_string ^= is_code and found in _QUOTES
        if opens and current and not found[0].islower():
            yield current
            current = []
        current.append(_Token(found, is_code and not in_string, opens))
        opens = found in _STOPS and not is_code
    yield current


def _tag_of_symbol(name: str, symbols: Symbols) -> str:
    if name in symbols.types:
        return "B-TYPE"
    return "B-FUNC" if name in symbols.functions else OUTSIDE


def _looks_like_a_name(text: str) -> bool:
    """Whether a word looks like an identifier even if it was not set as code."""
    return "_" in text.strip("_") or (text[1:] != text[1:].lower() and text != text.upper())
