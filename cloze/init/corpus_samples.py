"""A look at samples of a corpus: how it is to be read and how much it is.

In:  a file, folder, glob or URL.
Out: `Look`: the reader that fits, the column that holds the text, bytes of text, documents, samples
     of the text, and files that do not look like the others.

Only beginnings of a few files are read. The guess is written into a configuration, where a person
can put it right; nothing is decided by it behind anyone's back.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

import fsspec
import pyarrow as pa
import pyarrow.parquet

from artifacts.errors import UsageError
from artifacts.filesystem import InputFile, find_files
from cloze.init.plain_layout import BLANK_LINE, plain_layout
from pipeline.config import Reader
from pipeline.readers.compression import stream

SAMPLE_BYTES = 1 << 16
SAMPLED_FILES = 16

COMPRESSION = {".gz": 3.0, ".bz2": 4.0, ".xz": 4.0, ".zst": 3.5}
"""How many bytes of text one compressed byte usually stands for."""

MARKS: Mapping[str, str] = {
    "jsonl": r"\n",
    "wikiextractor": r"(?m)^<doc ",
    "mediawiki": r"<page>",
    "blank_line_text": BLANK_LINE,
    "sentence_lines": BLANK_LINE,
}
"""What there is one of for each document."""

SAMPLED_ROWS = 100
MOST_DAMAGE = 0.01
"""Share of characters that are no text in a file that is."""

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
    documents: float = 0.0
    """Estimated number."""
    samples: tuple[str, ...] = ()
    """The beginnings of some files, or of some rows."""
    odd: tuple[str, ...] = ()
    """Files that are empty, of another kind than most, or no text, each with what is odd."""


def look(path: str) -> Look:
    """Look at the corpus at `path`."""
    files = find_files(path)
    suffix = _commonest_suffix(files)
    sampled = [file for file in files if file.path.endswith(suffix)]
    sampled = sampled[:: max(1, len(sampled) // SAMPLED_FILES)][:SAMPLED_FILES]
    table = TABLES.get(_plain_suffix(suffix))
    samples = () if table else tuple(_beginning(file) for file in sampled)
    text_bytes = sum(file.size for file in files) * COMPRESSION.get(_last(suffix), 1.0)
    reader, field, why = _reader(suffix, sampled, samples)
    if reader == "text":
        reader, why = plain_layout(samples, files=len(files), text_bytes=text_bytes)
    rows = _rows(sampled[0], field) if table else Rows(())
    return Look(
        path=path,
        files=len(files),
        text_bytes=text_bytes,
        reader=reader,
        text_field=field,
        why=why,
        documents=_documents(reader, files, text_bytes, samples=samples, rows=rows),
        samples=samples or rows.texts,
        odd=tuple(_odd(files, suffix, dict(zip(sampled, samples, strict=False)))),
    )


@dataclass(frozen=True)
class Rows:
    """The first rows of a table."""

    texts: tuple[str, ...]
    rows_per_byte: float = 0.0
    """Rows of the file for each of its bytes."""


def _documents(
    reader: Reader,
    files: list[InputFile],
    text_bytes: float,
    *,
    samples: tuple[str, ...],
    rows: Rows,
) -> float:
    """How many documents there are, by what parts them in the samples."""
    sampled = sum(len(text.encode()) for text in samples)
    if reader in MARKS and sampled:
        marks = sum(len(re.findall(MARKS[reader], text)) for text in samples)
        return text_bytes * marks / sampled
    return text_bytes * rows.rows_per_byte if rows.texts else float(len(files))


def _odd(files: list[InputFile], suffix: str, samples: dict[InputFile, str]) -> Iterator[str]:
    for file in files:
        name = file.path.rsplit("/", 1)[-1]
        if not file.size:
            yield f"{name} (empty)"
        elif suffix and not name.endswith(suffix):
            yield f"{name} (does not end in {suffix})"
        elif _is_binary(samples.get(file, "")):
            yield f"{name} (no text)"


def _is_binary(text: str) -> bool:
    return text.count("\ufffd") + text.count("\0") > MOST_DAMAGE * len(text)


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


def _plain_suffix(suffix: str) -> str:
    for compressed in COMPRESSION:
        suffix = suffix.removesuffix(compressed)
    return suffix


def _reader(
    suffix: str, files: list[InputFile], samples: tuple[str, ...]
) -> tuple[Reader, str, str]:
    kind = _plain_suffix(suffix)
    if kind in TABLES:
        return TABLES[kind], _text_column(files[0]), f"files end in {suffix}"
    text = "\n".join(samples)
    if kind in (".jsonl", ".ndjson", ".json"):
        return "jsonl", _text_key(text, files[0].path), f"files end in {suffix}"
    if text.lstrip().startswith("<mediawiki"):
        return "mediawiki", "", "a MediaWiki dump by its first element"
    if re.search(r'^<doc id="', text, re.MULTILINE):
        return "wikiextractor", "", 'documents begin with <doc id="…">'
    return "text", "", "plain text"


def _beginning(file: InputFile) -> str:
    """The first text of a file, as the readers will see it."""
    found = b""
    for chunk in stream(file.path, at_a_time=SAMPLE_BYTES):
        found += chunk
        if len(found) >= SAMPLE_BYTES:
            break
    return found[:SAMPLE_BYTES].decode("utf-8", "replace")


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
    with fsspec.open(file.path, "rb") as opened:
        if file.path.endswith(".parquet"):
            schema = pyarrow.parquet.read_schema(opened)
        else:
            schema = _arrow_reader(opened).schema
    strings = [field.name for field in schema if pa.types.is_large_string(field.type)]
    strings += [field.name for field in schema if pa.types.is_string(field.type)]
    if not strings:
        raise UsageError(f"{file.path}: no column of strings; it has {', '.join(schema.names)}")
    return "text" if "text" in strings else str(strings[0])


def _rows(file: InputFile, field: str) -> Rows:
    """The texts of the first rows of a table."""
    with fsspec.open(file.path, "rb") as opened:
        if file.path.endswith(".parquet"):
            parquet = pyarrow.parquet.ParquetFile(opened)
            count = parquet.metadata.num_rows
            first = next(parquet.iter_batches(SAMPLED_ROWS, columns=[field]), None)
            column = first[field].to_pylist() if first else []
        else:
            table = _arrow_reader(opened).read_all()
            count, column = len(table), table[field].slice(0, SAMPLED_ROWS).to_pylist()
    return Rows(tuple(text or "" for text in column), count / max(file.size, 1))


def _arrow_reader(opened: IO[bytes]) -> Any:
    """A reader of an Arrow file or stream."""
    try:
        return pa.ipc.open_file(opened)
    except pa.ArrowInvalid:
        opened.seek(0)
        return pa.ipc.open_stream(opened)
