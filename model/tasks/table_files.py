r"""Labelled files of every format, read as tables.

In:  a path (CSV, TSV, JSON lines, JSON, Parquet, Arrow, SQuAD's JSON, CoNLL) or a Hugging Face data
     set, and the columns that the task needs from it.
Out: `TaskTable`, with remarks on what had to be guessed: encoding, separator, lines left out.

`.csv` is quoted as in RFC 4180, with commas, or with semicolons or tabs if only these give every
line as many columns as the first. `.tsv` is not quoted at all, as in GLUE, where a quotation mark
is part of the text. Text is UTF-8 with or without a byte order mark, UTF-16, or Windows-1252; lines
end in \n, \r\n or \r. Numbers of classes whose names the file contains become these names.
"""

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import JsonValue

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import require_plausible_size
from cloze.model.config import DATASETS_PREFIX
from cloze.model.tasks.conll import read_conll
from cloze.model.tasks.task_table import Row, TaskTable, Wanted, tabulated

SEPARATORS = (",", ";", "\t")
"""Separators of a `.csv`, the most likely first."""

SAMPLED_CHARACTERS, SAMPLED_RECORDS = 1 << 16, 50
"""Beginning of a file in which every separator is tried."""

CONSISTENT = 0.9
"""Share of records that have as many columns as the first one if the separator is right."""

MOST_ACCENTED = 0.3
"""Share of letters outside ASCII in Western European languages is well below this."""

BLANK: tuple[list[str], ...] = ([], [""])
"""Records of a line without content."""

BINARY_ROWS_AT_A_TIME = 64
"""Rows of a Parquet file that are unpacked before their size is added up."""

SAVED_SPLIT, SAVED_SPLITS = "dataset_info.json", "dataset_dict.json"
"""Files in a folder written by `save_to_disk` of the package datasets."""


def read_table(path: str, wanted: Wanted) -> TaskTable:
    """The wanted columns of `path`; the error for a missing one lists the columns present."""
    if path.startswith(DATASETS_PREFIX):
        return _read_dataset(path, wanted)
    suffix = Path(path).suffix.lower()
    if wanted.sentences and suffix == ".tsv":
        suffix = ".conll"  # cells of a .tsv hold no lists, so it can only have CoNLL's columns
    if suffix not in (*TEXT_READERS, *BINARY_READERS):
        raise UsageError(
            f"{path}: unknown kind of task file {suffix!r}, expected one of "
            f"{' '.join((*TEXT_READERS, *BINARY_READERS))}"
        )
    if TEXT_READERS.get(suffix) is read_conll and not wanted.sentences:
        raise UsageError(
            f"{path}: the ending {suffix} means CoNLL's columns, which are for tagging; rename the "
            "file: .tsv (no quoting), .csv (quoted) or .jsonl"
        )
    try:
        content = filesystem.read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such task file") from None
    if suffix in BINARY_READERS:
        return BINARY_READERS[suffix](path, content, wanted)
    text, remarks = decoded(path, content)
    return TEXT_READERS[suffix](path, text, wanted).remarked(*remarks)


def decoded(path: str, content: bytes, *, is_whole: bool = True) -> tuple[str, tuple[str, ...]]:
    r"""The text of a file, its lines ended by \n or \r\n, and remarks on its encoding.

    `is_whole`: otherwise `content` is only the beginning, and may end within a character.
    """
    encoding, remarks = "utf-8-sig", tuple[str, ...]()
    start = content[:1024]
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        encoding = "utf-16"
    elif 4 * start.count(0) > len(start):  # ASCII letters have one in their first or second byte
        encoding = "utf-16-be" if start[::2].count(0) > start[1::2].count(0) else "utf-16-le"
    try:
        text = codecs.getincrementaldecoder(encoding)().decode(content, final=is_whole)
    except UnicodeDecodeError as error:
        if encoding != "utf-8-sig":
            raise UsageError(
                f"{path}: not {encoding.upper()} at byte {error.start}, although it begins like "
                "it; copy the file again, or save it as UTF-8"
            ) from None
        text = _western(path, content, error.start)
        accented = [character for character in text if not character.isascii()]
        examples = " ".join(dict.fromkeys(accented))[:9]
        remarks = (
            f"{path}: not UTF-8; read as Windows-1252, with {len(accented):,} characters such as "
            f"{examples}",
        )
    else:
        if encoding != "utf-8-sig":
            remarks = (f"{path}: read as {encoding.upper()}, {len(text):,} characters",)
    if "\n" not in text and "\r" in text:
        lines = text.count("\r")
        text = text.replace("\r", "\n")
        remarks += (f"{path}: its {lines:,} lines end in carriage returns",)
    return text, remarks


def _western(path: str, content: bytes, place: int) -> str:
    """Windows-1252, unless the text would be in no Western European language."""
    line = content[:place].count(b"\n") + 1
    # Valid characters beyond ASCII in other lines: the file is UTF-8 with a broken line, not
    # another encoding.
    tolerant = content.decode("utf-8", "surrogateescape")
    if any(not letter.isascii() and not "\udc80" <= letter <= "\udcff" for letter in tolerant):
        raise UsageError(
            f"{path}:{line}: not UTF-8 at byte {place}, although other lines are; correct the line"
        )
    try:
        text = content.decode("cp1252")
    except UnicodeDecodeError:
        text = ""
    letters = [letter for letter in text if letter.isalpha()]
    foreign = sum(not letter.isascii() for letter in letters)
    if not letters or foreign > MOST_ACCENTED * len(letters):
        raise UsageError(
            f"{path}:{line}: not UTF-8 at byte {place}, and not Windows-1252 either; convert the "
            "file from its encoding, for example with iconv -f GB18030 -t UTF-8"
        )
    return text


def read_delimited(path: str, text: str, wanted: Wanted) -> TaskTable:
    """CSV or TSV, whose first line names the columns unless `wanted` numbers them."""
    separator, text = separated(path, text)
    records = _records(path, text, separator)
    header, places = _header(path, records, wanted)
    # The last column that is needed, and the most that a row may have.
    fewest, most = max(places.values()) + 1, len(header)
    columns: dict[str, list[JsonValue]] = {name: [] for name in places}
    everything: dict[str, list[JsonValue]] = {name: [] for name in header if wanted.everything}
    lines, skipped = [], 0
    for line, record in records:
        if record in BLANK:
            continue
        most = most or len(record)  # without a header, the first row sets the number of columns
        if len(record) > most or (len(record) < fewest and not wanted.skip_short_rows):
            # Too many columns: a separator within a text has shifted them.
            bound = f"{most} as in the first line" if len(record) > most else f"at least {fewest}"
            raise UsageError(
                f"{path}:{line}: {len(record)} columns, expected {bound}; a .tsv is read without "
                "quoting, a .csv with it: rename the file if need be"
            )
        if len(record) < fewest:
            skipped += 1
            continue
        lines.append(line)
        for name, place in places.items():
            columns[name].append(record[place])
        for name, cell in zip_longest(everything, record if everything else ()):
            everything[name].append(cell)
    if not lines:
        raise UsageError(f"{path}: no rows, expected labelled examples")
    table = TaskTable(path, columns, tuple(lines), separator=separator, everything=everything)
    if skipped:
        table = table.remarked(f"{path}: {skipped} rows with too few columns are left out")
    if path.lower().endswith(".csv") and separator != ",":
        table = table.remarked(f"{path}: columns are separated by {separator!r}")
    return table


def _header(
    path: str, records: Iterator[tuple[int, list[str]]], wanted: Wanted
) -> tuple[list[str], dict[str, int]]:
    """The names of all columns, none if they are numbered; places of ours by our names."""
    if wanted.headless:
        missing = [name for name in wanted.required if name not in wanted.names]
        if missing:
            raise UsageError(
                f"{path}: columns are numbered, but none is given for {', '.join(missing)}"
            )
        return [], {name: int(number) for name, number in wanted.names.items() if number}
    first = next((record for _, record in records if record not in BLANK), [])
    if not first:
        raise UsageError(f"{path}: empty file, expected a header line and rows")
    header = [name.strip() for name in first]
    present = wanted.present(path, header)
    twice = next((name for name in header if header.count(name) > 1), None)
    if wanted.everything and twice is not None:
        raise UsageError(
            f"{path}: {header.count(twice)} columns named {twice!r}; all columns are returned by "
            "name: rename the others"
        )
    return header, {name: header.index(theirs) for name, theirs in present.items()}


def separated(path: str, text: str) -> tuple[str, str]:
    """The separator of a table's columns, and its text without Excel's line `sep=;`."""
    if path.lower().endswith(".tsv"):
        return "\t", text
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # default: 131,072 characters
    first, _, rest = text.partition("\n")
    if first.strip().lower().startswith("sep=") and len(first.strip()) == len("sep=;"):
        return first.strip()[-1], f"\n{rest}"
    sample = text[:SAMPLED_CHARACTERS]
    for separator in SEPARATORS:
        reader = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
        widths = [len(record) for record in islice(reader, SAMPLED_RECORDS) if record]
        # A record at the end of the sample may be incomplete.
        if len(sample) < len(text) and len(widths) < SAMPLED_RECORDS:
            del widths[-1:]  # cut off
        # A separator is right if it cuts nearly all records alike, and into more than one column.
        same = sum(width == widths[0] for width in widths)
        if widths and widths[0] > 1 and same >= CONSISTENT * len(widths):
            return separator, text
    return SEPARATORS[0], text


def _records(path: str, text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """First line and fields of every record."""
    if path.lower().endswith(".tsv"):
        for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
            yield number, line.rstrip("\r\n").split("\t")
        return
    number = begins = 0
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True)
    try:
        # First line of a record: quoted cells may contain line breaks.
        for record in reader:
            number += 1
            yield begins + 1, record
            begins = reader.line_num
    except csv.Error as error:
        raise UsageError(
            f"{path}: record {number + 1}: {error}; a .csv is quoted as in RFC 4180, "
            "name the file .tsv if its quotation marks are text"
        ) from None


def read_json_lines(path: str, text: str, wanted: Wanted) -> TaskTable:
    """One JSON object per line."""
    rows: list[Row] = []
    lines = []
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(
                f"{path}:{number}: not JSON: {error}; expected one object per line"
            ) from None
        if not isinstance(row, dict):
            raise UsageError(
                f"{path}:{number}: {type(row).__name__}, expected one JSON object per line"
            )
        rows.append(row)
        lines.append(number)
    return tabulated(path, rows, wanted, lines=tuple(lines))


def read_json(path: str, text: str, wanted: Wanted) -> TaskTable:
    """SQuAD's JSON, versions 1.1 and 2.0; or rows: a list of objects, or such a list in `data`."""
    try:
        table = json.loads(text)
    except (ValueError, RecursionError) as error:
        # Not one value: perhaps an object per line, under the name .json.
        if text.lstrip().partition("\n")[0].rstrip().endswith("}"):
            return read_json_lines(path, text, wanted)
        raise UsageError(f"{path}: not JSON: {error}") from None
    data = table.get("data", [table]) if isinstance(table, dict) else table
    if not isinstance(data, list) or not all(isinstance(row, dict) for row in data):
        raise UsageError(f"{path}: expected a list of objects, or SQuAD's data → paragraphs → qas")
    if "question" not in wanted.required or not any("paragraphs" in row for row in data):
        return tabulated(path, data, wanted)
    return _squad(path, data, wanted)


def _squad(path: str, articles: Any, wanted: Wanted) -> TaskTable:
    """One row per question."""
    rows: list[Row] = []
    place = ""
    try:
        for number, article in enumerate(articles):
            place = f"data[{number}]"
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    place = f"data[{number}], question {question.get('id')!r}"
                    rows.append(
                        {
                            "id": question["id"],
                            "title": article.get("title", ""),
                            "question": question["question"],
                            "context": paragraph["context"],
                            "answers": question.get("answers"),
                            "is_impossible": question.get("is_impossible"),
                        }
                    )
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: not SQuAD JSON at {place} ({type(error).__name__}: {error}); expected data → "
            "paragraphs → qas"
        ) from None
    return tabulated(path, rows, wanted)


def _read_parquet(path: str, content: bytes, wanted: Wanted) -> TaskTable:
    with _refusing_damage(path, "Parquet"):
        file = pq.ParquetFile(pa.BufferReader(content))
        for group in range(file.num_row_groups):  # a page is unpacked whole
            require_plausible_size(
                path, file.metadata.row_group(group).total_byte_size, len(content)
            )
        batches = _plausible(path, file.iter_batches(BINARY_ROWS_AT_A_TIME), len(content))
        return _of_arrow(path, pa.Table.from_batches(batches, file.schema_arrow), wanted)


def _read_arrow(path: str, content: bytes, wanted: Wanted) -> TaskTable:
    with _refusing_damage(path, "Arrow"):
        batches: Iterator[pa.RecordBatch]
        try:
            opened = pa.ipc.open_file(pa.BufferReader(content))
            batches = map(opened.get_batch, range(opened.num_record_batches))
        except pa.ArrowInvalid:  # Arrow's other format
            opened = pa.ipc.open_stream(pa.BufferReader(content))
            batches = iter(opened)
        whole = pa.Table.from_batches(_plausible(path, batches, len(content)), opened.schema)
        return _of_arrow(path, whole, wanted)


@contextmanager
def _refusing_damage(path: str, kind: str) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError, MemoryError, ValueError, SystemError) as error:
        reason = str(error) or "it needs more memory than there is"
        raise UsageError(f"{path}: not a readable {kind} file: {reason}") from None


def _plausible(
    path: str, batches: Iterable[pa.RecordBatch], packed: int
) -> Iterator[pa.RecordBatch]:
    """The batches; raises for out-of-range offsets, and for a decompression bomb of `packed` bytes.

    Rows that refer to one entry of a dictionary count in full, as they will be in memory.
    """
    unpacked = 0
    for batch in batches:
        batch.validate(full=True)
        for column in batch.columns:
            # Rows may share one entry of a dictionary, but not once they are Python strings.
            size = column.nbytes
            is_dictionary = pa.types.is_dictionary(column.type)
            if is_dictionary and _is_text(column.type.value_type):
                lengths = pc.binary_length(column.dictionary).take(column.indices)
                size = pc.sum(lengths).as_py() or 0
            unpacked += size
        require_plausible_size(path, unpacked, packed)
        yield batch


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _of_arrow(path: str, table: pa.Table, wanted: Wanted) -> TaskTable:
    """The rows; the package datasets keeps the features of its columns in the schema."""
    features: object = {}
    stored = (table.schema.metadata or {}).get(b"huggingface")
    if stored:
        features = json.loads(stored).get("info", {}).get("features", {})
    return _named(path, table.to_pylist(), features, wanted)


def _read_dataset(path: str, wanted: Wanted) -> TaskTable:
    """`datasets:NAME:CONFIG:SPLIT`, from the hub, a folder of files or one of `save_to_disk`."""
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError:
        raise UsageError(f"{path}: needs the package datasets; pip install datasets") from None
    name, config, split = [*path.removeprefix(DATASETS_PREFIX).split(":"), "", ""][:3]
    if (Path(name) / SAVED_SPLIT).is_file():
        found = load_from_disk(name)
    elif (Path(name) / SAVED_SPLITS).is_file():
        splits = load_from_disk(name)
        if (split or "train") not in splits:
            raise UsageError(f"{path}: no split {split or 'train'}, only {', '.join(splits)}")
        found = splits[split or "train"]
    else:
        found = load_dataset(name, config or None, split=split or "train")
    return _named(path, found.to_list(), found.features.to_dict(), wanted)


def _named(path: str, rows: list[Row], features: object, wanted: Wanted) -> TaskTable:
    """The table with the names of classes instead of their numbers; -1 means no label."""
    class_names: dict[str, tuple[str, ...]] = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        # Features of lists wrap those of their elements, in one of two spellings.
        inner = feature
        while isinstance(inner, dict) and isinstance(inner.get("feature"), dict):
            inner = inner["feature"]  # lists of classes
        if isinstance(inner, list) and len(inner) == 1:
            (inner,) = inner
        if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" and inner.get("names"):
            class_names[column] = tuple(map(str, inner["names"]))
    table = tabulated(path, rows, wanted, class_names=class_names)

    def name(cell: JsonValue, names: tuple[str, ...], row: int) -> JsonValue:
        if isinstance(cell, list):
            return [name(one, names, row) for one in cell]
        if type(cell) is not int:
            return cell
        # -1 is what `datasets` writes for no label.
        if not -1 <= cell < len(names):
            raise UsageError(
                f"{table.place(row)}: class {cell}, expected 0 to {len(names) - 1} or -1 for none"
            )
        return names[cell] if cell >= 0 else None

    for column, names in table.class_names.items():
        table.columns[column] = [
            name(cell, names, row) for row, cell in enumerate(table.columns[column])
        ]
    return table


TEXT_READERS: Mapping[str, Callable[[str, str, Wanted], TaskTable]] = {
    ".csv": read_delimited,
    ".tsv": read_delimited,
    **dict.fromkeys((".jsonl", ".ndjson"), read_json_lines),
    ".json": read_json,
    **dict.fromkeys((".conll", ".conllu", ".iob", ".iob2", ".bio", ".txt"), read_conll),
}

BINARY_READERS: Mapping[str, Callable[[str, bytes, Wanted], TaskTable]] = {
    ".parquet": _read_parquet,
    ".arrow": _read_arrow,
}
