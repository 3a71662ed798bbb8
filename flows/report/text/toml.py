"""Writes a configuration as TOML: what one saves to repeat a run.

In:  nested dicts, lists and plain values, as JSON has them.
Out: text that `tomllib` reads back as the same value; None is left out, for TOML has none.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

LONG = 88
"""Characters above which a list takes a line for each item."""


def to_toml(table: Mapping[str, Any]) -> str:
    """`table` as a TOML document."""
    lines = list(_table(table, name=""))
    single = [line for line, after in zip(lines, [*lines[1:], None], strict=True) if line or after]
    return "\n".join(single).strip() + "\n"


def _table(table: Mapping[str, Any], *, name: str) -> Iterator[str]:
    for key, value in table.items():
        if value is not None and not _is_table(value):
            yield f"{_key(key)} = {_value(value)}"
    for key, value in table.items():
        inner = f"{name}.{_key(key)}" if name else _key(key)
        if isinstance(value, Mapping):
            body = list(_table(value, name=inner))
            # a table of nothing but tables needs no header of its own
            header = [] if body and not body[0] else [f"[{inner}]"]
            yield from ["", *header, *body]
        elif _is_table(value):
            for entry in value:
                yield from ["", f"[[{inner}]]", *_table(entry, name=inner)]


def _is_table(value: Any) -> bool:
    many = isinstance(value, (list, tuple)) and len(value) > 0
    return isinstance(value, Mapping) or (many and all(isinstance(one, Mapping) for one in value))


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        items = [_value(item) for item in value]
        line = f"[{', '.join(items)}]"
        if len(line) <= LONG:
            return line
        return "[\n" + "".join(f"  {item},\n" for item in items) + "]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(k)} = {_value(v)}' for k, v in value.items())} }}"
    # JSON's strings, numbers and booleans are TOML's, but for characters beyond the basic plane
    return json.dumps(value, ensure_ascii=False)


def _key(key: str) -> str:
    bare = key.replace("_", "").replace("-", "")
    return key if bare.isascii() and bare.isalnum() else json.dumps(key, ensure_ascii=False)
