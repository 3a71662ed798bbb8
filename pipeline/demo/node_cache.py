"""What this node has worked out before: JSON values under keys that say everything they depend on.

In:  a key, and a function that gives the value.
Out: the value, made once per node.

The corpus is read twice, for the vocabulary and for the tokens, by different processes. What
cannot be read or written here is made again: a cache may only save time.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from artifacts.digests import cache_directory, digest_of
from artifacts.filesystem import write_bytes


def remembered(kind: str, key: list[str], make: Callable[[], Any]) -> Any:
    """The value of `make`, which depends on `key` alone; it comes back as JSON has it."""
    path = cache_directory().parent / kind / f"{digest_of(key)}.json"
    with suppress(OSError, ValueError):
        return json.loads(path.read_bytes())
    value = make()
    with suppress(OSError):
        write_bytes(str(path), json.dumps(value).encode())
    return value
