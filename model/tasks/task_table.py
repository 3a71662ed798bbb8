"""A task's file as a table: columns under our names, and the line of each row.

In:  a path (CSV, TSV, JSON lines, Parquet, SQuAD's JSON, CoNLL) or a Hugging Face data set, and the
     columns that the task needs from it.
Out: `TaskTable`, which knows file and line of every row for messages; and notes on anything in a
     task's tables that makes its scores less meaningful.

`.csv` is quoted as in RFC 4180. `.tsv` is not quoted at all, as in GLUE, where a quotation mark is
part of the text. A byte order mark is dropped. Skipped rows are counted.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from cloze.artifacts import filesystem
from cloze.artifacts.errors import UsageError
from cloze.artifacts.tokenizer import well_formed
from cloze.model.config import DATASETS_PREFIX

Row = Mapping[str, JsonValue]

FEW_ROWS = 10
"""Labels with fewer training rows are reported."""

SHOWN_LABELS = 5

INPUTS = ("text_a", "text_b", "words", "context", "question", "endings")
"""Columns that a model reads; two rows that agree in all of them are the same example."""

DOCUMENT_START = "-DOCSTART-"


@dataclass(frozen=True)
class TaskTable:
    """Rows of one file, by column."""

    path: str
    columns: dict[str, list[JsonValue]]
    lines: tuple[int, ...] = ()
    """Line of each row; empty if the file has no lines (Parquet), then rows are numbered."""

    whole: "TaskTable | None" = None
    """The table that this one was sampled from, for its set of labels; None: not a sample."""

    remarks: tuple[str, ...] = ()
    """Remarks for the report: rows left out, or held out."""

    def __len__(self) -> int:
        return len(next(iter(self.columns.values()), []))

    def place(self, row: int) -> str:
        """Location of `row` for a message: path and line, or path and row."""
        line = self.lines[row] if self.lines else row + 1
        return f"{self.path}:{line}"

    def has(self, name: str) -> bool:
        """Whether there is such a column."""
        return name in self.columns

    def texts(self, name: str) -> list[str]:
        """The column `name`, whose values must be strings."""
        texts = []
        for row, value in enumerate(self.columns[name]):
            if not isinstance(value, str):
                raise UsageError(
                    f"{self.place(row)}: {name} is {value!r}, expected text; correct the row"
                )
            texts.append(well_formed(value))
        return texts

    def every(self, name: str) -> list[JsonValue]:
        """The column `name` of the whole table, if this one is a sample."""
        return (self.whole or self).columns[name]

    def take(self, rows: Sequence[int]) -> "TaskTable":
        """A table of these rows."""
        return TaskTable(
            self.path,
            {name: [values[row] for row in rows] for name, values in self.columns.items()},
            tuple(self.lines[row] for row in rows) if self.lines else (),
        )

    def without(self, names: Sequence[str]) -> "TaskTable":
        """The table without these columns."""
        kept = {name: values for name, values in self.columns.items() if name not in names}
        return TaskTable(self.path, kept, self.lines, remarks=self.remarks)


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The columns that a task needs from a file."""

    required: tuple[str, ...]
    """Our names of the columns that must be present."""

    optional: tuple[str, ...] = ()
    """Our names of the columns that may be present, such as labels in a test file."""

    names: Mapping[str, str] = field(default_factory=dict)
    """Our name to the file's, where they differ; a number if the file has no header."""

    skip_short_rows: bool = False
    """Count and drop rows with too few columns instead of refusing the file (QQP has some)."""

    def in_file(self, name: str) -> str:
        """The file's name of our column `name`."""
        return self.names.get(name, name)

    @property
    def headless(self) -> bool:
        """Whether columns are given by number, because the file has no header."""
        named = [name for name in self.names.values() if name]
        return bool(named) and all(name.isdigit() for name in named)

    def present(self, path: str, found: Sequence[str]) -> dict[str, str]:
        """Our names of the wanted columns among those `found` in a file, with the file's names."""
        present = {}
        for name in (*self.required, *self.optional):
            if self.in_file(name) in found:
                present[name] = self.in_file(name)
            elif name in self.required:
                raise UsageError(
                    f"{path}: no column {self.in_file(name)!r} for {name}, "
                    f"only {', '.join(found) or 'none'}; "
                    f'name the right one: columns.{name} = "..."'
                )
        return present


def tabulated(
    path: str, rows: Sequence[Row], wanted: Wanted, *, lines: tuple[int, ...] = ()
) -> TaskTable:
    """The wanted columns of `rows`; `lines` are their line numbers, for messages."""
    if not rows:
        raise UsageError(f"{path}: no rows, expected labelled examples")
    present = wanted.present(path, list(rows[0])).items()
    return TaskTable(path, {our: [row.get(their) for row in rows] for our, their in present}, lines)


def read_table(path: str, wanted: Wanted) -> TaskTable:
    """The wanted columns of `path`; the error for a missing one lists the columns present."""
    if path.startswith(DATASETS_PREFIX):
        try:
            from datasets import load_dataset
        except ImportError:
            raise UsageError(f"{path}: needs the package datasets; pip install datasets") from None
        name, config, split = [*path.removeprefix(DATASETS_PREFIX).split(":"), "", ""][:3]
        found = load_dataset(name, config or None, split=split or "train")
        return tabulated(path, found.to_list(), wanted)
    suffix = Path(path).suffix.lower()
    if suffix not in READERS:
        raise UsageError(
            f"{path}: unknown kind of task file {suffix!r}, expected one of {' '.join(READERS)}"
        )
    try:
        content = filesystem.read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such task file") from None
    return READERS[suffix](path, content, wanted)


def read_delimited(path: str, content: bytes, wanted: Wanted) -> TaskTable:
    """CSV or TSV, whose first line names the columns unless `wanted` numbers them."""
    records = _records(path, _decoded(path, content))
    header: list[str] = []
    if wanted.headless:
        missing = [name for name in wanted.required if name not in wanted.names]
        if missing:
            raise UsageError(
                f"{path}: columns are numbered, but none is given for {', '.join(missing)}"
            )
        places = {name: int(number) for name, number in wanted.names.items() if number}
    else:
        _, header = next(records, (0, header))
        if not header:
            raise UsageError(f"{path}: empty file, expected a header line and rows")
        present = wanted.present(path, header)
        places = {name: header.index(theirs) for name, theirs in present.items()}
    fewest, most = max(places.values()) + 1, len(header)
    columns: dict[str, list[JsonValue]] = {name: [] for name in places}
    lines, skipped = [], 0
    for line, record in records:
        if record in ([], [""]):
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
    if not lines:
        raise UsageError(f"{path}: no rows, expected labelled examples")
    left_out = f"{path}: {skipped} rows with too few columns are left out"
    return TaskTable(path, columns, tuple(lines), remarks=(left_out,) if skipped else ())


def _records(path: str, text: str) -> Iterator[tuple[int, list[str]]]:
    """Number and fields of every record."""
    if path.lower().endswith(".tsv"):
        for number, line in enumerate(io.StringIO(text, newline="\n"), start=1):
            yield number, line.rstrip("\r\n").split("\t")
        return
    number = 0
    try:
        for record in csv.reader(io.StringIO(text, newline=""), strict=True):
            number += 1
            yield number, record
    except csv.Error as error:
        raise UsageError(
            f"{path}: record {number + 1}: {error}; a .csv is quoted as in RFC 4180, "
            "name the file .tsv if its quotation marks are text"
        ) from None


def read_json_lines(path: str, content: bytes, wanted: Wanted) -> TaskTable:
    """One JSON object per line."""
    rows: list[Row] = []
    lines = []
    for number, line in enumerate(_decoded(path, content).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
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


def read_squad(path: str, content: bytes, wanted: Wanted) -> TaskTable:
    """SQuAD's JSON, versions 1.1 and 2.0: one row per question.

    A file in which no question has an answer or is marked impossible is unlabelled.
    """
    try:
        rows: list[dict[str, JsonValue]] = [
            {
                "id": str(question["id"]),
                "title": article.get("title", ""),
                "question": question["question"],
                "context": paragraph["context"],
                "answers": {
                    key: [answer[key] for answer in question.get("answers", [])]
                    for key in ("text", "answer_start")
                },
                "is_impossible": bool(question.get("is_impossible", False)),
            }
            for article in json.loads(_decoded(path, content))["data"]
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
        nothing: JsonValue = {"text": [], "answer_start": []}
        if all(row["answers"] == nothing and not row["is_impossible"] for row in rows):
            for row in rows:
                del row["answers"], row["is_impossible"]
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(
            f"{path}: not SQuAD JSON ({type(error).__name__}: {error}); expected data → "
            "paragraphs → qas; one JSON object per line belongs in a .jsonl"
        ) from None
    return tabulated(path, rows, wanted)


def read_conll(path: str, content: bytes, wanted: Wanted) -> TaskTable:
    """The CoNLL shared tasks' column format: one word per line, blank lines between sentences.

    One row per sentence: words, tags, and the number of its document (`-DOCSTART-` begins one). The
    word is in the first column and the tag in the last, unless `columns` numbers them differently.
    """
    names = wanted.names
    word_column, tag_column = int(names.get("words", "0")), int(names.get("tags", "-1"))
    rows: list[Row] = []
    document = 0
    numbered = enumerate(_decoded(path, content).split("\n"), start=1)
    for has_words, group in groupby(numbered, key=lambda line: bool(line[1].split())):
        if not has_words:
            continue
        lines = list(group)
        sentence = [line.split() for _, line in lines]
        if sentence[0][0] == DOCUMENT_START:
            document += 1
            continue
        widths = {len(fields) for fields in sentence}
        if len(widths) > 1 or min(widths) < 2:
            raise UsageError(
                f"{path}:{lines[0][0]}: lines of {sorted(widths)} columns in one sentence, "
                "expected a word and its tags on every line"
            )
        rows.append(
            {
                names.get("words", "words"): [fields[word_column] for fields in sentence],
                names.get("tags", "tags"): [fields[tag_column] for fields in sentence],
                "document": document,
            }
        )
    return tabulated(path, rows, wanted)


def read_parquet(path: str, content: bytes, wanted: Wanted) -> TaskTable:
    """A Parquet file."""
    try:
        rows = pq.read_table(pa.BufferReader(content)).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a readable Parquet file: {error}") from None
    return tabulated(path, rows, wanted)


READERS: Mapping[str, Callable[[str, bytes, Wanted], TaskTable]] = {
    ".csv": read_delimited,
    ".tsv": read_delimited,
    ".jsonl": read_json_lines,
    ".json": read_squad,
    ".parquet": read_parquet,
    ".conll": read_conll,
    ".txt": read_conll,
}


def _decoded(path: str, content: bytes) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: not UTF-8 at byte {error.start}; convert it, for example with iconv -t UTF-8"
        ) from None


def data_notes(tables: Mapping[str, TaskTable]) -> Iterator[str]:
    """Warnings: other splits that overlap with train; labels that are rare, or missing from dev."""
    train = tables["train"]
    known = set(_inputs(train))
    for split, table in tables.items():
        if split == "train":
            continue
        shared = [row for row, inputs in enumerate(_inputs(table)) if inputs in known]
        if shared:
            yield (
                f"{len(shared):,} of {len(table):,} {split} rows are training rows, too "
                f"(the first: {table.place(shared[0])}); their scores are too good"
            )
    counts = _labels(train)
    rare = [f"{label} ({count})" for label, count in counts.items() if count < FEW_ROWS]
    if rare:
        yield f"labels with fewer than {FEW_ROWS} training rows: {_some(rare)}"
    dev = _labels(tables["dev"]) if "dev" in tables else counts
    missing = [label for label in counts if label not in dev]
    if missing and dev:
        yield f"labels without a dev row, whose scores are unknown: {_some(missing)}"


def _inputs(table: TaskTable) -> Iterator[str]:
    columns = [table.columns[name] for name in INPUTS if table.has(name)]
    return (repr(values) for values in zip(*columns, strict=True))


def _labels(table: TaskTable) -> Counter[str]:
    """Rows per label; empty if labels are the numbers of a regression."""
    labels = [
        str(one)
        for label in table.columns.get("label", [])
        for one in (label if isinstance(label, list) else [label])
    ]
    return Counter(labels) if len(set(labels)) <= max(2, len(labels) // 2) else Counter()


def _some(names: list[str]) -> str:
    return ", ".join(names[:SHOWN_LABELS]) + (", …" if len(names) > SHOWN_LABELS else "")
