"""A look at samples of a corpus: how it is to be read and how much it is.

In:  a file, folder, glob or URL.
Out: `Look`: the reader that fits, the column that holds the text, bytes of text.

Only beginnings of a few files are read. The guess is written into a configuration, where a person
can put it right; nothing is decided by it behind anyone's back.
"""

import bz2
import gzip
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet

from artifacts.errors import UsageError
from artifacts.inputs import InputFile, find_files
from pipeline.config import Reader

SAMPLE_BYTES = 1 << 16
SAMPLED_FILES = 16

OPENERS: Mapping[str, Callable[[Any], Any]] = {
    ".gz": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}
COMPRESSION = {".gz": 3.0, ".bz2": 4.0, ".xz": 4.0, ".zst": 3.5}
"""How many bytes of text one compressed byte usually stands for."""

TABLES: Mapping[str, Reader] = {".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}


@dataclass(frozen=True)
class Look:
    """What a corpus seems to be."""

    path: str
    files: int
    text_bytes: float
    """Estimated bytes of text."""
    reader: Reader
    text_field: str = ""
    """Column or key, for readers that want one."""
    why: str = ""
    """What the guess rests on."""


def look(path: str) -> Look:
    """Look at the corpus at `path`."""
    files = find_files(path)
    suffix = _commonest_suffix(files)
    sampled = [file for file in files if file.path.endswith(suffix)]
    sampled = sampled[:: max(1, len(sampled) // SAMPLED_FILES)][:SAMPLED_FILES]
    reader, field, why = _reader(suffix, sampled)
    return Look(
        path=path,
        files=len(files),
        text_bytes=sum(file.size for file in files) * COMPRESSION.get(_last(suffix), 1.0),
        reader=reader,
        text_field=field,
        why=why,
    )


def _commonest_suffix(files: list[InputFile]) -> str:
    """The suffix under which most bytes lie, `.jsonl.gz` whole; empty for files without one."""
    sizes: Counter[str] = Counter()
    for file in files:
        name = file.path.rsplit("/", 1)[-1]
        found = re.search(r"(\.[A-Za-z]\w{0,8})?(\.gz|\.bz2|\.xz|\.zst)?$", name)
        sizes[found.group(0) if found else ""] += file.size
    return sizes.most_common(1)[0][0]


def _last(suffix: str) -> str:
    return suffix[suffix.rfind(".") :] if suffix else ""


def _reader(suffix: str, files: list[InputFile]) -> tuple[Reader, str, str]:
    kind = suffix
    for compressed in COMPRESSION:
        kind = kind.removesuffix(compressed)
    if kind in TABLES:
        return TABLES[kind], _text_column(files[0]), f"files end in {suffix}"
    text = _sample(files)
    if kind in (".jsonl", ".ndjson", ".json"):
        return "jsonl", _text_key(text, files[0].path), f"files end in {suffix}"
    if text.lstrip().startswith("<mediawiki"):
        return "mediawiki", "", "a MediaWiki dump by its first element"
    if re.search(r'^<doc id="', text, re.MULTILINE):
        return "wikiextractor", "", 'documents begin with <doc id="…">'
    return _plain(text, files)


def _plain(text: str, files: list[InputFile]) -> tuple[Reader, str, str]:
    """One document a file, unless few large files hold many, parted by blank lines."""
    large = len(files) < SAMPLED_FILES and sum(file.size for file in files) / len(files) > 10**8
    if not large:
        return "text", "", "plain text: each file is taken as one document"
    lines = text.splitlines()
    sentences = sum(line.rstrip().endswith((".", "!", "?")) for line in lines)
    if sentences > len(lines) / 2:
        return "sentence_lines", "", "few large files, most lines end like sentences"
    return "blank_line_text", "", "few large files: blank lines are taken to part documents"


def _sample(files: list[InputFile]) -> str:
    return "\n".join(_beginning(file) for file in files)


def _beginning(file: InputFile) -> str:
    with fsspec.open(file.path, "rb") as stream:
        return _read(stream, _last(file.path)).decode("utf-8", "replace")


def _read(stream: IO[bytes], suffix: str) -> bytes:
    if suffix == ".zst":
        return b""  # its sample would want a library of its own; the suffix before says enough
    opener = OPENERS.get(suffix)
    with (opener or (lambda plain: plain))(stream) as plain:
        return bytes(plain.read(SAMPLE_BYTES))


def _text_key(text: str, path: str) -> str:
    """The key whose strings are longest."""
    lengths: Counter[str] = Counter()
    for line in text.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue  # the last line of a sample is cut
        for key, value in row.items() if isinstance(row, dict) else ():
            lengths[key] += len(value) if isinstance(value, str) else 0
    if not lengths or not lengths.most_common(1)[0][1]:
        raise UsageError(f"{path}: no JSON objects with text, one a line; expected JSON lines")
    return lengths.most_common(1)[0][0]


def _text_column(file: InputFile) -> str:
    """The first column of strings; `text` if there is one."""
    with fsspec.open(file.path, "rb") as stream:
        if file.path.endswith(".parquet"):
            schema = pyarrow.parquet.read_schema(stream)
        else:
            schema = _arrow_schema(stream)
    strings = [field.name for field in schema if pa.types.is_large_string(field.type)]
    strings += [field.name for field in schema if pa.types.is_string(field.type)]
    if not strings:
        raise UsageError(f"{file.path}: no column of strings; it has {', '.join(schema.names)}")
    return "text" if "text" in strings else str(strings[0])


def _arrow_schema(stream: IO[bytes]) -> Any:
    try:
        return pa.ipc.open_file(stream).schema
    except pa.ArrowInvalid:
        stream.seek(0)
        return pa.ipc.open_stream(stream).schema
