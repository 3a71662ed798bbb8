"""The modules of installed distributions, as data: docstrings, signatures and names.

In:  the name of a distribution.
Out: its Python modules, sorted by path: syntax trees; docstrings in source order, each with the
     parameters of what it documents; `Symbols`: the classes, exceptions and functions defined.

Nothing is imported or run, only `ast` is used. Strings passed to `add_newdoc` and similar functions
count as docstrings, because NumPy and torch document compiled functions that way. The selection of
modules depends on the pinned version alone, not on the installation directory, platform-specific
files written by a build, or compiled caches.
"""

import ast
import builtins
import gc
import inspect
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal, NamedTuple

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.progress import say

LEFT_OUT_FOLDER = re.compile(
    "_?tests?|test_data|_internal|_?vendor(ed)?|third_party|extern|_?externals?"
)
"""Folders of tests and of vendored code, which would appear in several packages."""

GENERATED_FILE = re.compile(r"_?version\.py|__config__\.py|_build_config\.py|_distributor_init\.py")
"""Files written when a wheel is built, which differ between platforms."""


Kind = Literal["module", "class", "function", "attribute"]
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef

DOCUMENTING_CALLS = frozenset({"add_docstr", "add_newdoc", "_add_docstr", "add_ndarray_method_doc"})
"""Functions that attach a docstring passed as an argument (NumPy, torch)."""

_RECEIVERS = frozenset({"self", "cls", "mcs"})
_EXCEPTION_ENDINGS = ("Error", "Exception", "Warning")


@dataclass(frozen=True)
class ModuleFile:
    """One Python file of a distribution."""

    name: str
    """Path in the installation, for example `numpy/fft/_helper.py`."""

    path: Path
    """Absolute path on this machine."""

    size: int
    """Bytes, from the distribution's record."""


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


class Symbols(NamedTuple):
    """Defined names by kind; exception classes do not count as types."""

    types: frozenset[str]
    exceptions: frozenset[str]
    functions: frozenset[str]


@dataclass(frozen=True)
class Module:
    """The docstrings and symbols of a module."""

    name: str
    """Path in the installation."""

    docstrings: list[Docstring]
    symbols: Symbols


def module_files(distribution: str) -> list[ModuleFile]:
    """The documented modules of an installed distribution, sorted by name."""
    found = _installed(distribution)
    # Raises if there is no record.
    record(distribution)
    listed = []
    for file in sorted(found.files or [], key=str):
        *folders, name = str(file).split("/")
        # only modules of its own: no tests, no vendored code
        if (
            name.endswith(".py")
            and not name.startswith("test_")
            and not name.endswith("_test.py")
            and not GENERATED_FILE.fullmatch(name)
            and folders[:1] != [".."]
            and not any(LEFT_OUT_FOLDER.fullmatch(folder) for folder in folders)
        ):
            path = Path(str(found.locate_file(file)))
            listed.append(ModuleFile(str(file), path, file.size or 0))
    if not listed:
        raise UsageError(
            f"{distribution} {found.version}: its record names no Python module; editable and "
            "compiled distributions cannot be read, choose another"
        )
    return listed


def record(distribution: str) -> str:
    """The distribution's RECORD: its files with their digests."""
    found = _installed(distribution)
    listed = found.read_text("RECORD")
    if listed is None:  # `found.files` would list the source tree
        raise UsageError(
            f"{distribution} {found.version}: installed without a record of its files, as pip "
            f"before 23.1 may do; pip install --force-reinstall --use-pep517 {distribution}"
        )
    return listed


def trees(distribution: str) -> Iterator[tuple[str, ast.Module]]:
    """The name and syntax tree of every module, sorted by name."""
    for file in module_files(distribution):
        try:
            tree = syntax_tree(file.path.read_bytes())
        except FileNotFoundError:
            raise IntegrityError(
                f"{file.path}: missing, but {distribution}'s record names it; "
                f"pip install --force-reinstall {distribution}"
            ) from None
        except (SyntaxError, ValueError, RecursionError) as error:
            # a template, or syntax of a newer Python
            say(f"{distribution}: skipping {file.name}, not valid in this Python: {error}")
            continue
        yield file.name, tree


def read_modules(distribution: str) -> Iterator[Module]:
    """The docstrings and symbols of every module, sorted by name."""
    for name, tree in trees(distribution):
        yield Module(name, docstrings(tree), symbols_of(tree))


def _installed(distribution: str) -> metadata.Distribution:
    try:
        return metadata.distribution(distribution)
    except metadata.PackageNotFoundError:
        raise UsageError(
            f"{distribution}: not installed here, so its docstrings cannot be read; "
            f"pip install {distribution}, or remove it from the configuration"
        ) from None


def syntax_tree(source: bytes) -> ast.Module:
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


def parameter_names(definition: Definition) -> tuple[str, ...]:
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


def merged_symbols(parts: Iterable[Symbols]) -> Symbols:
    """The union of `parts` and the built-in symbols."""
    return Symbols(
        *(frozenset().union(*kind) for kind in zip(builtin_symbols(), *parts, strict=True))
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
                yield Docstring(name, documented, text, parameter_names(statement))
            if is_class:
                # without its own docstring
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
        # Of the strings in the call, the docstring is the longest; others are names.
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
