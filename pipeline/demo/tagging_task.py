"""The tagging task: which words of a documentation sentence are names, and of what.

In:  docstrings with the definitions they belong to, and the symbols of the packages.
Out: sentences as words with one tag each: a parameter of the function described, a type, an
     exception, a function, or none of these.

The tags come from the signature and from the packages' syntax trees, which the text does not show,
and the text has lost the quotes that would give them away. `weight` is a parameter in one sentence
and a plain word in the next. A sentence is left out where it cannot be known which of the two a
word is: it equals a parameter's name, but its author did not set it as code. Left out as well are
sentences with parameters of one letter, and Python's own types count as plain words: they would be
known by their looks.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pipeline.demo.docstring_text import CODE_BEGIN, CODE_END, paragraphs
from pipeline.demo.python_source import Docstring, Symbols

OUTSIDE = "O"
TAGS = (OUTSIDE, "B-EXC", "B-FUNC", "B-PARAM", "B-TYPE")
"""Every name is one word, so there is no I- tag."""

TAGGING_TASK: dict[str, str | tuple[str, ...]] = {
    "name": "tagging",
    "kind": "tagging",
    "labels": TAGS,
    "description": "Which words of a documentation sentence name a parameter of the function "
    "described, a type, an exception or a function? Quotes and signature are hidden.",
}

MIN_WORDS, MAX_WORDS = 6, 40
"""Length of the sentences that are taken."""

MIN_WORD_SHARE = 0.7
"""Of a sentence's tokens, how many must be words."""

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
    """Words and as many tags."""

    words: tuple[str, ...]
    tags: tuple[str, ...]


@dataclass(frozen=True)
class Scope:
    """What the names in one docstring can mean."""

    parameters: frozenset[str]
    """Parameters of the function described."""

    unsettled: frozenset[str]
    """Names that may be something else here, such as attributes: the class's own parameters."""

    symbols: Symbols
    """What the docstring's own distribution defines, and Python."""

    everywhere: Symbols
    """What all distributions define: consulted for names that no word of English looks like."""


@dataclass(frozen=True)
class _Token:
    text: str
    is_code: bool
    opens: bool
    """Whether a sentence begins here."""


def sentences(
    docstrings: Iterable[Docstring], own: Symbols, everywhere: Symbols
) -> Iterator[Sentence]:
    """The labelled sentences of a module: see `Scope` for the symbols."""
    known = list(docstrings)
    of_class = {one.name: frozenset(one.parameters) for one in known if one.kind == "class"}
    for docstring in known:
        if docstring.kind in ("class", "function"):
            unsettled = of_class.get(docstring.name.rpartition(".")[0], frozenset())
            scope = Scope(frozenset(docstring.parameters), unsettled, own, everywhere)
            yield from tagged_sentences(docstring.text, scope)


def tagged_sentences(docstring: str, scope: Scope) -> Iterator[Sentence]:
    """The sentences of a docstring that hold a name and whose every tag is known."""
    for paragraph in paragraphs(docstring, mark_code=True):
        if _HEADER.match(paragraph):
            continue
        text = _LABEL.sub("", paragraph, count=1).replace("()", "")
        for tokens in _sentences(text):
            words = sum(_LETTER.match(token.text) is not None for token in tokens)
            if words < MIN_WORD_SHARE * len(tokens) or not MIN_WORDS <= len(tokens) <= MAX_WORDS:
                continue
            tags = [_tag(token, scope) for token in tokens]
            known = tuple(tag for tag in tags if tag is not None)
            if len(known) == len(tags) and set(known) != {OUTSIDE}:
                yield Sentence(tuple(token.text for token in tokens), known)


def _sentences(text: str) -> Iterator[list[_Token]]:
    """The tokens of each sentence."""
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


def _tag(token: _Token, scope: Scope) -> str | None:
    """The tag of a word; None where it cannot be known, or needs no context to be known."""
    first, last = token.text.partition(".")[0], token.text.rpartition(".")[2]
    if last in scope.symbols.exceptions:
        return "B-EXC"
    if first in scope.parameters:
        is_certain = (token.is_code or _looks_like_a_name(first)) and len(first) > 1
        return "B-PARAM" if is_certain and first == last else None
    if _looks_like_a_name(last):
        return _tag_of_symbol(last, scope.everywhere)
    if token.is_code and len(last) > 1:
        return None if last in scope.unsettled else _tag_of_symbol(last, scope.symbols)
    return None if last in scope.symbols.types and not token.opens else OUTSIDE


def _tag_of_symbol(name: str, symbols: Symbols) -> str:
    if name in symbols.types:
        return "B-TYPE"
    return "B-FUNC" if name in symbols.functions else OUTSIDE


def _looks_like_a_name(text: str) -> bool:
    """Whether a word is a name even where its author did not set it as code."""
    return "_" in text.strip("_") or (text[1:] != text[1:].lower() and text != text.upper())
