"""What the names in a distribution's documentation stand for, read from its syntax trees.

In:  a module's syntax tree.
Out: `Symbols`: which names are classes, exceptions, functions.
"""

import ast
import builtins
from collections.abc import Iterable
from dataclasses import dataclass

from pipeline.demo.docstrings import Definition, definitions

_EXCEPTION_ENDINGS = ("Error", "Exception", "Warning")


@dataclass(frozen=True)
class Symbols:
    """Names by what they stand for. A class that is an exception is no type."""

    types: frozenset[str]
    exceptions: frozenset[str]
    functions: frozenset[str]


def builtin_symbols() -> Symbols:
    """Python's own exceptions; its types are words like others: a list, an int."""
    classes = {name for name, value in vars(builtins).items() if isinstance(value, type)}
    exceptions = {name for name in classes if name.endswith(_EXCEPTION_ENDINGS)}
    return Symbols(frozenset(), frozenset(exceptions), frozenset())


def symbols_of(tree: ast.Module) -> Symbols:
    """The names that a module defines."""
    found = list(definitions(tree.body))
    classes = {node.name for node in found if isinstance(node, ast.ClassDef)}
    exceptions = {one for one in classes if one.endswith(_EXCEPTION_ENDINGS)}
    functions = {node.name for node in found if not _is_property(node)} - classes
    return Symbols(
        frozenset(classes - exceptions),
        frozenset(exceptions),
        frozenset(one for one in functions if not one.startswith("__")),
    )


def merged(parts: Iterable[Symbols]) -> Symbols:
    """All symbols of `parts` and of Python itself."""
    everything = [builtin_symbols(), *parts]
    return Symbols(
        frozenset().union(*(part.types for part in everything)),
        frozenset().union(*(part.exceptions for part in everything)),
        frozenset().union(*(part.functions for part in everything)),
    )


def _is_property(definition: Definition) -> bool:
    """Whether a function is read like an attribute."""
    return any(
        "property" in ast.unparse(decorator) or ast.unparse(decorator).endswith(".setter")
        for decorator in definition.decorator_list
    )
