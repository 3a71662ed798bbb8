"""The base class of every configuration, and how configurations are read.

In:  a TOML file, and `a.b=value` overrides from the command line.
Out: a frozen pydantic model; an unknown key or invalid value is a one-line `UsageError`.

A field's docstring is its description: what it is, its unit, reason and source. Defaults follow the
paper.
"""

import ast
import difflib
import inspect
import itertools
import sys
import tomllib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    GetJsonSchemaHandler,
    JsonValue,
    ValidationError,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails

from cloze.artifacts.errors import UsageError

JsonObject = dict[str, Any]
"""A JSON object with stage-specific fields."""

LONGEST_FILE = 1 << 20
"""Most bytes of a configuration file; a real one has a few thousand."""

TOO_LARGE = "integers are limited to 64 bits; use a smaller number"

SHOWN_ERRORS = 10
SHOWN_CHARACTERS = 80
"""Characters of an invalid value shown in a message."""


FieldT = TypeVar("FieldT")


class Config(BaseModel):
    """A frozen table of settings; rejects unknown keys and integers of more than 64 bits."""

    # Every process imports these classes, and few use many of them: their validators are built at
    # first use, and their docstrings read when a schema is asked for, which saves most of the time.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, defer_build=True)

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for model in cls.__mro__:
            for name, docstring in field_docstrings(model).items():
                if name in properties:
                    properties[name].setdefault("description", docstring)
        return schema

    @field_validator("*")
    @classmethod
    def _has_64_bits(cls, value: FieldT) -> FieldT:
        # Python's integers are unbounded; those of Arrow, NumPy and C are not.
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError(TOO_LARGE)
        return value

    def changed(self) -> set[str]:
        """The fields whose value is not their default."""
        return {
            name
            for name, field in type(self).model_fields.items()
            if getattr(self, name) != field.get_default(call_default_factory=True)
        }


ConfigT = TypeVar("ConfigT", bound=Config)


def field_docstrings(model: type) -> dict[str, str]:
    """The docstring after each field that the class `model` defines itself, from its source."""
    body = _classes_in(model.__module__).get(model.__name__, [])
    return {
        field.target.id: inspect.cleandoc(after.value.value)
        for field, after in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(after, ast.Expr)
        and isinstance(after.value, ast.Constant)
        and isinstance(after.value.value, str)
    }


@cache
def _classes_in(module: str) -> dict[str, list[ast.stmt]]:
    """The bodies of a module's classes, by name; none where there is no source."""
    try:
        tree = ast.parse(inspect.getsource(sys.modules[module]))
    except (OSError, TypeError):
        return {}
    return {node.name: node.body for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


def among(names: Collection[str]) -> Callable[[str], str]:
    """A validator of names in a table of classes, such as readers, that grows by one line each."""

    def known(name: str) -> str:
        if name not in names:
            raise ValueError(f"unknown; expected one of {', '.join(names)}")
        return name

    return known


def read_toml(path: str | Path) -> dict[str, object]:
    """Read a TOML file, which may begin with a byte order mark."""
    try:
        with open(path, "rb") as file:
            # One byte more than allowed shows that the file is larger.
            content = file.read(LONGEST_FILE + 1)
        if len(content) > LONGEST_FILE:
            raise UsageError(
                f"{path}: larger than {LONGEST_FILE:,} bytes, expected a configuration file of a "
                "few thousand; data belong in separate files"
            )
        return tomllib.loads(content.decode("utf-8-sig"))
    except FileNotFoundError:
        raise UsageError(f"{path}: no such configuration file; see configs/ for examples") from None
    except OSError as error:
        raise UsageError(
            f"{path}: {error.strerror}; expected a configuration file (TOML), which "
            "`cloze init CORPUS` writes"
        ) from None
    except RecursionError:
        raise UsageError(
            f"{path}: tables or lists nested too deeply, expected a few levels; "
            "see configs/ for examples"
        ) from None
    except ValueError as error:  # invalid TOML, invalid UTF-8, or a number with thousands of digits
        raise UsageError(f"{path}: not a TOML file: {error}") from None


def override(table: dict[str, object], assignments: list[str]) -> dict[str, object]:
    """A copy of `table` with each `a.b=value` applied; values use TOML syntax.

    A value that is not valid TOML is taken as a string, so `name=demo` needs no quotes. Numbers
    index arrays of tables: `corpus.sources.0.path=...`.
    """
    result = table
    for assignment in assignments:
        dotted, equals, text = assignment.partition("=")
        if not equals or not dotted:
            raise UsageError(
                f"--set {assignment}: expected KEY=VALUE, for example --set pretrain.steps=100"
            )
        value: object = text
        with suppress(ValueError, RecursionError):
            value = tomllib.loads(f"value = {text}")["value"]
        result = _assign(result, dotted.split("."), value, where=f"--set {assignment}")
    return result


def parse(model: type[ConfigT], table: object, *, source: str | Path) -> ConfigT:
    """Validate `table` as a `model`; all errors are reported in one `UsageError`."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        found = error.errors()
        # pydantic often reports the enclosing table as well; keep only the innermost locations.
        enclosing = {
            detail["loc"][:depth] for detail in found for depth in range(len(detail["loc"]))
        }
        innermost = [detail for detail in found if detail["loc"] not in enclosing]
        reasons = [_explain(model, detail) for detail in innermost[:SHOWN_ERRORS]]
        if len(innermost) > SHOWN_ERRORS:
            reasons.append(f"and {len(innermost) - SHOWN_ERRORS:,} more")
        raise UsageError(f"{source}: {'; '.join(reasons)}") from None


def flat(table: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Flatten a nested table to dotted keys and scalar values."""
    return dict(_leaves("", dict(table)))


def _leaves(place: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    # An empty table or list is a leaf, or it would vanish.
    if isinstance(value, Mapping | list) and value:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, child in items:
            yield from _leaves(f"{place}.{name}" if place else str(name), child)
    else:
        yield place, value


def assign(table: dict[str, object], place: str, value: object) -> dict[str, object]:
    """A copy of `table` with `value` at the dotted key `place`."""
    result: dict[str, object] = _assign(table, place.split("."), value, where=place)
    return result


def with_value(config: ConfigT, place: str, value: object) -> ConfigT:
    """A copy of `config` with `value`, which must be valid, at the dotted key `place`."""
    name, _, rest = place.partition(".")
    inner = with_value(getattr(config, name), rest, value) if rest else value
    return config.model_copy(update={name: inner})


def _assign(node: object, keys: list[str], value: object, *, where: str) -> Any:
    if not keys:
        return value
    first, rest = keys[0], keys[1:]
    if isinstance(node, list):
        places = {str(index): index for index in range(len(node))}
        if first not in places:
            raise UsageError(f"{where}: no index {first} in a list of {len(node)}; count from 0")
        index = places[first]
        return [*node[:index], _assign(node[index], rest, value, where=where), *node[index + 1 :]]
    if not isinstance(node, dict):
        raise UsageError(f"{where}: {first} is inside a plain value, not a table; remove it")
    # A table that is missing on the way is made.
    return {**node, first: _assign(node.get(first, {}), rest, value, where=where)}


def _explain(model: type[BaseModel], detail: ErrorDetails) -> str:
    place = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        *above, name = detail["loc"]
        known = _known_names(model.model_json_schema(), above)
        # A clear candidate is proposed alone, otherwise a few vague ones.
        likely = difflib.get_close_matches(str(name), known, n=1, cutoff=0.8)
        close = likely or difflib.get_close_matches(str(name), known, n=3, cutoff=0.5)
        hint = f"did you mean {' or '.join(close)}?" if close else f"known are: {', '.join(known)}"
        return f"unknown key {place}, {hint}"
    if detail["type"] == "missing":
        return f"{place} is missing"
    # pydantic's prefix of our own messages
    message = detail["msg"].removeprefix("Value error, ")
    if detail["type"] == "int_parsing_size":
        message = TOO_LARGE
    # A whole table would be too long.
    if place and not isinstance(detail["input"], dict):
        given = repr(detail["input"])
        given = given if len(given) <= SHOWN_CHARACTERS else f"{given[:SHOWN_CHARACTERS]}…"
        message = f"{message}, got {given}"
    return f"{place}: {message}" if place else message


def _known_names(schema: JsonSchemaValue, location: Sequence[int | str]) -> list[str]:
    """The sorted field names at `location` in a JSON schema."""
    candidates = [*_members(schema, schema)]
    for part in location:
        children = [
            node.get("items")
            if isinstance(part, int)
            else node.get("properties", {}).get(part, node.get("additionalProperties"))
            for node in candidates
        ]
        found = [one for child in children if child for one in _members(schema, child)]
        candidates = found or candidates  # a union's tag is part of the path but not a field
    return sorted({name for node in candidates for name in node.get("properties", {})})


def _members(schema: JsonSchemaValue, node: object) -> Iterator[JsonSchemaValue]:
    """What a value at `node` may be: the members of a union, also of unions in it."""
    if not isinstance(node, dict):
        return
    node = _resolve(schema, node)
    either = node.get("anyOf") or node.get("oneOf")
    for member in either or ():
        yield from _members(schema, member)
    if not either:
        yield node


def _resolve(schema: JsonSchemaValue, node: JsonSchemaValue) -> JsonSchemaValue:
    reference = node.get("$ref", "")
    resolved: JsonSchemaValue = schema["$defs"][reference.rsplit("/", 1)[-1]] if reference else node
    return resolved


class StageConfig(Config):
    """The result-defining configuration of a stage, and the program that runs it."""

    stage: ClassVar[str]
    """The stage's name, and its folder in the store."""

    program: ClassVar[str]
    """The module to run with `python -P -m`."""

    format_version: ClassVar[int] = 1
    """Increased by hand whenever the same configuration would produce different bytes."""
