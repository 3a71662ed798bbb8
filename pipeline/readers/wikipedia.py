"""Wikipedia: MediaWiki XML dumps and WikiExtractor output.

In:  `pages-articles.xml`, or files of `<doc id=… url=… title=…>`, title, paragraphs, `</doc>`;
     compressed or not.
Out: the text passages of articles, one paragraph per line (paper, A.2: only text passages, no
     lists, tables and headings).

The XML of a dump is not parsed: pages are located by their tags, so that damage costs one page and
a dump can be read from the middle. Nested wikitext is stripped from the inside out, which needs no
recursion and limits the effect of an unclosed brace to its own paragraph. Every pattern runs in
linear time on any input, since anybody can edit a page. Links show their words wherever they lead,
except to media and categories, under the names that the dump gives these.
"""

import codecs
import html
import re
from collections.abc import Callable, Iterator
from itertools import dropwhile, takewhile

import numpy as np

from cloze.artifacts.arrays import Offsets
from cloze.artifacts.errors import UsageError
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.compression import stream
from cloze.pipeline.readers.documents import (
    BrokenRecord,
    DocumentBlock,
    Piece,
    Reader,
    is_beginning,
    pack,
    scan,
)

_DOC = b"<doc "
_DOC_END = b"</doc>"
_TITLE = re.compile(rb' title="([^\n]*)"')

_PARAGRAPH = re.compile(rb"\S[^\n]*(?:\n|\Z)")
_SHORT_PARAGRAPH = re.compile(rb"^(?:\S*[^\s.!?] +){0,4}\S+[.!?][ \t]*(?:\n|\Z)", re.MULTILINE)
"""WikiExtractor ends headings with a full stop: "Early life.". A paragraph of up to five words is
taken for one: of 70 sampled from English Wikipedia of 2014, 66 were headings or list items; of
paragraphs of six words about half are, of seven words hardly any."""

_LEFT_SWITCH = re.compile(
    rb"__(?:(?:NO|FORCE)?TOC|(?:NO)?INDEX|(?:NO)?NEWSECTIONLINK|NOEDITSECTION|NOGALLERY|HIDDENCAT|"
    rb"NOCONTENTCONVERT|NOTITLECONVERT|STATICREDIRECT|DISAMBIG)__"
)
_LEFT_BREAK = re.compile(rb"<br\b[^<>\n]*>", re.IGNORECASE)
_LEFT_HOLES = re.compile(rb"\((?:[ \t,;:]*+\)|[ \t]*+[,;][ \t,;]*+)")
"""What WikiExtractor leaves in the text: switches of a page, line breaks with attributes, and the
brackets of templates that it removes, in 7.7 % of the articles of Wikipedia (2014): "(; born"."""

_PAGE = re.compile(rb"<page>")
_PAGE_NAMESPACE = re.compile(rb"<ns>\s*(-?\d+)\s*</ns>")
_PAGE_TEXT = re.compile(rb"<text\b[^>]*>")
_PAGE_TEXT_END = b"</text>"
_REDIRECT = re.compile(rb"<redirect\b")

_COMMENT = re.compile(r"<!--.*?(?:-->|\Z)", re.DOTALL)
_REMOVED_ELEMENTS = (
    "ref|math|chem|gallery|timeline|code|syntaxhighlight|source|pre|imagemap|score|hiero|table|"
    "templatedata|graph|mapframe|maplink|inputbox|includeonly|noinclude"
)
_EMPTY_ELEMENT = re.compile(rf"<(?:{_REMOVED_ELEMENTS})\b[^<>]*?/>", re.IGNORECASE)
_OPENING = re.compile(rf"<({_REMOVED_ELEMENTS})\b[^<>]*>", re.IGNORECASE)
_CLOSING = re.compile(rf"</({_REMOVED_ELEMENTS})\s*+>", re.IGNORECASE)
_CODE = re.compile(r"<code\b[^<>]*>((?:[^<\n]|</?nowiki\s*/?>)*+)</code\s*>", re.IGNORECASE)
_CODE_LINE = re.compile(rf"^[ \t]*(?:{_CODE.pattern}[ \t]*)+$", re.MULTILINE | re.IGNORECASE)
"""Code on a single line; within a sentence it is a word of it."""
_TEMPLATE = re.compile(r"\{\{(?:[^{}]|\{(?!\{)|\}(?!\}))*\}\}")
_TABLE = re.compile(r"\{\|(?:(?!\{\||\|\}).)*\|\}", re.DOTALL)
_LINK = re.compile(r"\[\[([^\[\]]*)\]\]")
_EXTERNAL_LINK = re.compile(r"\[(?:[a-z]++:)?//[^\s\]]++\s*+([^\]]*+)\]", re.IGNORECASE)
_MEDIA = "file|image|media|category"
"""Namespaces whose links show no words; a dump names them in its language as well."""
_MEDIA_NAMES = re.compile(rb'<namespace key="(?:6|14|-2)"[^>]*>([^<:|]+)</namespace>')
_INTERLANGUAGE = re.compile(
    r"^\s*\[\[ *[a-z]{2,3}(?:-[a-z-]{2,12})? *:[^\[\]\n]*\]\]\s*$", re.MULTILINE
)
"""A link to the same article in another language, which stands alone on its line; within a sentence
it is a link like any other."""
_VARIANTS = re.compile(r"-\{((?:[^{}-]|-(?!\{)|\{(?!\{))*+)\}-")
_VARIANT = re.compile(r"(?:^|;)\s*(?:[a-z-]+=>)?zh(?:-[a-z]+)?\s*:\s*([^;]*)")
_BOLD_SIGN = re.compile(r"^(?=(?:'{2,}+|\[\[)++[*#:;|!])", re.MULTILINE)
_KEPT = "\ue000"
"""Marks a line that begins with a sign in bold or in a link, which makes no list of it."""
_FIRST_SHOWN = (
    "nowrap|nobr|nobreak|small|big|abbr|val|nihongo|visible anchor|vanchor|"
    "quote|blockquote|quotation|cquote"
)
_LAST_SHOWN = "w|lang|lang-[a-z-]++|transl|transliteration"
_NAME_SHOWN = "ill|interlanguage link"
_CONVERSIONS = "convert|cvt"
_INLINE_TEMPLATE = re.compile(
    rf"\{{\{{\s*+(?:(?P<conversion>{_CONVERSIONS})|(?P<name>{_NAME_SHOWN})|(?P<last>{_LAST_SHOWN})"
    rf"|{_FIRST_SHOWN}|(?P<number>formatnum:[^{{}}|]*+))\s*+(?P<values>(?:\|[^{{}}]*+)?)\}}\}}",
    re.IGNORECASE,
)
"""Templates within sentences, which show a number with its unit, the first value that is not the
code of a language, the last value, the first one, or a number."""
_VALUE = re.compile(r"\|((?:[^|\[]|\[\[[^\[\]]*+\]\]|\[)*+)")
"""A value of a template; a link in it may contain bars."""
_LANGUAGE_CODE = re.compile(r"[a-z]{2,3}(?:-[a-z]{2,12})*")
_RANGE = re.compile(
    r"[-–]|[-+]?[\d.,/]+(?:e[-+]?\d+)?|(?:to|and|by|or)(?:\([-–]\))?|to about|x|×|\+/-|±"
)
_POWER = re.compile(r"e(3|6|9|12)(?=[a-z])")
_POWERS = {"3": "thousand ", "6": "million ", "9": "billion ", "12": "trillion "}
_ROW = re.compile(r"^[ \t]*<t[dhr]\b", re.MULTILINE | re.IGNORECASE)
"""Rows and cells of a table whose element is never closed."""
_QUOTES = re.compile(r"''+")
_LINE_BREAK = re.compile(r"<br\s*/?>", re.IGNORECASE)
_TAG = re.compile(r"</?[a-zA-Z][^<>]*>")
_SWITCH = re.compile(r"__[A-Z]+__")
_NOT_PROSE = tuple("*#:;|!")
"""Line prefixes of list items, indented asides and remains of tables."""
_HEADING = re.compile(r"=.*=")
_HOLES = re.compile(r"\((?:\s*+[,;:]*+\s*+\)|\s*+[,;]\s*+)")
"""Empty brackets, and brackets that begin with a mark; patterns are fastest if a plain character
comes first."""
MAX_SITE_BYTES = 1 << 16
"""Bytes at the start of a dump that describe its site."""
_MAX_NESTING = 40
"""Levels of nesting to strip; no article is nested more deeply."""


def read_wikiextractor(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The articles that begin in the piece, without titles and headings; some are empty."""

    def bodies(block: DocumentBlock) -> Iterator[tuple[int, bytes | BrokenRecord]]:
        for position, article in block.documents():
            unix = article.replace(b"\r\n", b"\n") if b"\r" in article else article
            tag, _, body = unix.partition(b"\n")
            tag = tag.rstrip()
            if not tag.endswith(b">"):
                yield (
                    position,
                    BrokenRecord(
                        "the <doc> tag does not end on its line; expected <doc id=… url=… title=…>"
                    ),
                )
                continue
            # the last closing tag: the text may contain the first
            close = body.rfind(_DOC_END)
            body = body if close < 0 else body[:close]
            title = _TITLE.search(tag)
            # The title comes first again, as a line of its own.
            first, _, rest = body.partition(b"\n")
            if title and first.strip() == title[1].strip():
                body = rest
            body = _without_remains(body)
            if lead := _PARAGRAPH.search(body):  # the first paragraph is never a heading
                body = body[: lead.end()] + _SHORT_PARAGRAPH.sub(b"", body[lead.end() :])
            yield position, body

    found = 0
    for block in scan(piece, doc_starts, cuttable=False):
        found += len(block.ends)
        yield from pack(bodies(block))
    if not found and is_beginning(piece):
        raise UsageError(
            f"{piece.path}: no line begins with '<doc '; expected WikiExtractor output (for its "
            "--json format use reader jsonl)"
        )


def _without_remains(body: bytes) -> bytes:
    """An extracted article without what is left in it of templates, switches and tags."""
    body = _LEFT_BREAK.sub(b"<br>", _LEFT_SWITCH.sub(b"", body))
    return _LEFT_HOLES.sub(lambda hole: b"" if hole[0].endswith(b")") else b"(", body)


def doc_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Starts of lines that begin with `<doc `."""
    starts = [match.end() - len(_DOC) for match in re.finditer(rb"\n<doc ", buffer)]
    for first in (_DOC, codecs.BOM_UTF8 + _DOC) if at_beginning else ():
        if buffer.startswith(first):
            starts.insert(0, len(first) - len(_DOC))
    return np.array(starts, dtype=np.int64)


def read_mediawiki(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The articles that begin in the piece; redirects are empty.

    Pages outside the main namespace (templates, talk, categories) are skipped.
    """

    def articles(block: DocumentBlock) -> Iterator[tuple[int, bytes]]:
        for position, page in block.documents():
            namespace = _PAGE_NAMESPACE.search(page)
            # Namespace 0 has the articles.
            if namespace and int(namespace[1]):
                continue
            wikitext = b"" if _REDIRECT.search(page) else wikitext_of(page)
            text = html.unescape(wikitext.decode("utf-8", "replace"))
            yield position, plain_text(text, media=media).encode()

    # In other languages, `File:` has other names, which the head of the dump lists.
    head = next(stream(piece.path, at_a_time=MAX_SITE_BYTES), b"")[:MAX_SITE_BYTES]
    names = [name.decode("utf-8", "replace") for name in _MEDIA_NAMES.findall(head)]
    media = "|".join([_MEDIA, *map(re.escape, names)])
    found = 0
    for block in scan(piece, page_starts, cuttable=False):
        found += len(block.ends)
        yield from pack(articles(block))
    if not found and is_beginning(piece):
        raise UsageError(f"{piece.path}: no <page> in it; expected a MediaWiki XML dump")


def page_starts(buffer: bytes, at_beginning: bool) -> Offsets:
    """Starts of pages."""
    return np.array([match.start() for match in _PAGE.finditer(buffer)], dtype=np.int64)


def plain_text(wikitext: str, *, media: str = _MEDIA) -> str:
    """The text passages of an article, one paragraph per line.

    `media` are the namespaces, separated by `|`, whose links show no words.
    """
    hidden = re.compile(rf"\s*(?:{media})\s*:", re.IGNORECASE)

    def link_text(link: re.Match[str]) -> str:
        # `[[target|label]]` shows its label; without one, the target without a leading colon.
        target, bar, label = link[1].partition("|")
        if hidden.match(target):
            return ""
        shown = label.rpartition("|")[2] if bar else target.lstrip(" :")
        return shown or target.rpartition(":")[2]

    # The order matters: comments may contain anything; tables contain links, and links end up as
    # text, of which tags, quotation marks and lists remain to be removed.
    text = _COMMENT.sub("", wikitext)
    text = _CODE.sub(r"\1", _CODE_LINE.sub("", text)) if "<code" in text else text
    text = without_elements(_EMPTY_ELEMENT.sub("", text))
    text = _without_templates(text)
    text = _VARIANTS.sub(_variant_text, text) if "-{" in text else text
    text = _inside_out(_TABLE, "", text)
    text = _BOLD_SIGN.sub(_KEPT, _INTERLANGUAGE.sub("", text))
    text = _inside_out(_LINK, link_text, text)
    end = text.rfind("]") + 1  # brackets opened after it are never closed
    text = _EXTERNAL_LINK.sub(r"\1", text[:end]) + text[end:]
    text = _QUOTES.sub("", _SWITCH.sub("", text))
    text = _LINE_BREAK.sub("\n", text)
    text = _TAG.sub("", _ROW.sub("|<t", text) if "<" in text else text)
    text = _HOLES.sub(lambda hole: "" if hole[0].endswith(")") else "(", text)
    lines = ((line, line.strip()) for line in text.split("\n"))
    return "\n".join(
        line
        for line, stripped in lines
        if stripped and not stripped.startswith(_NOT_PROSE) and not _HEADING.fullmatch(stripped)
    ).replace(_KEPT, "")


def _without_templates(text: str) -> str:
    """Replace templates, the innermost first, by what they show."""
    for _ in range(_MAX_NESTING):
        shown = _inside_out(_INLINE_TEMPLATE, _template_text, text)
        text, count = _TEMPLATE.subn("", shown)
        if not count:
            break
    return text


def _template_text(template: re.Match[str]) -> str:
    """What a template within a sentence shows."""
    number: str | None = template["number"]
    if number:
        return number.partition(":")[2].strip()
    # `name=value` sets a parameter and shows nothing, but a link's words may have the sign.
    values: list[str] = [
        value.strip()
        for value in _VALUE.findall(template["values"])
        if "=" not in value or "=" not in _LINK.sub("", value)
    ]
    if template["name"]:
        values = list(dropwhile(_LANGUAGE_CODE.fullmatch, values))
    if not values:
        return ""
    if not template["conversion"]:
        return values[-1 if template["last"] else 0]
    # `{{convert|3|to|5|km}}`: the numbers and words of a range, then the unit.
    numbers = list(takewhile(_RANGE.fullmatch, values))
    words = (word.removesuffix("(-)").removesuffix("(–)") for word in numbers)
    unit = values[len(numbers) : len(numbers) + 1]
    return " ".join([*words, *(_POWER.sub(lambda power: _POWERS[power[1]], text) for text in unit)])


def _variant_text(variants: re.Match[str]) -> str:
    """The first variant of a text with several, as in `-{zh-hans:…;zh-hant:…}-`."""
    flag, bar, rest = variants[1].rpartition("|")
    if bar and flag.strip() in ("H", "T", "-"):  # rules and titles, which are not shown
        return ""
    found = _VARIANT.search(rest)
    return found[1].strip() if found else rest


def wikitext_of(page: bytes) -> bytes:
    """The content of the first `<text>` element of a page that is closed; empty if none is."""
    last = page.rfind(_PAGE_TEXT_END)
    # Only up to the last `>`: behind it no opening tag can end.
    for opening in _PAGE_TEXT.finditer(page, 0, page.rfind(b">") + 1):
        if opening[0].endswith(b"/>"):
            return b""
        if opening.end() <= last:
            return page[opening.end() : page.index(_PAGE_TEXT_END, opening.end())]
    return b""


def without_elements(text: str) -> str:
    """Remove elements without prose, each up to its next closing tag."""
    # The closing tags of each element, the next one last, so that each is taken from the end once
    # and the whole stays linear.
    ends: dict[str, list[re.Match[str]]] = {}
    for closing in reversed([*_CLOSING.finditer(text)]):
        ends.setdefault(closing[1].lower(), []).append(closing)
    kept, place = [], 0
    for opening in _OPENING.finditer(text):
        waiting = ends.get(opening[1].lower(), [])
        # Tags that close something before this opening are of no use to later ones either.
        while waiting and waiting[-1].start() < opening.end():
            waiting.pop()
        # An element within a removed one is gone already.
        if waiting and opening.start() >= place:
            kept.append(text[place : opening.start()])
            place = waiting[-1].end()
    return "".join([*kept, text[place:]])


def _inside_out(
    pattern: re.Pattern[str], by: str | Callable[[re.Match[str]], str], text: str
) -> str:
    """Replace innermost matches until none are left."""
    for _ in range(_MAX_NESTING):
        text, count = pattern.subn(by, text)
        if not count:
            break
    return text


WIKIEXTRACTOR = Reader(
    read=read_wikiextractor, line_break="paragraph", splittable=True, from_html=True
)
MEDIAWIKI = Reader(read=read_mediawiki, line_break="paragraph", splittable=True, from_html=True)
