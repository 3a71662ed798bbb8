"""The docstrings of installed distributions: one document a module.

In:  names of distributions; each is one `file` to the pipeline.
Out: a document for every module that has docstrings, in the order of their paths.

A function's text begins with its signature, as in what `help` prints: how parameters come to be
spoken of is a part of the language.

Long paragraphs that a distribution has printed before are left out, the first in order of path is
kept: scikit-learn explains `random_state` in hundreds of places, and a held-out module would be
half known. A distribution is read by one worker from beginning to end, so this needs no shuffle.
"""

import platform
from collections.abc import Iterable, Iterator
from pathlib import Path

from artifacts.digests import digest_of_file
from artifacts.filesystem import InputFile
from pipeline import demo
from pipeline.config import SourceConfig
from pipeline.demo.docstring_text import paragraphs
from pipeline.demo.docstrings import Docstring, docstrings
from pipeline.demo.documented import trees
from pipeline.demo.node_cache import remembered
from pipeline.demo.packages import modules, record
from pipeline.readers.documents import DocumentBlock, Piece, Reader, pack

REPEATABLE_WORDS = 8
"""Paragraphs shorter than this many words may be repeated: `axis : int, optional`."""


def find(source: SourceConfig) -> list[InputFile]:
    """The source's distributions, each as one file of its modules' total size."""
    return [
        InputFile(name, sum(module.size for module in modules(name))) for name in source.packages
    ]


def read(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents of the distribution that `piece.path` names."""
    yield from pack(
        (position, text.encode("utf-8", "replace"))
        for position, _, text in documents(piece.path)
        if text
    )


def documents(distribution: str) -> list[tuple[int, str, str]]:
    """Position, path and text of every module; paragraphs end with a line break.

    A distribution is parsed once per node: its record holds the digests of all its files.
    """
    key = [platform.python_version(), record(distribution), *_digests_of_code()]
    found = remembered("docstrings", key, lambda: list(_documents(distribution)))
    return [(position, name, text) for position, name, text in found]


def _digests_of_code() -> list[str]:
    """Digests of the modules that the text may depend on: an edit is another key."""
    room = Path(demo.__file__).parent
    return [digest_of_file(path) for path in (*sorted(room.glob("*.py")), Path(__file__))]


def _documents(distribution: str) -> Iterator[tuple[int, str, str]]:
    printed: set[str] = set()
    for position, (name, tree) in enumerate(trees(distribution)):
        found = docstrings(tree)
        lines = (line for docstring in found for line in _lines(docstring))
        yield position, name, "".join(_new(lines, printed))


def _lines(docstring: Docstring) -> list[str]:
    """What `help` prints: the signature, then the text."""
    lines = paragraphs(docstring.text, examples=True)
    is_callable = docstring.kind in ("class", "function")
    return [docstring.signature, *lines] if lines and is_callable else lines


def _new(lines: Iterable[str], printed: set[str]) -> Iterator[str]:
    """The paragraphs that are short or not yet in `printed`, which grows by them."""
    for line in lines:
        if line.count(" ") >= REPEATABLE_WORDS - 1:
            if line in printed:
                continue
            printed.add(line)
        yield line + "\n"


READER = Reader(read=read, line_break="paragraph", find=find)
