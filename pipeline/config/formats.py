"""The formats of input, as configurations name them.

In:  the name of a reader.
Out: its `Format`: where the reader is, and how files of the format are recognised and described.

To add a format, write a `Reader` (pipeline/readers/documents.py) in a module of its own, and name
it here. By its mark, or first bytes, `cloze init` proposes it for such files, and search,
adaptation and embedding read them, too.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

BLANK_LINE = r"\n\s*\n"


@dataclass(frozen=True)
class Format:
    """One format of input."""

    reader: str
    """`module:name` of its `Reader`, which is imported on first use."""
    kind: str = ""
    """What a file is, in words."""
    first_bytes: tuple[bytes, ...] = ()
    """What its files begin with, once they are unpacked, whatever encoding the rest is in."""
    mark: re.Pattern[str] | None = None
    """What its files begin with as text, or have at the start of a line. A format with a mark says
    by itself what its line breaks and its HTML mean; of others this is guessed."""
    document: str = ""
    """A pattern that occurs once per document, by which those of a sample are counted; without one,
    each file is taken for a document."""


FORMATS: Mapping[str, Format] = {
    "docstrings": Format("cloze.demo.docstrings:DOCSTRINGS"),
    "text": Format("cloze.pipeline.readers.text:TEXT", "plain text"),
    "blank_line_text": Format(
        "cloze.pipeline.readers.text:BLANK_LINE_TEXT", "plain text", document=BLANK_LINE
    ),
    "sentence_lines": Format(
        "cloze.pipeline.readers.text:SENTENCE_LINES", "plain text", document=BLANK_LINE
    ),
    "csv": Format("cloze.pipeline.readers.tables:CSV", "a table", document=r"\n"),
    "jsonl": Format("cloze.pipeline.readers.records:JSONL", "JSON lines", document=r"\n"),
    "parquet": Format("cloze.pipeline.readers.records:PARQUET", "Parquet", (b"PAR1",)),
    "arrow": Format(
        "cloze.pipeline.readers.records:ARROW",
        "Arrow",
        (b"ARROW1", b"\xff\xff\xff\xff"),  # a file, a stream
    ),
    "warc": Format(
        "cloze.pipeline.readers.web:WARC",
        "a web archive",
        (b"WARC/",),
        re.compile(r"\A\s*WARC/\d"),
        document=r"(?m)^WARC-Type: (?:response|resource|conversion)",
    ),
    "mediawiki": Format(
        "cloze.pipeline.readers.wikipedia:MEDIAWIKI",
        "a MediaWiki dump",
        mark=re.compile(r"\A\s*(?:<\?xml[^>]*>\s*)?<mediawiki\b"),
        document="<page>",
    ),
    "wikiextractor": Format(
        "cloze.pipeline.readers.wikipedia:WIKIEXTRACTOR",
        "WikiExtractor output",
        mark=re.compile(r'^<doc id="', re.MULTILINE),
        document="(?m)^<doc ",
    ),
    "html": Format(
        "cloze.pipeline.readers.web:HTML",
        "HTML",
        mark=re.compile(
            r"\A\s*(?:<\?xml[^>]*>\s*)?(?:<!--.*?-->\s*)*<(?:!doctype html|html|head|body)\b",
            re.IGNORECASE | re.DOTALL,
        ),
    ),
}
"""By the name of the reader in a configuration. Marks are tried in this order: one that may be
anywhere comes after those that begin a file, in which it could occur."""


def format_of_bytes(head: bytes) -> str:
    """The reader for a file that begins with `head`; empty if its first bytes do not tell."""
    return next((name for name, one in FORMATS.items() if head.startswith(one.first_bytes)), "")
