"""Docstrings as plain prose, without tables, code blocks and markup.

In:  a dedented docstring.
Out: its paragraphs, each one line of English; optionally the statements of its examples.

Code blocks, the output of examples, display formulas, tables, references and directives are
dropped: they are not natural language, and their repetition would inflate every score. Headings and
parameter lines (`axis : int, optional`) are paragraphs of their own. Statements after `>>>` are
kept on request because they show names in use, except for imports, which begin every example.
Inline markup may be reStructuredText, Markdown or epytext.
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator

PROSE_DIRECTIVE = re.compile(
    "note|warning|tip|hint|important|attention|caution|danger|admonition|seealso|topic|rubric|"
    "versionadded|versionchanged|deprecated"
)
"""Directives whose indented body is prose."""

DROPPED_SECTION = re.compile("references?|see also")
"""Sections that list names or citations."""

SECTION = re.compile(
    f"{DROPPED_SECTION.pattern}|(other |keyword )?parameters?|(keyword )?(arguments|args)|"
    "attributes|methods|returns?|yields?|receives|raises?|warns|warnings?|examples?|notes?|usage|"
    "inputs?|outputs?"
)
"""Headings of the usual sections; kept if text follows."""

PROSE_SHARE = 0.72
"""A paragraph with a smaller share of letters and spaces is taken for code or a table."""

# a directive, `.. note:: text`
_DIRECTIVE = re.compile(r"\.\. ([\w-]+(?::[\w-]+)?)::\s*(.*)")
# an underline, of one sign
_RULE = re.compile(r"([-=~^\"'`#*+._])\1{2,}$")
# the border or a row of a table: `=== ===`, `+---+---+`, `| a | b |`, `--- | ---`
_TABLE = re.compile(r"(=+|-+)( +(=+|-+))+$|\+[-=+]{3,}$|\|.*\|$|[-|: ]*-{3,}\s*\|[-|: ]*$")
# an item of a list of names, `axis (int): text`
_ITEM = re.compile(r"\*{0,2}[\w.`]+(?:, \*{0,2}[\w.`]+)*(?: ?\([^)]*\))? ?:(?: |$)")
# the header of a parameter, `axis : int`
_HEADER = re.compile(r"[\w*`.]+(?:, [\w*`.]+)* : ")
# `- text`, `1. text`, or a field, `:returns: text`
_BULLET = re.compile(r"(?:[-*+•]|\(?\w{1,2}[.)]|#\.) +(?=\S)|:\w[^:`]*:(?!`) ?")
# `:param int axis: text`, of which group 2 is `int axis`
_FIELD = re.compile(r":(\w+)(?: +([^:]*))?: *")
_NOT_A_LETTER = re.compile(r"[^A-Za-z ]")

MAX_STATEMENT = 200
"""Longer statements are taken for data."""

STATEMENT_LETTERS = 0.5
"""Statements with a smaller share of letters and spaces are taken for data, too."""

_PROMPT = re.compile(r"\s*>>> ?(.*)")
_CONTINUATION = re.compile(r"\s*\.\.\. ?(.*)")

CODE_BEGIN, CODE_END = "\ue000", "\ue001"
"""Delimiters of inline code: private-use characters of Unicode that occur in no text."""

_EPYTEXT = re.compile(r"\b[A-Z]\{([^{}]*)\}")  # `C{code}`
_SUBSTITUTION = re.compile(r"\|([\w. ]+)\|_{0,2}")  # `|name|`
_ROLE = re.compile(r":[\w:+.-]+:(?=`)")  # :func: before a backquote
_QUOTED = re.compile(r"``(.+?)``|`([^`]+)`_{0,2}")  # also with the underscore of a link
_TARGET = re.compile(r"\s*<[^<>]*>$")  # ` <target>` at the end of a link
_STRONG = re.compile(r"\*\*([^*\s](?:[^*]*[^*\s])?)\*\*")
# `*word*`, but neither `*args` nor `a * b`
_EMPHASIS = re.compile(r"(?<![\w*)\]])\*([^*\s](?:[^*]*[^*\s])?)\*(?![\w*(\[])")
_CITATION = re.compile(r" ?\[[\w#*-]+\]_\b")  # ` [1]_`
_MATH = re.compile(r"\$+([^$]*)\$+")
_SPACE = re.compile(r"\s+")


def paragraphs(docstring: str, *, mark_code: bool = False, examples: bool = False) -> list[str]:
    """The prose paragraphs of a docstring, in order.

    With `mark_code`, inline code is enclosed in `CODE_BEGIN` and `CODE_END`; with `examples`, the
    statements of examples are paragraphs, too.
    """

    def without_name(field: re.Match[str]) -> str:
        """`:param int axis: text` becomes `axis : text`; other fields lose their name."""
        named = field[2].split()[-1:] if field[2] else []
        return f"{named[0]} : " if named else ""

    found: list[str] = []
    for is_example, part in split_examples(docstring.expandtabs().split("\n")):
        if is_example:
            found += part if examples else []
            continue
        lines: Iterable[str] = part
        # A single line has no layout.
        if len(part) > 1:
            lines = _joined(list(_without_underlines(list(_without_code(part)))))
        for line in lines:
            text = _FIELD.sub(without_name, line, count=1) if line.startswith(":") else line
            text = _BULLET.sub("", text, count=1) if _BULLET.match(text) else text
            text = without_markup(text, mark_code=mark_code)
            others = len(_NOT_A_LETTER.findall(text))
            is_prose = " " in text and others <= (1 - PROSE_SHARE) * len(text)
            if is_prose or _is_heading(text):
                found.append(text)
    # A heading without text below it is dropped.
    return [
        text
        for text, following in itertools.zip_longest(found, found[1:], fillvalue="")
        if not _is_heading(text) or (following and not _is_heading(following))
    ]


def _without_code(lines: list[str]) -> Iterator[str]:
    """Drop fenced code, literal blocks, tables and directives."""
    place = 0
    while place < len(lines):
        line = lines[place]
        text = line.strip()
        if text.startswith("In [") or _TABLE.match(text):
            while place < len(lines) and lines[place].strip():
                place += 1
        elif text.startswith(("```", "~~~")) and not _RULE.match(text.rstrip("`") or "~"):
            # A fence; a line of tildes alone is an underline. To the closing fence, or to the end.
            rest = range(place + 1, len(lines))
            place = 1 + next((i for i in rest if lines[i].strip().startswith(text[:3])), rest.stop)
        elif text.startswith(".. ") or text == "..":
            # ends the paragraph before
            yield ""
            directive = _DIRECTIVE.match(text)
            kept = directive is not None and PROSE_DIRECTIVE.fullmatch(directive[1])
            place = place + 1 if kept else _end_of_block(lines, place)
        elif text.endswith("::"):
            # `text::` announces a literal block; one of the colons stays.
            yield line.rstrip()[:-1]
            place = _end_of_block(lines, place)
        else:
            yield line
            place += 1


def _end_of_block(lines: list[str], place: int) -> int:
    """The index after the lines that are indented more than the one at `place`."""
    indent = _indent(lines[place])
    place += 1
    while place < len(lines) and (not lines[place].strip() or _indent(lines[place]) > indent):
        place += 1
    return place


def _without_underlines(lines: list[str]) -> Iterator[str]:
    """Drop underlines and sections that are lists; put headings into paragraphs of their own."""
    place = 0
    while place < len(lines):
        text = lines[place].strip()
        underlined = place + 1 < len(lines) and bool(_RULE.match(lines[place + 1].strip()))
        name = text.rstrip(":").lower()
        if _RULE.match(text):
            place += 1
        elif (underlined or text.endswith(":")) and SECTION.fullmatch(name):
            yield from ("", text.rstrip(":"), "")
            if not DROPPED_SECTION.fullmatch(name):
                place += 1
            elif underlined:
                # Up to the heading above the next underline.
                rest = range(place + 2, len(lines))
                rules = (line for line in rest if _RULE.match(lines[line].strip()))
                place = next((line - 1 for line in rules), len(lines))
            else:
                # Without an underline, the section is what is indented.
                place = _end_of_block(lines, place)
        else:
            yield lines[place]
            if underlined:
                yield ""
            place += 1


def _joined(lines: list[str]) -> Iterator[str]:
    """Join wrapped lines; blank lines, dedents and list items start a new paragraph."""
    current: list[str] = []
    first = previous = 0
    hangs = False  # whether indented lines continue the paragraph: a bullet or an item
    for line in lines:
        text = line.strip()
        indent = _indent(line)
        if current and (
            not text
            or indent < previous
            or _BULLET.match(text)
            # the next item of a list of names
            or (_ITEM.match(text) and indent == first and _ITEM.match(current[0]))
            # an indented block that does not continue a bullet or an item
            or (indent > previous and (not hangs or current[-1].endswith(":")))
        ):
            yield " ".join(current)
            current = []
        if text:
            if not current:
                first = indent
                # The description below `axis : int` is a paragraph of its own.
                hangs = bool(_BULLET.match(text) or _ITEM.match(text)) and not _HEADER.match(text)
            current.append(text)
            previous = indent
    if current:
        yield " ".join(current)


def _is_heading(paragraph: str) -> bool:
    return SECTION.fullmatch(paragraph.lower()) is not None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def split_examples(lines: list[str]) -> Iterator[tuple[bool, list[str]]]:
    """Alternate prose and examples: (is an example, prose lines or statements)."""
    prose: list[str] = []
    place = 0
    while place < len(lines):
        if not _PROMPT.match(lines[place]):
            prose.append(lines[place])
            place += 1
            continue
        yield False, prose
        example: list[list[str]] = []  # each statement's lines
        # An example ends with a blank line; lines in it without a prompt are output.
        while place < len(lines) and lines[place].strip():
            if begun := _PROMPT.match(lines[place]):
                example.append([begun[1].strip()])
            elif more := _CONTINUATION.match(lines[place]):
                example[-1].append(more[1].strip())
            place += 1
        statements = []
        for statement in (" ".join(filter(None, parts)) for parts in example):
            letters = len(statement) - len(_NOT_A_LETTER.findall(statement))
            is_import = statement.startswith(("import ", "from "))
            is_data = not STATEMENT_LETTERS * len(statement) <= letters <= MAX_STATEMENT
            if letters > 0 and not is_import and not is_data:
                statements.append(statement)
        yield True, statements
        prose = []
    yield False, prose


def without_markup(paragraph: str, *, mark_code: bool = False) -> str:
    """Remove roles, quotes, emphasis, links, citations and LaTeX markup.

    With `mark_code`, inline code is enclosed in `CODE_BEGIN` and `CODE_END`.
    """

    def unquoted(quoted: re.Match[str]) -> str:
        code = quoted[1] or quoted[2]
        # `text <target>`: the text, or the target where there is none
        if quoted[2] and code.endswith(">"):
            code = _TARGET.sub("", code) or code.strip("<> ")
        # `~package.name` is shown as `name`.
        code = code.rpartition(".")[2] if code.startswith("~") else code
        return f"{CODE_BEGIN}{code}{CODE_END}" if mark_code else code

    text = paragraph
    if "`" in text:
        text = _QUOTED.sub(unquoted, _ROLE.sub("", text))
    for sign, substitute in _SUBSTITUTES:
        if sign in text:
            text = substitute(text)
    return _SPACE.sub(" ", text).strip()


_SUBSTITUTES: tuple[tuple[str, Callable[[str], str]], ...] = (
    ("**", lambda text: _STRONG.sub(r"\1", text)),
    ("*", lambda text: _EMPHASIS.sub(r"\1", text)),
    ("|", lambda text: _SUBSTITUTION.sub(r"\1", text)),
    ("$", lambda text: _MATH.sub(r"\1", text)),
    ("]_", lambda text: _CITATION.sub("", text)),
    ("{", lambda text: _EPYTEXT.sub(r"\1", text)),
    ("\\", lambda text: text.replace("\\", "").replace("{", "").replace("}", "")),
)
"""Substitutions by the sign that calls for them, in this order; most paragraphs need none."""
