"""Checks the arguments of the Python API by their annotations, once, at the door.

In:  a public function, and what a caller passes to it.
Out: the same function, which refuses other arguments with a `UsageError` before it does anything.

    @checked
    def embed(self, texts: str | Iterable[str], *, pooling: Pooling | None = None) -> ...

    model.embed(texts, pooling="MEAN")
    # embed: pooling = 'MEAN', expected 'mean', 'cls', 'pooler' or None; did you mean 'mean'?

Elements of a stream are checked as they are read. numpy's numbers count as numbers; pandas' columns
and numpy's arrays as collections, their tables and sets do not; a single string never counts as a
collection of strings.
"""

import difflib
import inspect
import operator
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from functools import cache, wraps
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar, Union, get_args, get_origin

from cloze.artifacts.errors import UsageError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

Kind = object
"""An annotation: a class, or a special form of `typing`, for which there is no common type."""

SHOWN = 60
"""Longest argument, in characters, that is repeated whole in a message."""


def checked(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function`, which refuses arguments that are not what its annotations say.

    Raises `TypeError` if an annotation is of a kind that cannot be checked, and, like any function,
    when called with unknown or missing arguments.
    """
    signature = inspect.signature(function)
    kinds = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if name != "self"
    }
    # An annotation that cannot be checked fails here, when the function is defined.
    for name, kind in kinds.items():
        _describe(kind)  # raises
        assert kind is not inspect.Parameter.empty, name

    @wraps(function)
    def call(*arguments: Arguments.args, **options: Arguments.kwargs) -> Result:
        try:
            bound = signature.bind(*arguments, **options)
        except TypeError as error:
            raise TypeError(f"{function.__name__}: {error}") from None
        for name, value in bound.arguments.items():
            if name in kinds:
                where = f"{function.__name__}: {name}"
                bound.arguments[name] = _accept(value, kinds[name], where=where)
        return function(*bound.args, **bound.kwargs)

    return call


def _accept(value: object, kind: Kind, *, where: str) -> object:
    """`value` as `kind`, or a refusal."""
    for origin, inner in _alternatives(kind):
        accepted = _as(value, origin, inner, where=where)
        if accepted is not _REFUSED:
            return accepted
    shown = repr(value)
    if "\n" in shown:
        shown = f"<{type(value).__name__}>"
    shown = shown if len(shown) <= SHOWN else f"{shown[:SHOWN]}…"
    raise UsageError(
        f"{where} = {shown}, expected {_describe(kind)}{_remedy(value, _members(kind))}"
    )


# A value of its own, since None may be an argument that is accepted.
_REFUSED = object()


def _as(value: object, origin: Kind, inner: tuple[Kind, ...], *, where: str) -> object:
    """`value` as `origin[inner]`, which is no union; `_REFUSED` if it is something else."""
    if origin in (Iterable, Sequence, tuple):
        return _listed(value, origin, inner[0], where=where)
    if origin is int:
        return _whole(value)
    if origin is bool:
        # also NumPy's
        return bool(value) if type(value).__name__ in ("bool", "bool_") else _REFUSED
    if origin is Literal:
        return value if isinstance(value, str) and value in inner else _REFUSED
    assert isinstance(origin, type)
    return value if isinstance(value, origin) else _REFUSED


def _listed(value: object, origin: Kind, inner: Kind, *, where: str) -> object:
    """A tuple, a list or, of an `Iterable`, a stream whose elements are checked when read."""
    if isinstance(value, str | bytes | Mapping) or not isinstance(value, Iterable):
        return _REFUSED
    if isinstance(value, Set) or _is_table(value):
        return _REFUSED  # without an order; or its elements would be the names of its columns
    if origin is Iterable:
        return _elements(value, inner, where=where)
    if not isinstance(value, Collection):
        return _REFUSED
    listed = list(_elements(value, inner, where=where))
    return tuple(listed) if origin is tuple else listed


def _is_table(value: object) -> bool:
    """Whether it is a table of pandas, polars or pyarrow."""
    return hasattr(value, "columns")


def _whole(value: object) -> object:
    """An integer of Python or numpy; true and false are none."""
    # To Python, True is the integer 1; as a number of tokens or results it is a slip.
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return _REFUSED
    try:
        return operator.index(value)  # type: ignore[arg-type]  # what has no index raises
    except TypeError:
        return _REFUSED


def _elements(values: Iterable[object], kind: Kind, *, where: str) -> Iterator[object]:
    for number, value in enumerate(values, start=1):
        yield _accept(value, kind, where=f"{where}, element {number}")


def _members(kind: Kind) -> tuple[Kind, ...]:
    """The alternatives of a union, or the one kind that it is."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


@cache
def _alternatives(kind: Kind) -> tuple[tuple[Kind, tuple[Kind, ...]], ...]:
    """Those of a union, each as its origin and arguments."""
    # Kept, since reading annotations takes longer than embedding a word.
    return tuple((get_origin(member) or member, get_args(member)) for member in _members(kind))


NAMES: Mapping[Kind, tuple[str, str]] = {
    str: ("a string", "strings"),
    int: ("an integer", "integers"),
    bool: ("True or False", ""),
    type(None): ("None", ""),
    Mapping: ("a dictionary", "dictionaries"),
    dict: ("a dictionary", "dictionaries"),
    Path: ("a path", "paths"),
}
"""One of a kind, and several."""


def _describe(kind: Kind) -> str:
    """What is expected, in words."""
    words = [word for member in _members(kind) for word in _words(member)]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"


def _words(kind: Kind) -> list[str]:
    origin, inner = get_origin(kind) or kind, get_args(kind)
    if origin is Literal:
        return [repr(word) for word in inner]
    if origin in (Iterable, Sequence, tuple):
        several = [NAMES[get_origin(each) or each][1] for each in _members(inner[0])]
        return [f"a {'tuple' if origin is tuple else 'list'} of {' or '.join(several)}"]
    if origin in NAMES:
        return [NAMES[origin][0]]
    if isinstance(origin, type):
        return [f"a {origin.__name__}"]
    raise TypeError(f"arguments annotated {kind} cannot be checked")


def _remedy(value: object, kinds: Collection[Kind]) -> str:
    """Advice for frequent slips: another spelling, and what stands for a list but is none."""
    if _is_table(value):
        return "; give one of the table's columns, or its rows as a list of dictionaries"
    if isinstance(value, Set):
        return "; a set has no order"
    if not isinstance(value, str):
        return ""
    words = [word for kind in kinds if get_origin(kind) is Literal for word in get_args(kind)]
    close = difflib.get_close_matches(value.lower(), words, n=1, cutoff=0.8)
    if close:
        return f"; did you mean {close[0]!r}?"
    if any(get_origin(kind) in (Iterable, Sequence, tuple) for kind in kinds):
        return "; put it into a list, [text], if it is the only one"
    return ""
