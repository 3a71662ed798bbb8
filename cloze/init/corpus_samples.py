"""A corpus from samples of its files: how it is to be read and how much text it holds.

In:  a file, folder, glob or URL.
Out: `Look`: the reader that fits, the column that holds the text, bytes of text, documents, samples
     of the text, and files that do not look like the others.

Only the beginnings of a few files are read. The guess is written into a configuration, where a
person can correct it.

A blank line separates documents in one plain text file and paragraphs in another, and nothing in it
says which. That is guessed from how many blocks of lines there are and what their lines look like,
and the reason says what else it could be.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import fsspec
import pyarrow as pa
import pyarrow.parquet

from artifacts.errors import UsageError
from artifacts.filesystem import InputFile, find_files
from pipeline.config.settings import Reader
from pipeline.readers.compression import stream

SAMPLE_BYTES = 1 << 16
SAMPLED_FILES = 16
SAMPLED_ROWS = 100

COMPRESSION = {".gz": 3.0, ".bz2": 4.0, ".xz": 4.0, ".zst": 3.5}
"""Bytes of text per compressed byte, typically."""

SUFFIX = re.compile(r"(\.[A-Za-z]\w{0,8})?(\.gz|\.bz2|\.xz|\.zst)?$")
"""`.jsonl.gz` is one suffix."""

BLANK_LINE = r"\n\s*\n"

DOCUMENT_MARKS: Mapping[str, str] = {
    "jsonl": r"\n",
    "wikiextractor": r"(?m)^<doc ",
    "mediawiki": r"<page>",
    "blank_line_text": BLANK_LINE,
    "sentence_lines": BLANK_LINE,
}
"""A pattern that occurs once per document."""

MOST_DAMAGE = 0.01
"""Largest share of undecodable characters in a file that is text."""

MANY_BLOCKS = 200
"""In a file; an article rarely has so many paragraphs."""
FEW_FILES = 16
"""Of more files each is a document: that many collections of documents are rare."""
SHORT_LINE, WRAPPED_WIDTH = 40, 100
"""Characters: most lines of hard-wrapped text are at least as long, hardly any is longer."""
MOST, HARDLY_ANY = 0.5, 0.02
"""Shares of lines."""

ONE_SENTENCE = re.compile(
    r"(?!.*[.!?][\"')\]”’»]* +[A-ZÀ-Þ])"  # no other one ends in it
    r".*[.!?。！？][\"')\]”’»]*$"
)

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
    """Column or key, for readers that need one."""
    why: str = ""
    """What the guess rests on."""
    documents: float = 0.0
    """Estimated number."""
    samples: tuple[str, ...] = ()
    """The beginnings of some files, or of some rows."""
    odd: tuple[str, ...] = ()
    """Files that are empty, of another kind than most, or not text, each with what is odd."""


def look(path: str) -> Look:
    """Look at the corpus at `path`."""
    files = find_files(path)
    sizes: Counter[str] = Counter()
    for file in files:
        found = SUFFIX.search(_name(file))
        sizes[found.group(0) if found else ""] += file.size
    suffix = sizes.most_common(1)[0][0]  # under which most bytes are
    last = suffix[suffix.rfind(".") :] if suffix else ""
    kind = suffix.removesuffix(last) if last in COMPRESSION else suffix
    sampled = [file for file in files if file.path.endswith(suffix)]
    sampled = sampled[:: max(1, len(sampled) // SAMPLED_FILES)][:SAMPLED_FILES]
    text_bytes = sum(file.size for file in files) * COMPRESSION.get(last, 1.0)
    if kind in TABLES:
        field, samples, rows_per_byte = _table_rows(sampled[0])
        reader, why, odd = TABLES[kind], f"files named *{suffix}", _odd(files, suffix, {})
        documents = text_bytes * rows_per_byte if samples else float(len(files))
    else:
        samples = tuple(_beginning(file) for file in sampled)
        reader, field, why = _text_reader(
            kind, samples, first=sampled[0], files=len(files), text_bytes=text_bytes
        )
        documents = float(len(files))
        sampled_bytes = sum(len(text.encode()) for text in samples)
        if reader in DOCUMENT_MARKS and sampled_bytes:
            marks = sum(len(re.findall(DOCUMENT_MARKS[reader], text)) for text in samples)
            documents = text_bytes * marks / sampled_bytes
        odd = _odd(files, suffix, dict(zip(sampled, samples, strict=True)))
    return Look(
        path=path,
        files=len(files),
        text_bytes=text_bytes,
        reader=reader,
        text_field=field,
        why=why,
        documents=documents,
        samples=samples,
        odd=tuple(odd),
    )


def _name(file: InputFile) -> str:
    return file.path.rsplit("/", 1)[-1]


def _odd(files: list[InputFile], suffix: str, samples: dict[InputFile, str]) -> Iterator[str]:
    for file in files:
        text = samples.get(file, "")
        if not file.size:
            yield f"{_name(file)} (empty)"
        elif suffix and not file.path.endswith(suffix):
            yield f"{_name(file)} (does not end in {suffix})"
        elif text.count("\ufffd") + text.count("\0") > MOST_DAMAGE * len(text):
            yield f"{_name(file)} (not text)"


def _beginning(file: InputFile) -> str:
    """The first text of a file, as the readers will see it."""
    found = b""
    for chunk in stream(file.path, at_a_time=SAMPLE_BYTES):
        found += chunk
        if len(found) >= SAMPLE_BYTES:
            break
    return found[:SAMPLE_BYTES].decode("utf-8", "replace")


def _text_reader(
    kind: str, samples: tuple[str, ...], *, first: InputFile, files: int, text_bytes: float
) -> tuple[Reader, str, str]:
    """The reader, the key that holds the text if there are keys, and what the guess rests on."""
    text = "\n".join(samples)
    if kind in (".jsonl", ".ndjson", ".json"):
        return "jsonl", _text_key(text, first.path), f"files named *{kind}"
    if text.lstrip().startswith("<mediawiki"):
        return "mediawiki", "", "a MediaWiki dump by its first element"
    if re.search(r'^<doc id="', text, re.MULTILINE):
        return "wikiextractor", "", 'documents start with <doc id="…">'
    reader, why = plain_layout(samples, files=files, text_bytes=text_bytes)
    return reader, "", why


def plain_layout(samples: tuple[str, ...], *, files: int, text_bytes: float) -> tuple[Reader, str]:
    """How plain text is laid out in its files: the reader, and what the guess rests on."""
    lines = [line.strip() for text in samples for line in text.splitlines() if line.strip()]
    blank_lines = sum(len(re.findall(BLANK_LINE, text)) for text in samples)
    sampled = sum(len(text.encode()) for text in samples)
    blocks = blank_lines * text_bytes / max(sampled, 1) / files
    many = f"about {blocks:,.0f} blocks of lines a file"

    def share(holds: Callable[[str], object]) -> float:
        return sum(bool(holds(line)) for line in lines) / max(len(lines), 1)

    if blocks < MANY_BLOCKS:
        return "text", "plain text: each file is taken as one document"
    if share(ONE_SENTENCE.match) > MOST:
        return "sentence_lines", f"{many}, most lines one sentence: blank lines separate documents"
    wrapped = share(lambda line: len(line) > WRAPPED_WIDTH) <= HARDLY_ANY
    wrapped = wrapped and share(lambda line: len(line) >= SHORT_LINE) > MOST
    if files >= FEW_FILES or wrapped:
        return "text", f"{many}, taken as paragraphs; if they are documents: blank_line_text"
    return "blank_line_text", f"{many}, taken as documents; if they are paragraphs: text"


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
        raise UsageError(f"{path}: no JSON objects with text, one per line; expected JSON lines")
    return lengths.most_common(1)[0][0]


def _table_rows(file: InputFile) -> tuple[str, tuple[str, ...], float]:
    """The column of text, the texts of the first rows, and rows per byte of a table's file."""
    with fsspec.open(file.path, "rb") as opened:
        if file.path.endswith(".parquet"):
            parquet = pyarrow.parquet.ParquetFile(opened)
            column = _text_column(parquet.schema_arrow, file.path)
            count = parquet.metadata.num_rows
            batch = next(parquet.iter_batches(SAMPLED_ROWS, columns=[column]), None)
            texts = batch[column].to_pylist() if batch else []
        else:
            try:
                table = pa.ipc.open_file(opened).read_all()
            except pa.ArrowInvalid:
                opened.seek(0)
                table = pa.ipc.open_stream(opened).read_all()
            column = _text_column(table.schema, file.path)
            count, texts = len(table), table[column].slice(0, SAMPLED_ROWS).to_pylist()
    return column, tuple(text or "" for text in texts), count / max(file.size, 1)


def _text_column(schema: pa.Schema, path: str) -> str:
    """The first column of strings; `text` if there is one."""
    strings = [field.name for field in schema if pa.types.is_large_string(field.type)]
    strings += [field.name for field in schema if pa.types.is_string(field.type)]
    if not strings:
        raise UsageError(f"{path}: no column of strings; it has {', '.join(schema.names)}")
    return "text" if "text" in strings else str(strings[0])
