"""Labelled files of every format, read row by row, as often as needed, or as a table.

In:  a path (CSV, TSV, JSON lines, JSON, Parquet, Arrow, SQuAD's JSON, CoNLL) or a Hugging Face data
     set, and the columns that the task needs from it.
Out: `FileRows`, or all of its rows as a `TaskTable`; remarks on what had to be guessed: encoding,
     separator, lines left out.

`.csv` is quoted as in RFC 4180, with commas, or with semicolons or tabs if only these give every
line as many columns as the first. `.tsv` is not quoted at all, as in GLUE, where a quotation mark
is part of the text. Numbers of classes whose names the file contains become these names.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow as pa
from pydantic import JsonValue

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.filesystem import require_plausible_size
from cloze.model.config import DATASETS_PREFIX
from cloze.model.tasks.files.conll import conll_rows
from cloze.model.tasks.files.json_rows import JsonText
from cloze.model.tasks.files.task_table import (
    ColumnNames,
    Numbered,
    Row,
    TaskTable,
    Wanted,
    tabulated,
)
from cloze.model.tasks.files.text_file import LONGEST_LINE, TextFile, opened, suffix_of, text_file

SEPARATORS = (",", ";", "\t")
"""Separators of a `.csv`, the most likely first."""

SAMPLED_CHARACTERS, SAMPLED_RECORDS = 1 << 16, 50
"""Beginning of a file in which every separator is tried."""

CONSISTENT = 0.9
"""Share of records that have as many columns as the first one if the separator is right."""

SPLIT_CELL = (
    "rows are shorter than the header, and open a quotation mark without closing it; a .tsv is "
    "read without quoting: if a quoted cell goes on in the next line, name the file .csv"
)
"""What is said of a `.tsv` whose cells seem to contain line breaks."""

BINARY_ROWS_AT_A_TIME = 64
"""Rows of a Parquet file that are unpacked before their size is added up."""

BUFFER_BYTES = 1 << 20
"""Bytes of a column of a Parquet file that are read at a time, rather than all of a group."""

SAVED_SPLIT, SAVED_SPLITS = "dataset_info.json", "dataset_dict.json"
"""Files in a folder written by `save_to_disk` of the package datasets."""


@dataclass
class FileRows:
    """The rows of a labelled file."""

    path: str
    wanted: Wanted
    read: Callable[[], Numbered]
    """Start reading: each row with its line, or with its number if the file has no lines."""

    remarks: tuple[str, ...] = ()
    has_lines: bool = False
    separator: str = ""
    """What separates the columns, if anything does."""

    columns: ColumnNames | None = None
    """All columns, if the file begins with their names."""

    features: object = None
    """The columns' types, as the package datasets describes them."""

    repeated: str | None = None
    """A name that several columns have, if there is one; only the last of them is known by it."""

    marked: bool = False
    """Whether the file begins with a byte order mark, as spreadsheets write it."""

    left_out: Counter[str] = field(default_factory=Counter)
    """Rows that are left out, or doubtful, by reason, once all of them were read."""

    def __iter__(self) -> Numbered:
        self.left_out.clear()
        return self.read()

    def table(self) -> TaskTable:
        """All rows."""
        numbers, rows = [], list[Row]()
        for number, row in self:
            numbers.append(number)
            rows.append(row)
        table = self.window(rows, numbers if self.has_lines else ())
        return table.remarked(*self.said())

    def window(
        self, rows: Sequence[Row], numbers: Sequence[int], columns: ColumnNames | None = None
    ) -> TaskTable:
        """Some rows; `columns` are those of all of them."""
        table = tabulated(
            self.path, rows, self.wanted, lines=numbers, known=columns or self.columns
        )
        return replace(self.named(table), separator=self.separator)

    def named(self, table: TaskTable) -> TaskTable:
        """The table with the names of classes instead of their numbers; -1 means no label."""
        known = _class_names(self.features)
        by_ours = ((our, known.get(self.wanted.in_file(our))) for our in table.columns)
        return _named(table, {our: names for our, names in by_ours if names})

    def said(self) -> tuple[str, ...]:
        """Remarks, including those on rows left out, once all were read."""
        counts = (f"{self.path}: {count} {why}" for why, count in self.left_out.items())
        return (*self.remarks, *counts)


def read_table(path: str, wanted: Wanted) -> TaskTable:
    """The wanted columns of `path`; the error for a missing one lists the columns present."""
    return file_rows(path, wanted).table()


def file_rows(path: str, wanted: Wanted) -> FileRows:
    """The rows of `path`."""
    if path.startswith(DATASETS_PREFIX):
        return _dataset_rows(path, wanted)
    suffix, last = suffix_of(path), Path(path).suffix.lower()
    if wanted.sentences and suffix == ".tsv":
        suffix = ".conll"  # cells of a .tsv hold no lists, so it can only have CoNLL's columns
    if suffix not in TEXT_READERS and last not in BINARY_READERS:
        raise UsageError(
            f"{path}: unknown kind of task file {last!r}, expected one of "
            f"{' '.join((*TEXT_READERS, *BINARY_READERS))}"
        )
    if TEXT_READERS.get(suffix) is _conll_rows and not wanted.sentences:
        raise UsageError(
            f"{path}: the ending {suffix} means CoNLL's columns, which are for tagging; texts "
            "need another ending: .tsv (no quoting), .csv (quoted) or .jsonl"
        )
    if suffix in BINARY_READERS:
        opened(path).close()
        return BINARY_READERS[suffix](path, wanted)
    return TEXT_READERS[suffix](text_file(path), wanted)


def _delimited_rows(text: TextFile, wanted: Wanted) -> FileRows:
    """CSV or TSV, whose first line names the columns unless `wanted` numbers them."""
    path = text.path
    sample = text.beginning(SAMPLED_CHARACTERS)
    separator, begins = separator_of(path, sample, is_whole=len(sample) < SAMPLED_CHARACTERS)
    records = _records(text, separator, begins)
    header, fewest = _header(path, records, wanted)
    left_out: Counter[str] = Counter()
    may_split = suffix_of(path) == ".tsv" and not wanted.skip_short_rows

    def read() -> Numbered:
        most = len(header)
        filled = ((n, record) for n, record in _records(text, separator, begins))
        filled = (one for one in filled if one[1])
        for line, record in filled if wanted.headless else islice(filled, 1, None):
            most = most or len(record)  # without a header, the first row sets the number of columns
            if len(record) > most or (len(record) < fewest and not wanted.skip_short_rows):
                # Too many columns: a separator within a text has shifted them.
                bound = (
                    f"{most} as in the first line" if len(record) > most else f"at least {fewest}"
                )
                raise UsageError(
                    f"{path}:{line}: {len(record)} columns, expected {bound}; a .tsv is read "
                    "without quoting, a .csv with it: rename the file if need be"
                )
            if may_split and len(record) < most and _opens_quote(record):
                left_out[SPLIT_CELL] += 1
            if len(record) < fewest:
                left_out["rows with too few columns are left out"] += 1
            elif wanted.headless:
                yield line, {str(number): cell for number, cell in enumerate(record)}
            else:
                yield line, dict(zip(header, record, strict=False))

    remarks = text.remarks
    if suffix_of(path) == ".csv" and separator != ",":
        remarks = (*remarks, f"{path}: columns are separated by {separator!r}")
    return FileRows(
        path,
        wanted,
        read,
        remarks,
        has_lines=True,
        separator=separator,
        columns=ColumnNames(header) if header else None,
        repeated=next((name for name in header if header.count(name) > 1), None),
        marked=text.marked,
        left_out=left_out,
    )


def _header(
    path: str, records: Iterator[tuple[int, list[str]]], wanted: Wanted
) -> tuple[list[str], int]:
    """The names of all columns, none if they are numbered; the fewest cells of a row."""
    if wanted.headless:
        missing = [name for name in wanted.required if name not in wanted.names]
        if missing:
            raise UsageError(
                f"{path}: columns are numbered, but none is given for {', '.join(missing)}"
            )
        return [], max(int(number) for number in wanted.names.values() if number) + 1
    first = next((record for _, record in records if record), [])
    if not first:
        raise UsageError(f"{path}: empty file, expected a header line and rows")
    header = [name.strip() for name in first]
    present = wanted.present(path, header)
    # The last column that is needed.
    return header, max(header.index(theirs) for theirs in present.values()) + 1


def separator_of(path: str, sample: str, *, is_whole: bool) -> tuple[str, int]:
    """The separator of a table's columns, and the lines before it: 1 for Excel's `sep=;`.

    `sample`: the beginning of the file, or (`is_whole`) all of it.
    """
    if suffix_of(path) == ".tsv":
        return "\t", 0
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))  # default: 131,072 characters
    # Excel's own way to say which separator a file has.
    first = sample.partition("\n")[0]
    if first.strip().lower().startswith("sep=") and len(first.strip()) == len("sep=;"):
        return first.strip()[-1], 1
    # Not by the most frequent character, which would be the comma of any prose: a separator is
    # known by records of equal width.
    for separator in SEPARATORS:
        reader = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
        widths = [len(record) for record in islice(reader, SAMPLED_RECORDS) if record]
        # A record at the end of the sample may be incomplete.
        if not is_whole and len(widths) < SAMPLED_RECORDS:
            del widths[-1:]  # cut off
        # A separator is right if it cuts nearly all records alike, and into more than one column.
        same = sum(width == widths[0] for width in widths)
        if widths and widths[0] > 1 and same >= CONSISTENT * len(widths):
            return separator, 0
    return SEPARATORS[0], 0


def _opens_quote(cells: Sequence[str]) -> bool:
    """Whether the last cell begins with a quotation mark that it does not close."""
    return cells[-1].startswith('"') and cells[-1].count('"') % 2 == 1


def _records(text: TextFile, separator: str, begins: int) -> Iterator[tuple[int, list[str]]]:
    """First line and fields of every record behind the first `begins` lines; none if blank."""
    if suffix_of(text.path) == ".tsv":
        for number, line in enumerate(text.lines(), start=1):
            cells = line.rstrip("\r\n")
            yield number, cells.split("\t") if cells else []
        return
    # A quoted cell may contain line breaks, so a record's number is not its line; the reader counts
    # the lines it has taken.
    number = begun = 0
    lines = chain(["\n"] * begins, islice(text.lines(newline=""), begins, None))
    reader = csv.reader(lines, delimiter=separator, strict=True)
    try:
        # First line of a record: quoted cells may contain line breaks.
        for record in reader:
            number += 1
            yield begun + 1, record
            begun = reader.line_num
    except csv.Error as error:
        raise UsageError(
            f"{text.path}: record {number + 1}: {error}; a .csv is quoted as in RFC 4180, "
            "name the file .tsv if its quotation marks are text"
        ) from None


def _json_line_rows(text: TextFile, wanted: Wanted) -> FileRows:
    """One JSON object per line."""

    def read() -> Numbered:
        for number, line in enumerate(text.lines(), start=1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UsageError(
                    f"{text.path}:{number}: not JSON: {error}; expected one object per line"
                ) from None
            if not isinstance(row, dict):
                raise UsageError(
                    f"{text.path}:{number}: {type(row).__name__}, expected one JSON object per line"
                )
            yield number, row

    return FileRows(text.path, wanted, read, text.remarks, has_lines=True)


def _json_rows(text: TextFile, wanted: Wanted) -> FileRows:
    """SQuAD's JSON, versions 1.1 and 2.0; or rows: a list of objects, or such a list in `data`."""

    def read() -> Numbered:
        try:
            yield from enumerate(_json_objects(text, wanted), start=1)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{text.path}: not JSON: {error}") from None

    if _holds_lines(text):
        return _json_line_rows(text, wanted)
    return FileRows(text.path, wanted, read, text.remarks)


def _holds_lines(text: TextFile) -> bool:
    """Whether a `.json` has an object on each line instead of one list of objects."""
    sample = text.beginning(SAMPLED_CHARACTERS)
    first, feed, rest = sample.lstrip().partition("\n")
    if not first.startswith("{"):
        return False
    try:
        # JSON lines called .json: the first line is an object by itself, and something follows it.
        if feed or len(sample) < SAMPLED_CHARACTERS:
            return bool(rest.strip()) and isinstance(json.loads(first), dict)
        for _ in JsonText(text.chunks()).elements("data"):
            pass  # the first line is a long one
    except (ValueError, RecursionError):
        return not feed
    return False


def _json_objects(text: TextFile, wanted: Wanted) -> Iterator[Row]:
    is_squad = False
    for number, row in enumerate(JsonText(text.chunks()).elements("data")):
        if not isinstance(row, dict):
            raise UsageError(
                f"{text.path}: expected a list of objects, or SQuAD's data → paragraphs → qas"
            )
        is_squad = is_squad or ("question" in wanted.required and "paragraphs" in row)
        if is_squad:
            yield from _questions(text.path, number, row)
        else:
            yield row


def _questions(path: str, number: int, article: Any) -> Iterator[Row]:
    """One row per question of an article of SQuAD."""
    place = f"data[{number}]"
    try:
        for paragraph in article["paragraphs"]:
            for question in paragraph["qas"]:
                place = f"data[{number}], question {question.get('id')!r}"
                yield {
                    "id": question["id"],
                    "title": article.get("title", ""),
                    "question": question["question"],
                    "context": paragraph["context"],
                    "answers": question.get("answers"),
                    "is_impossible": question.get("is_impossible"),
                }
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: not SQuAD JSON at {place} ({type(error).__name__}: {error}); expected data → "
            "paragraphs → qas"
        ) from None


def _conll_rows(text: TextFile, wanted: Wanted) -> FileRows:
    """The sentences of CoNLL's columns."""
    read, remarks = conll_rows(text, wanted)
    return FileRows(text.path, wanted, read, (*remarks, *text.remarks), has_lines=True)


def _parquet_rows(path: str, wanted: Wanted) -> FileRows:
    # Imported here, since whoever loads a model imports this module, and rarely for such a file.
    import pyarrow.parquet as pq

    def read() -> Numbered:
        with _refusing_damage(path, "Parquet"), _arrow_file(path) as source:
            # a page of each column is in memory, not a whole group
            file = pq.ParquetFile(source, buffer_size=BUFFER_BYTES, pre_buffer=False)
            for group in range(file.num_row_groups):  # a page is unpacked whole
                size = file.metadata.row_group(group).total_byte_size
                require_plausible_size(path, size, source.size())
            batches = file.iter_batches(BINARY_ROWS_AT_A_TIME)
            yield from _numbered(_plausible(path, batches, source.size()))

    with _refusing_damage(path, "Parquet"), _arrow_file(path) as source:
        schema = pq.ParquetFile(source).schema_arrow
    return FileRows(path, wanted, read, features=_features(path, schema))


def _arrow_rows(path: str, wanted: Wanted) -> FileRows:
    def read() -> Numbered:
        with _refusing_damage(path, "Arrow"), _arrow_file(path) as source:
            batches, _ = _batches(source)
            yield from _numbered(_plausible(path, batches, source.size()))

    with _refusing_damage(path, "Arrow"), _arrow_file(path) as source:
        schema = _batches(source)[1]
    return FileRows(path, wanted, read, features=_features(path, schema))


def _arrow_file(path: str) -> pa.NativeFile:
    if filesystem.is_local(path):
        return pa.OSFile(filesystem.local_path(path))
    return pa.BufferReader(filesystem.read_bytes(path))


def _batches(source: pa.NativeFile) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """The record batches of Arrow's file format, or of its stream format."""
    source.seek(0)
    try:
        # A file ends with an index of its batches, a stream has none; both begin alike for a
        # reader.
        file = pa.ipc.open_file(source)
    except pa.ArrowInvalid:
        source.seek(0)
        stream = pa.ipc.open_stream(source)
        return iter(stream), stream.schema
    return map(file.get_batch, range(file.num_record_batches)), file.schema


def _numbered(batches: Iterable[pa.RecordBatch]) -> Numbered:
    return enumerate((row for batch in batches for row in batch.to_pylist()), start=1)


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
    import pyarrow.compute as pc  # for the same reason

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


def _features(path: str, schema: pa.Schema) -> object:
    """What the package datasets says of the columns in a schema."""
    stored = (schema.metadata or {}).get(b"huggingface")
    if not stored:
        return None
    with _refusing_damage(path, "Arrow"):
        return json.loads(stored).get("info", {}).get("features", {})


def _dataset_rows(path: str, wanted: Wanted) -> FileRows:
    """`datasets:NAME:CONFIG:SPLIT`, from the hub, a folder of files or one of `save_to_disk`."""
    try:
        from datasets import load_dataset, load_from_disk
    except ImportError:
        raise UsageError(f"{path}: needs the package datasets; pip install datasets") from None
    # Missing parts are empty.
    name, config, split = [*path.removeprefix(DATASETS_PREFIX).split(":"), "", ""][:3]
    # A folder comes before the hub, so that data saved here need no network.
    if (Path(name) / SAVED_SPLIT).is_file():
        found = load_from_disk(name)
    elif (Path(name) / SAVED_SPLITS).is_file():
        splits = load_from_disk(name)
        if (split or "train") not in splits:
            raise UsageError(f"{path}: no split {split or 'train'}, only {', '.join(splits)}")
        found = splits[split or "train"]
    else:
        found = load_dataset(name, config or None, split=split or "train")

    def read() -> Numbered:
        return enumerate(found, start=1)

    return FileRows(path, wanted, read, features=found.features.to_dict())


def _class_names(features: object) -> dict[str, tuple[str, ...]]:
    """The names of the classes of each column that holds their numbers."""
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
    return class_names


def _named(table: TaskTable, class_names: Mapping[str, tuple[str, ...]]) -> TaskTable:
    """The table with names for numbers; `class_names` by our names of the columns."""

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

    cells = {
        our: [name(cell, names, row) for row, cell in enumerate(table.columns[our])]
        for our, names in class_names.items()
    }
    return replace(table, columns={**table.columns, **cells}, class_names=class_names)


TEXT_READERS: Mapping[str, Callable[[TextFile, Wanted], FileRows]] = {
    ".csv": _delimited_rows,
    ".tsv": _delimited_rows,
    **dict.fromkeys((".jsonl", ".ndjson"), _json_line_rows),
    ".json": _json_rows,
    **dict.fromkeys((".conll", ".conllu", ".iob", ".iob2", ".bio", ".txt"), _conll_rows),
}

BINARY_READERS: Mapping[str, Callable[[str, Wanted], FileRows]] = {
    ".parquet": _parquet_rows,
    ".arrow": _arrow_rows,
}
