"""The tables that stages exchange: tokens, examples, dropped documents, as Arrow IPC files.

tokens (one file per split and bucket, rows sorted by digest):
    document_digest   fixed binary 16   first half of blake2b of the cleaned text
    copies            uint8             how often the source's weight repeats the document
    token_ids         list<id>          all sentences, one after another
    sentence_lengths  list<uint32>      tokens per sentence; sums to len(token_ids)

examples (one file per split, length and bucket; record batch c holds copy c):
    input_ids             list<id>      [CLS] A [SEP] B [SEP], masked, unpadded
    segment_a_length      uint16        tokens of [CLS] A [SEP]: token types are 0, then 1
    masked_lm_positions   list<uint16>  places in input_ids, ascending
    masked_lm_ids         list<id>      what stood there
    next_sentence_label   int8          0 is next, 1 random, -1 not asked (no second segment)
    document_lengths      list<uint32>  tokens of each [CLS] … [SEP]; sums to len(input_ids)

The last column is there only where an example has several documents (`examples.pack_documents`):
input_ids are then [CLS] A [SEP] [CLS] B [SEP] …, positions and attention begin anew with each.

dropped (a record beside the tokens, one file):
    document_digest   fixed binary 16   as above, had the document been kept
    source            uint16            which of the corpus's sources it comes from
    path              string            its file
    position          int64             where in it, as the reader has it: a byte, a row, an ordinal
    reason            string            why it was dropped

`id` is uint16 for vocabularies up to 65,536 words, uint32 above.

Importing this module first also keeps pyarrow from importing pandas.
"""

import sys
import warnings
from types import ModuleType
from typing import NotRequired, TypedDict

import pyarrow as pa

if "pandas" not in sys.modules:
    # When pyarrow first makes an array it imports pandas if there is one: a quarter of a second of
    # every program and every worker, for nothing. It asks once, so it is shown one that is too old.
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
"""The column of examples that have several documents."""

DROPPED_NAME = "dropped.arrow"
"""The list of dropped documents."""

DROPPED_SCHEMA = pa.schema(
    [
        pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES)),
        pa.field("source", pa.uint16()),
        pa.field("path", pa.string()),
        pa.field("position", pa.int64()),
        pa.field("reason", pa.string()),
    ]
)
"""Schema of that list."""


class DocumentRow(TypedDict):
    """A row of a tokens file as Python values."""

    document_digest: bytes
    copies: int
    token_ids: list[int]
    sentence_lengths: list[int]


class ExampleRow(TypedDict):
    """A row of an examples file as Python values."""

    input_ids: list[int]
    segment_a_length: int
    masked_lm_positions: list[int]
    masked_lm_ids: list[int]
    next_sentence_label: int
    document_lengths: NotRequired[list[int]]


class DroppedRow(TypedDict):
    """A row of the list of dropped documents as Python values."""

    document_digest: bytes
    source: int
    path: str
    position: int
    reason: str


def id_type(vocabulary_size: int) -> pa.DataType:
    """The narrowest Arrow type that holds every id."""
    return pa.uint16() if vocabulary_size <= 1 << 16 else pa.uint32()


def tokens_schema(vocabulary_size: int) -> pa.Schema:
    """Schema of a tokens file."""
    return pa.schema(
        [
            pa.field("document_digest", pa.binary(TOKEN_DIGEST_BYTES), nullable=False),
            pa.field("copies", pa.uint8(), nullable=False),
            pa.field(
                "token_ids",
                pa.list_(pa.field("item", id_type(vocabulary_size), nullable=False)),
                nullable=False,
            ),
            pa.field(
                "sentence_lengths",
                pa.list_(pa.field("item", pa.uint32(), nullable=False)),
                nullable=False,
            ),
        ]
    )


def examples_schema(vocabulary_size: int, *, packed: bool = False) -> pa.Schema:
    """Schema of an examples file; `packed`: of one whose examples have several documents."""
    ids = pa.list_(pa.field("item", id_type(vocabulary_size), nullable=False))
    positions = pa.list_(pa.field("item", pa.uint16(), nullable=False))
    schema = pa.schema(
        [
            pa.field("input_ids", ids, nullable=False),
            pa.field("segment_a_length", pa.uint16(), nullable=False),
            pa.field("masked_lm_positions", positions, nullable=False),
            pa.field("masked_lm_ids", ids, nullable=False),
            pa.field("next_sentence_label", pa.int8(), nullable=False),
        ]
    )
    return schema.append(DOCUMENT_LENGTHS_FIELD) if packed else schema


def ipc_bytes(table: pa.Table) -> bytes:
    """The table as the content of an Arrow IPC file."""
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
