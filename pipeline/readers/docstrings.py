"""The docstrings of installed distributions: one document a module.

In:  names of distributions; each is one `file` to the pipeline.
Out: a document for every module that has docstrings, in the order of their paths.

A function's text begins with its signature, as in what `help` prints: the prose refers to its
parameters.

Of long paragraphs that a distribution repeats, only the first in order of path is kept:
scikit-learn explains `random_state` in hundreds of places, and half of a held-out module would be
known from training. A distribution is read by one worker from beginning to end, so this needs no
shuffle.

The corpus is read twice, for the vocabulary and for the tokens, by different processes; a
distribution is parsed once per node.
"""

import ast
import json
import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from artifacts.digests import cache_directory, digest_of, digest_of_file
from artifacts.filesystem import InputFile, write_bytes
from pipeline import demo
from pipeline.config.settings import SourceConfig
from pipeline.demo.docstring_text import paragraphs
from pipeline.demo.packages import module_files, record, trees
from pipeline.demo.python_source import docstrings
from pipeline.readers.documents import DocumentBlock, Piece, Reader, pack

REPEATABLE_WORDS = 8
"""Paragraphs shorter than this many words may be repeated: `axis : int, optional`."""

Value = TypeVar("Value")


def find(source: SourceConfig) -> list[InputFile]:
    """The source's distributions, each as one file of its modules' total size."""
    return [
        InputFile(name, sum(file.size for file in module_files(name))) for name in source.packages
    ]


def read_docstrings(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents of the distribution that `piece.path` names."""
    yield from pack(
        (position, text.encode("utf-8", "replace"))
        for position, _, text in documents(piece.path)
        if text
    )


def documents(distribution: str) -> list[tuple[int, str, str]]:
    """Position, path and text of every module; paragraphs end with a line break."""
    # The text depends on the modules of the demo; the record of a distribution holds the digests of
    # all its files.
    modules = sorted(Path(demo.__file__).parent.glob("*.py"))
    code = [digest_of_file(path) for path in (*modules, Path(__file__))]
    key = [platform.python_version(), record(distribution), *code]

    def made() -> list[tuple[int, str, str]]:
        printed: set[str] = set()
        return [
            (position, name, "".join(_lines_to_print(tree, printed)))
            for position, (name, tree) in enumerate(trees(distribution))
        ]

    return [(position, name, text) for position, name, text in remembered("docstrings", key, made)]


def _lines_to_print(tree: ast.Module, printed: set[str]) -> Iterator[str]:
    """What `help` prints of a module, without long paragraphs in `printed`; new ones are added."""
    for docstring in docstrings(tree):
        lines = paragraphs(docstring.text, examples=True)
        if lines and docstring.kind in ("class", "function"):
            lines.insert(0, docstring.signature)
        for line in lines:
            is_long = line.count(" ") >= REPEATABLE_WORDS - 1
            if not (is_long and line in printed):
                yield line + "\n"
            if is_long:
                printed.add(line)


def remembered(kind: str, key: list[str], make: Callable[[], Value]) -> Value:
    """The value of `make`, which depends on `key` alone, made once per node; as JSON has it.

    What cannot be read or written here is computed again: the cache only saves time.
    """
    path = cache_directory(kind) / f"{digest_of(key)}.json"
    with suppress(OSError, ValueError):
        kept: Value = json.loads(path.read_bytes())
        return kept
    value = make()
    with suppress(OSError):
        write_bytes(str(path), json.dumps(value).encode())
    return value


DOCSTRINGS = Reader(read=read_docstrings, line_break="paragraph", is_encoded=False, find=find)
