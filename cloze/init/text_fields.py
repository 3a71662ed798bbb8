"""Which field of a record is its text.

In:  a few records of JSON lines, CSV, Parquet or Arrow.
Out: the key or column with the most prose, and the texts there.

Prose has words: addresses, hashes, identifiers, dates and numbers never count, however long they
are.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
import pyarrow.parquet

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.filesystem import InputFile, open_to_read
from cloze.pipeline.readers.documents import BrokenRecord
from cloze.pipeline.readers.structure import dialect_of
from cloze.pipeline.readers.tables import rows_below_header

Row = Mapping[str, object]

PREFERRED = "text"
ENOUGH = 0.5
"""Share of the longest prose that makes a field called `text` the text."""
SHOWN_CHARACTERS = 60

_TAG = re.compile(r"<[^<>]*>")
_ADDRESS = re.compile(r"(?:[a-z][a-z0-9+.-]*://|www\.)\S+", re.IGNORECASE)
_LETTER = re.compile(r"[^\W\d_]")


def text_field(rows: Sequence[Row], path: str) -> tuple[str, str, tuple[str, ...]]:
    """The field with the text, the reason, and the texts; `UsageError` if none has prose."""
    prose: Counter[str] = Counter()
    texts: dict[str, list[str]] = {}
    within_lists: set[str] = set()
    for row in rows:
        for name, value in _leaves(row, within_lists):
            # Over all sampled records: a field that is long in one and missing in most is not the
            # text.
            prose[name] += prose_length(value)
            texts.setdefault(name, []).append(value)
    longest = prose.most_common(1)
    if not longest or not longest[0][1]:
        names = list(dict.fromkeys(name for row in rows for name in row))
        lists = f"; lists of objects are not read: {', '.join(sorted(within_lists))}"
        raise UsageError(
            f"{path}: no prose in its records ({', '.join(names) or 'none was found'})"
            f"{lists if within_lists else ''}; expected a key or column of texts"
        )
    field = longest[0][0]
    # Summaries, comments or a second language may be longer than the field that is called the text.
    if prose[PREFERRED] >= ENOUGH * longest[0][1]:
        field = PREFERRED
    others = ", ".join(name for name in texts if name != field)
    sample = " ".join(max(texts[field][:10], key=prose_length).split())[:SHOWN_CHARACTERS]
    among = f"most prose among {field}, {others}" if others else "the only field of strings"
    return field, f'{among}; for example "{sample}…"', tuple(texts[field])


def prose_length(value: str) -> int:
    """Characters of prose: 0 for an address, a hash, a date or a number, 1 for a single word."""
    text = _ADDRESS.sub("", _TAG.sub("", value)).strip()
    # One word is no prose, but in scripts without spaces a text is one word.
    if len(text.split()) < 2 and text.isascii():
        return int(text.isalpha())
    # At least half of it must be letters.
    if not text or 2 * len(_LETTER.findall(text)) < len(text.replace(" ", "")):
        return 0
    return len(text)


def _leaves(row: Row, within_lists: set[str], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The strings of a record by key, `a.b` for nested ones; lists of strings are joined."""
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, str):
            yield name, value
        elif isinstance(value, Mapping):
            yield from _leaves(value, within_lists, f"{name}.")
        elif isinstance(value, list) and value and all(isinstance(one, str) for one in value):
            yield name, "\n".join(value)
        # No reader takes texts out of lists of objects, so the error names them.
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            within_lists.update(f"{name}[].{key}" for key in value[0])


def csv_rows(text: str, path: str) -> Iterator[Row]:
    """The rows of a table that begins with `text`, without the last, which may be cut."""
    dialect = dialect_of(text, path)
    if dialect is None:
        return
    unix = text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")
    whole = unix[: unix.rfind("\n") + 1] or unix
    lines = (f"{line}\n" for line in whole.split("\n"))
    for _, row in rows_below_header(lines, dialect):
        if not isinstance(row, BrokenRecord):
            yield dict(zip(dialect.columns, row, strict=True))


def table_rows(file: InputFile, count: int) -> tuple[int, list[Row]]:
    """The number of rows of a Parquet or Arrow file, and the strings of its first `count` rows."""
    with open_to_read(file.path) as opened:
        try:
            if opened.read(4) == b"PAR1":
                parquet = pyarrow.parquet.ParquetFile(opened)
                names = _with_strings(parquet.schema_arrow)
                batch = next(parquet.iter_batches(count, columns=names), None)
                return parquet.metadata.num_rows, batch.to_pylist() if batch and names else []
            opened.seek(0)
            try:
                reader = pa.ipc.open_file(opened)
                batches = map(reader.get_batch, range(reader.num_record_batches))
            except pa.ArrowInvalid:  # Arrow's other format
                opened.seek(0)
                reader = batches = pa.ipc.open_stream(opened)
            names, total = _with_strings(reader.schema), 0
            rows: list[Row] = []
            for batch in batches:
                # All rows are counted, only the first converted.
                total += len(batch)
                if len(rows) < count:
                    rows += batch.select(names).slice(0, count - len(rows)).to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise IntegrityError(
                f"{file.path}: damaged or incomplete table: {error}; copy it again"
            ) from None
    return total, rows


def _with_strings(schema: pa.Schema) -> list[str]:
    return [field.name for field in schema if _has_strings(field.type)]


def _has_strings(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return _has_strings(kind.value_type)
    if pa.types.is_struct(kind):
        return any(_has_strings(kind.field(index).type) for index in range(kind.num_fields))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _has_strings(kind.value_type)
    return bool(
        pa.types.is_string(kind) or pa.types.is_large_string(kind) or kind == pa.string_view()
    )
