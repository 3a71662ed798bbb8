"""Docstrings, signatures and names from Python source, without importing or running anything.

In:  the bytes of one module.
Out: its docstrings in source order, each with the parameters of the documented function or class;
     `Symbols`: the classes, exceptions and functions that it defines.

Only `ast` is used: packages are data here, not code. Strings passed to `add_newdoc` and similar
functions count as docstrings, because NumPy and torch document compiled functions that way.
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
"""Functions that attach a docstring passed as an argument (NumPy, torch)."""

_RECEIVERS = frozenset({"self", "cls", "mcs"})
_EXCEPTION_ENDINGS = ("Error", "Exception", "Warning")


@dataclass(frozen=True)
class Docstring:
    """A docstring and what it documents."""

    name: str
    """Qualified name in the module, for example `Graph.add_edge`; empty for the module itself."""

    kind: Kind
    """The kind of object it documents."""

    text: str
    """The docstring, dedented."""

    parameters: tuple[str, ...] = ()
    """Parameters of the function, or of the class's `__init__`, without `self` and `cls`."""

    @property
    def signature(self) -> str:
        """Name and parameters, for example `add_edge(u, v)`."""
        return f"{self.name.rpartition('.')[2]}({', '.join(self.parameters)})"


@dataclass(frozen=True)
class Symbols:
    """Defined names by kind; exception classes do not count as types."""

    types: frozenset[str]
    exceptions: frozenset[str]
    functions: frozenset[str]


def parse(source: bytes) -> ast.Module:
    """A module's syntax tree; `SyntaxError` or `ValueError` if the source is not Python."""
    enabled = gc.isenabled()
    gc.disable()  # syntax trees have no cycles; parsing is four times as fast without the collector
    try:
        return ast.parse(source)
    finally:
        if enabled:
            gc.enable()


def docstrings(tree: ast.Module) -> list[Docstring]:
    """All docstrings of a module, in source order."""
    return list(_body_docstrings(tree.body, prefix="", kind="module"))


def definitions(body: Iterable[ast.stmt]) -> Iterator[Definition]:
    """The classes, functions and methods defined in a body, also inside classes and blocks."""
    for statement in _flattened(body):
        if isinstance(statement, Definition):
            yield statement
        if isinstance(statement, ast.ClassDef):
            yield from definitions(statement.body)


def parameters(definition: Definition) -> tuple[str, ...]:
    """Parameter names of a function, or of a class's `__init__`, without `self` and `cls`."""
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
    """Python's built-in exceptions; built-in types are ordinary words: a list, an int."""
    classes = {name for name, value in vars(builtins).items() if isinstance(value, type)}
    exceptions = {name for name in classes if name.endswith(_EXCEPTION_ENDINGS)}
    return Symbols(frozenset(), frozenset(exceptions), frozenset())


def symbols_of(tree: ast.Module) -> Symbols:
    """The names defined in a module."""
    found = list(definitions(tree.body))
    classes = {node.name for node in found if isinstance(node, ast.ClassDef)}
    exceptions = {one for one in classes if one.endswith(_EXCEPTION_ENDINGS)}
    # properties are attributes, not functions
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
    """The union of `parts` and the built-in symbols."""
    everything = [builtin_symbols(), *parts]
    return Symbols(
        frozenset().union(*(part.types for part in everything)),
        frozenset().union(*(part.exceptions for part in everything)),
        frozenset().union(*(part.functions for part in everything)),
    )


def _body_docstrings(
    body: list[ast.stmt], *, prefix: str, kind: Literal["module", "class"]
) -> Iterator[Docstring]:
    """The docstrings in the body of a module or class, except the class's own."""
    if kind == "module" and (text := _bare_string(body[0]) if body else ""):
        yield Docstring("", "module", text)
        body = body[1:]
    for statement in _flattened(body):
        if isinstance(statement, Definition):
            name, is_class = prefix + statement.name, isinstance(statement, ast.ClassDef)
            if text := _bare_string(statement.body[0]):
                documented: Kind = "class" if is_class else "function"
                yield Docstring(name, documented, text, parameters(statement))
            if is_class:
                inside = statement.body[bool(text) :]
                yield from _body_docstrings(inside, prefix=f"{name}.", kind="class")
        elif isinstance(statement, ast.Expr):
            yield from _expression_docstrings(statement, prefix=prefix)


def _expression_docstrings(expression: ast.Expr, *, prefix: str) -> Iterator[Docstring]:
    """A bare string documents the attribute before it; documenting calls contain docstrings."""
    if text := _bare_string(expression):
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


def _flattened(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements, including those nested in `if`, `try` and `with`."""
    for statement in body:
        if isinstance(statement, ast.If | ast.With | ast.Try):
            for field in ("body", "orelse", "finalbody"):
                yield from _flattened(getattr(statement, field, []))
            for handler in getattr(statement, "handlers", []):
                yield from _flattened(handler.body)
        else:
            yield statement


def _bare_string(statement: ast.stmt) -> str:
    """The dedented text of a statement that is a bare string; otherwise empty."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        value = statement.value.value
        return inspect.cleandoc(value) if isinstance(value, str) else ""
    return ""
