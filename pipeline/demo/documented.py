"""An installed package as what its documentation describes.

In:  a distribution's name.
Out: its modules: docstrings with parameters, and the names each defines; no syntax trees.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from artifacts.progress import say
from pipeline.demo.docstrings import Docstring, docstrings, parse
from pipeline.demo.packages import sources
from pipeline.demo.symbols import Symbols, symbols_of


@dataclass(frozen=True)
class Module:
    """What one module documents and defines."""

    name: str
    """Path inside the installation."""

    docstrings: list[Docstring]
    symbols: Symbols


def read_modules(distribution: str) -> Iterator[Module]:
    """The modules of an installed distribution, sorted by name."""
    for name, tree in trees(distribution):
        yield Module(name, docstrings(tree), symbols_of(tree))


def trees(distribution: str) -> Iterator[tuple[str, ast.Module]]:
    """Name and syntax tree of every module, sorted by name."""
    for module, source in sources(distribution):
        try:
            tree = parse(source)
        except (SyntaxError, ValueError, RecursionError) as error:
            # A template, or syntax of a newer Python than the one that reads.
            say(f"{distribution}: {module.name} is no Python of this version, left out: {error}")
            continue
        yield module.name, tree
