"""Wikitext to plain text: the passages a reader reads, without tables, lists and headings.

In:  the source of an article.
Out: its paragraphs, one a line.

Nested constructs are taken apart from the inside out, so that no recursion is needed and an
unclosed brace spoils at most its own paragraph.
"""

import re
from collections.abc import Callable

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_REMOVED_ELEMENTS = (
    "ref|math|chem|gallery|timeline|code|syntaxhighlight|source|pre|imagemap|score|hiero|table|"
    "templatedata|graph|mapframe|maplink|inputbox|includeonly|noinclude"
)
_EMPTY_ELEMENT = re.compile(rf"<(?:{_REMOVED_ELEMENTS})\b[^<>]*?/>", re.IGNORECASE)
_ELEMENT = re.compile(rf"<({_REMOVED_ELEMENTS})\b[^<>]*>.*?</\1\s*>", re.DOTALL | re.IGNORECASE)
_TEMPLATE = re.compile(r"\{\{(?:[^{}]|\{(?!\{)|\}(?!\}))*\}\}")
_TABLE = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_EXTERNAL_LINK = re.compile(r"\[(?:[a-z]+:)?//[^\s\]]+\s*([^\]]*)\]", re.IGNORECASE)
_NAMESPACE = re.compile(r"^\s*:?[^\s:|\[\]][^:|\[\]]{0,30}:(?!\s)")
_QUOTES = re.compile(r"'{2,}")
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_SWITCH = re.compile(r"__[A-Z]+__")
_HEADING = re.compile(r"^=+.*=+\s*$")
_NOT_PROSE = tuple("*#:;|!")
"""Lines that begin with these are lists, indented asides and remains of tables."""
_HOLES = re.compile(r"\(\s*[,;:]*\s*\)|(?<=\()\s*[,;]\s*")
_DEEPEST = 40
"""Levels of nesting taken apart; what is deeper is no article."""


def plain_text(wikitext: str) -> str:
    """The text passages of an article, a paragraph a line."""
    text = _COMMENT.sub("", wikitext)
    text = _ELEMENT.sub("", _EMPTY_ELEMENT.sub("", text))
    text = _inside_out(_TEMPLATE, "", text)
    text = _inside_out(_TABLE, "", text)
    text = _inside_out(_LINK, _shown, text)
    text = _EXTERNAL_LINK.sub(r"\1", text)
    text = _QUOTES.sub("", _SWITCH.sub("", text))
    text = _TAG.sub("", _LINE_BREAK.sub("\n", text))
    text = _HOLES.sub("", text)
    return "\n".join(line for line in text.split("\n") if _is_prose(line))


def _inside_out(
    pattern: "re.Pattern[str]", by: "str | Callable[[re.Match[str]], str]", text: str
) -> str:
    """Replace innermost matches until there are none."""
    for _ in range(_DEEPEST):
        text, count = pattern.subn(by, text)
        if not count:
            break
    return text


def _shown(link: "re.Match[str]") -> str:
    """What a link shows: its last part; nothing for files, categories and other languages."""
    target, bar, label = link[1].partition("|")
    if _NAMESPACE.match(target):
        return ""
    return label.rpartition("|")[2] if bar else target


def _is_prose(line: str) -> bool:
    stripped = line.strip()
    return bool(stripped) and not stripped.startswith(_NOT_PROSE) and not _HEADING.match(stripped)
