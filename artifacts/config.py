"""The base of every configuration, and how one is read.

In:  a TOML file, and `a.b=value` overrides from the command line.
Out: a frozen pydantic model; anything unknown or contradictory is a `UsageError` on one line.

A field's docstring is its description: what, unit, reason, source. The defaults are the paper.
"""

import difflib
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    JsonValue,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
    model_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import ErrorDetails

from artifacts.errors import UsageError
from artifacts.progress import say

JsonObject = dict[str, Any]
"""A JSON object whose fields its stage defines; readers must know that stage's form."""

LONGEST_FILE = 1 << 20
"""Bytes of a configuration; a real one has a few thousand."""

SHOWN_MISTAKES = 10
SHOWN_CHARACTERS = 80
"""Characters of an offending value that a message shows."""


FieldT = TypeVar("FieldT")


class Config(BaseModel):
    """A frozen table of settings; unknown keys and integers beyond 64 bits are refused."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )

    former_names: ClassVar[Mapping[str, str]] = {}
    """Former names of fields, accepted for one more version, mapped to the current ones."""

    @model_validator(mode="before")
    @classmethod
    def _accept_former_names(cls, table: object) -> object:
        if not isinstance(table, dict) or cls.former_names.keys().isdisjoint(table):
            return table
        for former, name in cls.former_names.items():
            if former in table and name in table:
                raise ValueError(f"{former} is the former name of {name}; give only {name}")
            if former in table:
                _warn_of_former_name(former, name)
        return {cls.former_names.get(key, key): value for key, value in table.items()}

    @field_validator("*")
    @classmethod
    def _has_64_bits(cls, value: FieldT) -> FieldT:
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
            raise ValueError("an integer has 64 bits; give a smaller number")
        return value


class GrownConfig(Config):
    """A table that gained fields after artifacts had been made from it.

    Such a field is written only where it differs from its default, so that the keys of what was
    made before stay as they are.
    """

    later_fields: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields that were added."""

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = type(self).model_fields
        at_default = {
            name for name in self.later_fields if getattr(self, name) == fields[name].default
        }
        return {name: value for name, value in handler(self).items() if name not in at_default}


ConfigT = TypeVar("ConfigT", bound=Config)


def read_toml(path: str | Path) -> dict[str, object]:
    """The tables of a TOML file, which may begin with a byte order mark."""
    try:
        with open(path, "rb") as file:
            content = file.read(LONGEST_FILE + 1)
        if len(content) > LONGEST_FILE:
            raise UsageError(
                f"{path}: longer than {LONGEST_FILE:,} bytes, expected a configuration file of a "
                "few thousand; data belong in files that it names"
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
            f"{path}: tables or lists in one another by the hundred, expected a few levels; "
            "see configs/ for examples"
        ) from None
    except ValueError as error:  # of TOML, of UTF-8, of a number with thousands of digits
        raise UsageError(f"{path}: not a TOML file: {error}") from None


def override(table: dict[str, object], assignments: list[str]) -> dict[str, object]:
    """A copy of `table` with every `a.b=value` applied; values are written as in TOML.

    A value that is not TOML is taken as a string, so that `name=demo` needs no quotes. A number
    steps into an array of tables: `corpus.sources.0.path=...`.
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
    """`table` as a `model`; every mistake in it becomes part of one `UsageError`."""
    try:
        return model.model_validate(table)
    except ValidationError as error:
        found = error.errors()
        places = [one["loc"] for one in found]
        # A table or list with a mistake inside is often refused itself, as if it lacked that part.
        within = {place[:depth] for place in places for depth in range(len(place))}
        mistakes = [one for one in found if one["loc"] not in within]
        reasons = [_explain(model, detail) for detail in mistakes[:SHOWN_MISTAKES]]
        if len(mistakes) > SHOWN_MISTAKES:
            reasons.append(f"and {len(mistakes) - SHOWN_MISTAKES:,} more")
        raise UsageError(f"{source}: {'; '.join(reasons)}") from None


@cache
def _warn_of_former_name(former: str, name: str) -> None:
    """Once a process: configurations are parsed several times on their way."""
    say(f"warning: {former} is now called {name}; the next version refuses the former name")


def flat(table: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """A nested table as dotted places and plain values."""
    return dict(_leaves("", dict(table)))


def _leaves(place: str, value: JsonValue) -> Iterator[tuple[str, JsonValue]]:
    if isinstance(value, Mapping | list) and value:
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        for name, child in items:
            yield from _leaves(f"{place}.{name}" if place else str(name), child)
    else:
        yield place, value


def assign(table: dict[str, object], place: str, value: object) -> dict[str, object]:
    """A copy of `table` with `value` at the dotted `place`."""
    result: dict[str, object] = _assign(table, place.split("."), value, where=place)
    return result


def _assign(node: object, keys: list[str], value: object, *, where: str) -> Any:
    if not keys:
        return value
    first, rest = keys[0], keys[1:]
    if isinstance(node, list):
        places = {str(index): index for index in range(len(node))}
        if first not in places:
            raise UsageError(f"{where}: {first} is no place in a list of {len(node)}; count from 0")
        index = places[first]
        return [*node[:index], _assign(node[index], rest, value, where=where), *node[index + 1 :]]
    if not isinstance(node, dict):
        raise UsageError(f"{where}: {first} lies inside a plain value; leave it out")
    return {**node, first: _assign(node.get(first, {}), rest, value, where=where)}


def _explain(model: type[BaseModel], detail: ErrorDetails) -> str:
    place = ".".join(str(part) for part in detail["loc"])
    if detail["type"] == "extra_forbidden":
        *above, name = detail["loc"]
        known = _known_names(model.model_json_schema(), above)
        close = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}?" if close else f"known are: {', '.join(known)}"
        return f"unknown key {place}, {hint}"
    if detail["type"] == "missing":
        return f"{place} is missing"
    message = detail["msg"].removeprefix("Value error, ")
    if place and not isinstance(detail["input"], dict):
        given = repr(detail["input"])
        given = given if len(given) <= SHOWN_CHARACTERS else f"{given[:SHOWN_CHARACTERS]}…"
        message = f"{message}, got {given}"
    return f"{place}: {message}" if place else message


def _known_names(schema: JsonSchemaValue, location: Sequence[int | str]) -> list[str]:
    """The field names at `location`, found by walking the JSON schema; sorted."""
    candidates = [_resolve(schema, schema)]
    for part in location:
        children = [
            node.get("items")
            if isinstance(part, int)
            else node.get("properties", {}).get(part, node.get("additionalProperties"))
            for node in candidates
        ]
        found = [_resolve(schema, child) for child in children if isinstance(child, dict)]
        candidates = found or candidates  # a union's tag is a part of the path without a field
    names: set[str] = set()
    for node in candidates:
        for member in node.get("anyOf") or node.get("oneOf") or [node]:
            names.update(_resolve(schema, member).get("properties", {}))
    return sorted(names)


def _resolve(schema: JsonSchemaValue, node: JsonSchemaValue) -> JsonSchemaValue:
    reference = node.get("$ref", "")
    resolved: JsonSchemaValue = schema["$defs"][reference.rsplit("/", 1)[-1]] if reference else node
    return resolved


class StageConfig(Config):
    """The result-defining configuration of one stage, and which program runs it."""

    stage: ClassVar[str]
    """The stage's name; the store's folder."""

    program: ClassVar[str]
    """The module that `python -P -m` runs."""

    format_version: ClassVar[int] = 1
    """Raised by hand whenever the same configuration would give other bytes."""
