"""The tables exchanged between stages, as Arrow IPC files: tokens, examples, dropped documents.

tokens (one file per split and bucket, rows sorted by digest):
    document_digest   fixed binary 16   first half of blake2b of the cleaned text
    copies            uint8             weight of the source: how often the document is repeated
    token_ids         list<id>          all sentences, concatenated
    sentence_lengths  list<uint32>      tokens per sentence; sums to len(token_ids)
    source            uint16            index of its source in the corpus

The last column exists only if the corpus names its sources, so that they can be mixed.

examples (one file per split, length and bucket; record batch c holds copy c):
    input_ids             list<id>      [CLS] A [SEP] B [SEP], masked, unpadded
    segment_a_length      uint16        tokens of [CLS] A [SEP]: token types are 0, then 1
    masked_lm_positions   list<uint16>  positions in input_ids, ascending
    masked_lm_ids         list<id>      original ids at these positions
    next_sentence_label   int8          0 next, 1 random, -1 no label (no second segment)
    document_lengths      list<uint32>  tokens of each [CLS] … [SEP]; sums to len(input_ids)

The last column exists only if examples pack several documents (`examples.pack_documents`):
input_ids are then [CLS] A [SEP] [CLS] B [SEP] …; positions and attention restart at each one.
If sources have names, rows are grouped by name, in random order within each; the manifest says how
many rows of each file and copy are of which name.

dropped (a record beside the tokens, one file):
    document_digest   fixed binary 16   as above
    source            uint16            index of its source in the corpus
    path              string            its file
    position          int64             its position in the file: a byte, row or ordinal, by reader
    reason            string            why it was dropped

`id` is uint16 for vocabularies up to 65,536 words, uint32 above.

Importing this module also keeps pyarrow from importing pandas.
"""

import sys
import warnings
from types import ModuleType
from typing import NotRequired, TypedDict

import pyarrow as pa

if "pandas" not in sys.modules:
    # When pyarrow makes its first array it imports pandas if installed, which costs every program
    # and worker a quarter of a second for nothing. It checks once, so show it one that is too old.
    _too_old = ModuleType("pandas")
    vars(_too_old)["__version__"] = "0"
    sys.modules["pandas"] = _too_old
    with warnings.catch_warnings(action="ignore"):
        pa.array([0])
    del sys.modules["pandas"]

TOKEN_DIGEST_BYTES = 16

DOCUMENT_LENGTHS_FIELD = pa.field(
    "document_lengths", pa.list_(pa.field("item", pa.uint32(), nullable=False)), nullable=False
)
"""The additional column of examples that pack several documents."""

SOURCE_FIELD = pa.field("source", pa.uint16(), nullable=False)
"""The additional column of tokens whose sources have names."""

LINES_NAME = "lines.arrow"
"""File name of the list of recurring lines, which the stage `boilerplate` makes."""

LINES_SCHEMA = pa.schema(
    [
        pa.field("source", pa.uint16(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("first_removed", pa.uint64(), nullable=False),
        pa.field("occurrences", pa.int64(), nullable=False),
        pa.field("removed_lines", pa.int64(), nullable=False),
        pa.field("removed_bytes", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)
"""Schema of that list, sorted by source and key (a hash). Documents of a rank from `first_removed`
on lose the line."""

SPAN_KINDS = ("sentences", "tokens")
"""What is removed because it came earlier."""

SPANS_NAME = "spans.arrow"
"""File name of the list of texts that are removed because they came earlier."""

SPANS_SCHEMA = pa.schema(
    [
        pa.field("source", pa.uint16(), nullable=False),
        pa.field("kind", pa.string(), nullable=False),
        pa.field("key", pa.uint64(), nullable=False),
        pa.field("removed_spans", pa.int64(), nullable=False),
        pa.field("removed_bytes", pa.int64(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
)
"""Schema of that list, sorted by source and key (a hash of the text)."""

REPEATS_NAME = "repeats.arrow"
"""File name of the keys by which spans that came earlier are found."""

REPEATS_SCHEMA = pa.schema(list(LINES_SCHEMA)[:3])
"""Schema of these, sorted by source and key."""

SCORES_NAME, SCORE_COUNTS_NAME = "scores.arrow", "counts.arrow"
"""File names of the scores of documents, which the stage `scores` makes, and of how many documents
have each."""

SCORES_SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES), nullable=False),
        pa.field("source", pa.uint16(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("is_held_out", pa.bool_(), nullable=False),
    ]
)
"""Schema of the scores, sorted by digest, each once, with the first of its sources."""

SCORE_COUNTS_SCHEMA = pa.schema(
    [
        pa.field("source", pa.uint16(), nullable=False),
        pa.field("score", pa.float32(), nullable=False),
        pa.field("documents", pa.int64(), nullable=False),
    ]
)
"""Schema of their counts, by source and ascending score, without held-out documents."""

DROPPED_NAME = "dropped.arrow"
"""File name of the list of dropped documents."""

DROPPED_SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
        pa.field("source", pa.uint16()),
        pa.field("path", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
"""Schema of the list of dropped documents."""


class DocumentRow(TypedDict):
    """A row of a tokens file as Python values."""

    document_digest: bytes
    copies: int
    token_ids: list[int]
    sentence_lengths: list[int]
    source: NotRequired[int]


class ExampleRow(TypedDict):
    """A row of an examples file as Python values."""

    input_ids: list[int]
    segment_a_length: int
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]
    next_sentence_label: int
    document_lengths: NotRequired[list[int]]


def id_type(vocabulary_size: int) -> pa.DataType:
    """The narrowest Arrow type that can hold every id."""
    return pa.uint16() if vocabulary_size <= 1 << 16 else pa.uint32()


def tokens_schema(vocabulary_size: int, *, named: bool = False) -> pa.Schema:
    """Schema of a tokens file; `named` if its sources have names."""
    schema = _without_nulls(
        document_digest=pa.binary(TOKEN_DIGEST_BYTES),
        copies=pa.uint8(),
        token_ids=pa.list_(id_type(vocabulary_size)),
        sentence_lengths=pa.list_(pa.uint32()),
    )
    return schema.append(SOURCE_FIELD) if named else schema


def examples_schema(vocabulary_size: int, *, packed: bool = False) -> pa.Schema:
    """Schema of an examples file; `packed` if examples pack several documents."""
    ids = pa.list_(id_type(vocabulary_size))
    schema = _without_nulls(
        input_ids=ids,
        segment_a_length=pa.uint16(),
        masked_lm_positions=pa.list_(pa.uint16()),
        masked_lm_ids=ids,
        next_sentence_label=pa.int8(),
    )
    return schema.append(DOCUMENT_LENGTHS_FIELD) if packed else schema


def _without_nulls(**columns: pa.DataType) -> pa.Schema:
    """A schema of columns, and lists in them, that contain no nulls."""
    # No nulls, not even in lists: they would be read as numbers.
    kinds = {
        name: pa.list_(pa.field("item", kind.value_type, nullable=False))
        if pa.types.is_list(kind)
        else kind
        for name, kind in columns.items()
    }
    return pa.schema([pa.field(name, kind, nullable=False) for name, kind in kinds.items()])


def ipc_bytes(table: pa.Table) -> bytes:
    """The table serialised as an Arrow IPC file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def tokens_name(split: str, bucket: int) -> str:
    """Name of a tokens file, for example `train-00003.arrow`."""
    return f"{split}-{bucket:05}.arrow"


def examples_name(split: str, max_seq_length: int, bucket: int) -> str:
    """Name of an examples file, for example `train-128-00003.arrow`."""
    return f"{split}-{max_seq_length}-{bucket:05}.arrow"
