"""The passages of evaluation sets, which no training document should contain.

In:  files in whatever format evaluation data come.
Out: the hashes of their passages, sorted.

Fields are taken one by one, so no passage runs from a question into its answer: the strings of a
JSON document, wherever they are in it, the columns of a table, else the lines. Brown et al. 2020
(GPT-3, appendix C) call a document with 13 words in common with an evaluation set overlapping.
"""

import json
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from artifacts.filesystem import find_files
from artifacts.rng import UInt64s
from pipeline.config import OverlapConfig
from pipeline.duplicates.shingles import Passages, passages
from pipeline.readers.compression import stream
from pipeline.readers.documents import Bytes, Offsets


@lru_cache(maxsize=2)
def evaluation_passages(config: OverlapConfig) -> UInt64s:
    """All passages of all evaluation files, each once, ascending."""
    found = [np.zeros(0, dtype=np.uint64)]
    for path in config.paths:
        for file in find_files(path):
            text, ends = _joined(_fields(b"".join(stream(file.path)), file.path))
            found.append(passages(text, ends, words=config.words).hashes_P)
    return np.unique(np.concatenate(found))


def overlapping(found: Passages, documents: int, wanted: UInt64s) -> npt.NDArray[np.bool_]:
    """(D,) bool: which of a block's documents have one of the `wanted` passages."""
    if not len(wanted):
        return np.zeros(documents, dtype=np.bool_)
    places = np.minimum(np.searchsorted(wanted, found.hashes_P), len(wanted) - 1)
    overlaps = np.zeros(documents, dtype=np.bool_)
    overlaps[found.documents_P[wanted[places] == found.hashes_P]] = True
    return overlaps


def _fields(raw: bytes, path: str) -> Iterator[str]:
    text = raw.decode("utf-8-sig", "replace")
    plain = path.removesuffix(".gz").removesuffix(".bz2").removesuffix(".xz").removesuffix(".zst")
    if plain.endswith((".json", ".jsonl")):
        yield from _strings(_parsed(text))
        return
    for line in text.splitlines():
        yield from line.split("\t")


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return [json.loads(line) for line in text.splitlines() if line.strip()]


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _strings(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner)


def _joined(fields: Iterator[str]) -> tuple[Bytes, Offsets]:
    encoded = [field.encode("utf-8", "replace") + b"\n" for field in fields]
    lengths = [len(field) for field in encoded]
    return np.frombuffer(b"".join(encoded), dtype=np.uint8), np.cumsum(lengths, dtype=np.int64)
