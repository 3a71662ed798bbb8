"""The docstrings of installed distributions: one document per module.

In:  names of distributions; the pipeline treats each as one file.
Out: a document for every module with docstrings, in path order.

A function's text begins with its signature, as `help` prints it, because the prose refers to its
parameters. Of a long paragraph that a distribution repeats, only the first occurrence is kept:
scikit-learn explains `random_state` in hundreds of places, which would leak half of a held-out
module into training. One worker reads a distribution from beginning to end, so deduplication needs
no shuffle.

The vocabulary and tokens stages read the corpus in different processes; the parsed text is cached,
so a distribution is parsed once per node.
"""

import ast
import json
import platform
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cloze.artifacts.digests import (
    cache_directory,
    digest_of,
    digest_of_file,
    read_checked,
    with_checksum,
)
from cloze.artifacts.filesystem import InputFile, write_bytes
from cloze.demo.docstring_text import paragraphs
from cloze.demo.packages import docstrings, module_files, read_modules, record, trees
from cloze.demo.tasks import documented_functions
from cloze.pipeline.config.settings import SourceConfig
from cloze.pipeline.readers.documents import DocumentBlock, Pair, Piece, Reader, pack

REPEATABLE_WORDS = 8
"""Paragraphs with fewer words may be repeated: `axis : int, optional`."""

Value = TypeVar("Value")


def find(source: SourceConfig) -> list[InputFile]:
    """The distributions of the source, each as one file with the total size of its modules."""
    return [
        InputFile(name, sum(file.size for file in module_files(name))) for name in source.packages
    ]


def read_docstrings(piece: Piece, source: SourceConfig) -> Iterator[DocumentBlock]:
    """The documents of the distribution named by `piece.path`."""
    yield from pack(
        (position, text.encode("utf-8", "replace"))
        for position, _, text in documents(piece.path)
        if text
    )


def documents(distribution: str) -> list[tuple[int, str, str]]:
    """Position, path and text of every module, one paragraph per line."""
    # The text depends on the modules of this folder and on those of the distribution, whose record
    # lists file digests. Other lines of the record, such as those of scripts, differ between
    # environments.
    code = [digest_of_file(path) for path in sorted(Path(__file__).parent.glob("*.py"))]
    listed = [line for line in record(distribution).splitlines() if ".py," in line]
    key = [platform.python_version(), *listed, *code]

    def compute() -> list[tuple[int, str, str]]:
        printed: set[str] = set()
        return [
            (position, name, "".join(_lines_to_print(tree, printed)))
            for position, (name, tree) in enumerate(trees(distribution))
        ]

    return [(position, name, text) for position, name, text in cached("docstrings", key, compute)]


def _lines_to_print(tree: ast.Module, printed: set[str]) -> Iterator[str]:
    """The lines that `help` prints, without long ones already in `printed`; adds the others."""
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


def cached(kind: str, key: list[str], make: Callable[[], Value]) -> Value:
    """The result of `make`, which must depend on `key` alone, cached as JSON per node.

    If the cache is damaged or cannot be read or written, the value is computed again.
    """
    path = cache_directory(kind) / f"{digest_of(key)}.json"
    with suppress(OSError, ValueError):
        kept: Value = json.loads(read_checked(path))
        return kept
    value = make()
    with suppress(OSError):
        write_bytes(str(path), with_checksum(json.dumps(value).encode()))
    return value


def read_signatures(piece: Piece, source: SourceConfig) -> Iterator[list[Pair]]:
    """The summaries and signatures of the functions of each module of a distribution."""
    for module in read_modules(piece.path):
        yield list(documented_functions(module.docstrings).items())


DOCSTRINGS = Reader(
    read=read_docstrings,
    line_break="paragraph",
    is_encoded=False,
    find=find,
    pairs=read_signatures,
    unit="document",
)
