"""Inline mark-up of docstrings: reStructuredText, Markdown, epytext.

In:  one paragraph.
Out: its text alone, with the code in it marked by two private characters if wanted.
"""

import re
from collections.abc import Callable

CODE_BEGIN, CODE_END = "\ue000", "\ue001"
"""Stand around code where it is to be told from prose; no text has them (Unicode, private use)."""

_EPYTEXT = re.compile(r"\b[A-Z]\{([^{}]*)\}")
_SUBSTITUTION = re.compile(r"\|([\w. ]+)\|_{0,2}")
_ROLE = re.compile(r":[\w:+.-]+:(?=`)")
_QUOTED = re.compile(r"``(.+?)``|`([^`]+)`_{0,2}")
_TARGET = re.compile(r"\s*<[^<>]*>$")
_STRONG = re.compile(r"\*\*([^*\s](?:[^*]*[^*\s])?)\*\*")
_EMPHASIS = re.compile(r"(?<![\w*)\]])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*(\[])")
_CITATION = re.compile(r" ?\[[\w#*-]+\]_\b")
_MATH = re.compile(r"\$+([^$]*)\$+")
_SPACE = re.compile(r"\s+")


def without_markup(paragraph: str, *, mark_code: bool = False) -> str:
    """`paragraph` without roles, quotes, emphasis, links, citations and LaTeX's signs.

    With `mark_code`, quoted code stands between `CODE_BEGIN` and `CODE_END`.
    """
    text = paragraph
    if "`" in text:
        text = _QUOTED.sub(_unquoted_and_marked if mark_code else _unquoted, _ROLE.sub("", text))
    for sign, substitute in _SUBSTITUTES:
        if sign in text:
            text = substitute(text)
    return _SPACE.sub(" ", text).strip()


def _unquoted(match: re.Match[str]) -> str:
    text = match[1] or match[2]
    if match[2] and text.endswith(">"):
        text = _TARGET.sub("", text) or text.strip("<> ")
    return text.rpartition(".")[2] if text.startswith("~") else text


def _unquoted_and_marked(match: re.Match[str]) -> str:
    return f"{CODE_BEGIN}{_unquoted(match)}{CODE_END}"


_SUBSTITUTES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("**", lambda text: _STRONG.sub(r"\1", text)),
    ("*", lambda text: _EMPHASIS.sub(r"\1", text)),
    ("|", lambda text: _SUBSTITUTION.sub(r"\1", text)),
    ("$", lambda text: _MATH.sub(r"\1", text)),
    ("]_", lambda text: _CITATION.sub("", text)),
    ("{", lambda text: _EPYTEXT.sub(r"\1", text)),
    ("\\", lambda text: text.replace("\\", "").replace("{", "").replace("}", "")),
)
"""What to do about a sign, in this order; most paragraphs have none of them."""
