"""Task files of every kind: CSV, TSV, JSON lines, Parquet, SQuAD JSON, CoNLL, Hugging Face data.

In:  a path, and what the task wants from the file.
Out: `TaskTable`.

`.csv` is quoted as in RFC 4180; `.tsv` is not quoted at all, as in GLUE, where a quote character is
text. A byte order mark is dropped. Skipped rows are counted.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pydantic import JsonValue

from artifacts import filesystem
from artifacts.errors import UsageError
from model.config import DATASETS_PREFIX
from model.tasks.task_table import Row, TaskTable, Wanted, select

DOCUMENT_START = "-DOCSTART-"


def read_table(path: str, wanted: Wanted) -> TaskTable:
    """The wanted columns of `path`; a missing one is an error that lists the existing ones."""
    if path.startswith(DATASETS_PREFIX):
        try:
            from datasets import load_dataset
        except ImportError:
            raise UsageError(f"{path}: needs the package datasets; pip install datasets") from None
        name, config, split = [*path.removeprefix(DATASETS_PREFIX).split(":"), "", ""][:3]
        found = load_dataset(name, config or None, split=split or "train")
        return select(path, found.to_list(), wanted)
    suffix = Path(path).suffix.lower()
    if suffix not in _READERS:
        raise UsageError(
            f"{path}: unknown kind of task file {suffix!r}, expected one of {' '.join(_READERS)}"
        )
    return _READERS[suffix](path, wanted)


def _read_csv(path: str, wanted: Wanted) -> TaskTable:
    def records() -> Iterator[list[str]]:
        number = 0
        try:
            for record in csv.reader(io.StringIO(_text(path), newline=""), strict=True):
                number += 1
                yield record
        except csv.Error as error:
            raise UsageError(
                f"{path}: record {number + 1}: {error}; a .csv is quoted as RFC 4180 says, "
                "name the file .tsv if its quotes are text"
            ) from None

    return _delimited(path, wanted, records())


def _read_tsv(path: str, wanted: Wanted) -> TaskTable:
    lines = io.StringIO(_text(path), newline="\n")
    return _delimited(path, wanted, (line.rstrip("\r\n").split("\t") for line in lines))


def _delimited(path: str, wanted: Wanted, records: Iterator[list[str]]) -> TaskTable:
    numbered = enumerate(records, start=1)
    header = [] if wanted.headless else next(numbered, (0, None))[1]
    if header is None:
        raise UsageError(f"{path}: empty file, expected a header line and rows")
    places = _places(path, wanted, header)
    width = max(places.values()) + 1
    columns: dict[str, list[JsonValue]] = {name: [] for name in places}
    lines, skipped = [], 0
    widest = len(header)
    for line, record in numbered:
        if record in ([], [""]):
            continue
        widest = widest or len(record)  # without a header the first row says it
        if len(record) > widest:  # a separator within a text has shifted the columns
            raise UsageError(
                f"{path}:{line}: {len(record)} columns, expected {widest} as in the first line; "
                "a .tsv is read without quoting, a .csv with it: rename the file if need be"
            )
        if len(record) < width:
            if not wanted.skip_short_rows:
                raise UsageError(
                    f"{path}:{line}: {len(record)} columns, expected at least {width}; "
                    "a .tsv is read without quoting, a .csv with it: rename the file if need be"
                )
            skipped += 1
            continue
        lines.append(line)
        for name, place in places.items():
            columns[name].append(record[place])
    if not lines:
        raise UsageError(f"{path}: no rows, expected labelled examples")
    return TaskTable(path, columns, tuple(lines), skipped)


def _places(path: str, wanted: Wanted, header: list[str]) -> dict[str, int]:
    """Our column names and their indices in a record."""
    if wanted.headless:
        names = wanted.names or {}
        missing = [name for name in wanted.required if name not in names]
        if missing:
            raise UsageError(
                f"{path}: columns are numbered, but none is given for {', '.join(missing)}"
            )
        return {name: int(number) for name, number in names.items() if number}
    places = {}
    for name in (*wanted.required, *wanted.optional):
        if wanted.in_file(name) in header:
            places[name] = header.index(wanted.in_file(name))
        elif name in wanted.required:
            raise wanted.missing(path, name, header)
    return places


def _read_json_lines(path: str, wanted: Wanted) -> TaskTable:
    rows: list[Row] = []
    lines = []
    for number, line in enumerate(_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise UsageError(
                f"{path}:{number}: not JSON: {error}; expected one object a line"
            ) from None
        if not isinstance(row, dict):
            raise UsageError(
                f"{path}:{number}: {type(row).__name__}, expected one JSON object a line"
            )
        rows.append(row)
        lines.append(number)
    return select(path, rows, wanted, lines=tuple(lines))


def _read_squad(path: str, wanted: Wanted) -> TaskTable:
    """SQuAD's JSON, versions 1.1 and 2.0: one row a question.

    A file in which no question has an answer, or is said to have none, is unlabelled.
    """
    try:
        rows: list[dict[str, JsonValue]] = [
            {
                "id": str(question["id"]),
                "title": article.get("title", ""),
                "question": question["question"],
                "context": paragraph["context"],
                "answers": {
                    "text": [answer["text"] for answer in question.get("answers", [])],
                    "answer_start": [
                        answer["answer_start"] for answer in question.get("answers", [])
                    ],
                },
                "is_impossible": bool(question.get("is_impossible", False)),
            }
            for article in json.loads(_text(path))["data"]
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
            "paragraphs → qas; one JSON object a line belongs in a .jsonl"
        ) from None
    return select(path, rows, wanted)


def _read_conll(path: str, wanted: Wanted) -> TaskTable:
    """Column files as the CoNLL shared tasks wrote them: one word a line, sentences apart.

    One row a sentence: words, tags, and the number of its document (`-DOCSTART-` begins one). The
    word is the first column and the tag the last, unless `columns` numbers them otherwise.
    """
    names = wanted.names or {}
    word_column, tag_column = int(names.get("words", "0")), int(names.get("tags", "-1"))
    rows: list[Row] = []
    document = 0
    for first_line, sentence in _sentences(_text(path)):
        if sentence[0][0] == DOCUMENT_START:
            document += 1
            continue
        widths = {len(fields) for fields in sentence}
        if len(widths) > 1 or min(widths) < 2:
            raise UsageError(
                f"{path}:{first_line}: lines of {sorted(widths)} columns in one sentence, "
                "expected a word and its tags on every line"
            )
        rows.append(
            {
                names.get("words", "words"): [fields[word_column] for fields in sentence],
                names.get("tags", "tags"): [fields[tag_column] for fields in sentence],
                "document": document,
            }
        )
    return select(path, rows, wanted)


def _sentences(text: str) -> Iterator[tuple[int, list[list[str]]]]:
    """Line number of the first word, and the fields of every word."""
    sentence: list[list[str]] = []
    for number, line in enumerate([*text.split("\n"), ""], start=1):
        fields = line.split()
        if fields:
            sentence.append(fields)
        elif sentence:
            yield number - len(sentence), sentence
            sentence = []


def _read_parquet(path: str, wanted: Wanted) -> TaskTable:
    try:
        rows = pq.read_table(pa.BufferReader(_bytes(path))).to_pylist()
    except (pa.ArrowInvalid, OSError) as error:
        raise UsageError(f"{path}: not a readable Parquet file: {error}") from None
    return select(path, rows, wanted)


def _bytes(path: str) -> bytes:
    """The content of a local path or URL."""
    try:
        return filesystem.read_bytes(path)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such task file") from None


def _text(path: str) -> str:
    try:
        return _bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path}: not UTF-8 at byte {error.start}; convert it, for example with iconv -t UTF-8"
        ) from None


_READERS: dict[str, Callable[[str, Wanted], TaskTable]] = {
    ".csv": _read_csv,
    ".tsv": _read_tsv,
    ".jsonl": _read_json_lines,
    ".json": _read_squad,
    ".parquet": _read_parquet,
    ".conll": _read_conll,
    ".txt": _read_conll,
}
