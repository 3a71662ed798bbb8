"""Docstrings, signatures and names from Python source, without importing or running anything.

In:  the bytes of one module.
Out: its docstrings in the order of the source, each with the parameters of what it documents;
     `Symbols`: which of the names it defines are classes, exceptions, functions.

Read with `ast` alone: the packages of the embedded default are data here, not code. Strings handed
to `add_newdoc` and its relatives count as docstrings too, because NumPy and torch document their
compiled functions that way.
"""

import ast
import builtins
import gc
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

Kind = Literal["module", "class", "function", "attribute"]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

DOCUMENTING_CALLS = frozenset({"add_docstr", "add_newdoc", "_add_docstr", "add_ndarray_method_doc"})
"""Functions that attach a docstring given as an argument (numpy, torch)."""

_RECEIVERS = frozenset({"self", "cls", "mcs"})
_EXCEPTION_ENDINGS = ("Error", "Exception", "Warning")


@dataclass(frozen=True)
class Docstring:
    """One docstring and where it stands."""

    name: str
    """Name inside the module, for example `Graph.add_edge`; empty for the module's own."""

    kind: Kind
    """What it documents."""

    text: str
    """The docstring, dedented."""

    parameters: tuple[str, ...] = ()
    """The function's parameters, or those of a class's `__init__`; without `self` and `cls`."""

    @property
    def signature(self) -> str:
        """Name and parameters, for example `add_edge(u, v)`."""
        return f"{self.name.rpartition('.')[2]}({', '.join(self.parameters)})"


@dataclass(frozen=True)
class Symbols:
    """Names by what they stand for. An exception class does not count as a type."""

    types: frozenset[str]
    exceptions: frozenset[str]
    functions: frozenset[str]


def parse(source: bytes) -> ast.Module:
    """A module's syntax tree; `SyntaxError` or `ValueError` if the source is not Python."""
    enabled = gc.isenabled()
    gc.disable()  # trees hold no cycles; without the collector they are built four times as fast
    try:
        return ast.parse(source)
    finally:
        if enabled:
            gc.enable()


def docstrings(tree: ast.Module) -> list[Docstring]:
    """Every docstring of a module, in the order of the source."""
    return list(_of_body(tree.body, prefix="", kind="module"))


def definitions(body: Iterable[ast.stmt]) -> Iterator[Definition]:
    """The classes, functions and methods that a body defines, whatever they are nested in."""
    for statement in _flat(body):
        if isinstance(statement, Definition):
            yield statement
        if isinstance(statement, ast.ClassDef):
            yield from definitions(statement.body)


def parameters(definition: Definition) -> tuple[str, ...]:
    """Names of a function's parameters, or of a class's `__init__`; without `self` and `cls`."""
    function: ast.stmt | None = definition
    if isinstance(definition, ast.ClassDef):
        methods = (node for node in definition.body if isinstance(node, ast.FunctionDef))
        function = next((method for method in methods if method.name == "__init__"), None)
    if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
        return ()
    given = function.args
    starred = [argument for argument in (given.vararg, given.kwarg) if argument]
    names = [
        argument.arg for argument in (*given.posonlyargs, *given.args, *given.kwonlyargs, *starred)
    ]
    return tuple(names[1:] if names[:1] and names[0] in _RECEIVERS else names)


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
    # a property is read like an attribute
    functions = {
        node.name
        for node in found
        if not any(
            "property" in text or text.endswith(".setter")
            for text in map(ast.unparse, node.decorator_list)
        )
    } - classes
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


def _of_body(
    body: list[ast.stmt], *, prefix: str, kind: Literal["module", "class"]
) -> Iterator[Docstring]:
    """The docstrings among a module's statements, or a class's without its own."""
    if kind == "module" and (text := _string(body[0]) if body else ""):
        yield Docstring("", "module", text)
        body = body[1:]
    for statement in _flat(body):
        if isinstance(statement, Definition):
            name, is_class = prefix + statement.name, isinstance(statement, ast.ClassDef)
            if text := _string(statement.body[0]):
                documented: Kind = "class" if is_class else "function"
                yield Docstring(name, documented, text, parameters(statement))
            if is_class:
                inside = statement.body[bool(text) :]
                yield from _of_body(inside, prefix=f"{name}.", kind="class")
        elif isinstance(statement, ast.Expr):
            yield from _of_expression(statement, prefix=prefix)


def _of_expression(expression: ast.Expr, *, prefix: str) -> Iterator[Docstring]:
    """A bare string documents the attribute before it; a documenting call holds its strings."""
    if text := _string(expression):
        yield Docstring(prefix.rstrip("."), "attribute", text)
        return
    called = getattr(expression.value, "func", None)  # `add_docstr` or `numpy.add_docstr`
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    if name in DOCUMENTING_CALLS:
        texts = [
            node.value for node in ast.walk(expression.value) if isinstance(node, ast.Constant)
        ]
        longest = max((text for text in texts if isinstance(text, str)), key=len, default="")
        if " " in longest:
            yield Docstring(prefix.rstrip("."), "attribute", inspect.cleandoc(longest))


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements with those under `if`, `try` and `with` taken out of their blocks."""
    for statement in body:
        if isinstance(statement, ast.If | ast.With | ast.Try):
            for field in ("body", "orelse", "finalbody"):
                yield from _flat(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from _flat(handler.body)
        else:
            yield statement


def _string(statement: ast.stmt) -> str:
    """The dedented text of a statement that is nothing but a string; else empty."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else ""
    return ""
