"""The documents of one bucket, as flat arrays.

In:  a tokens file (artifacts/tables.py).
Out: `Documents`: one array of ids, and where sentences and documents begin and end in it.

Nothing here is per document in Python: a bucket of millions of tokens is six arrays.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artifacts.errors import IntegrityError
from artifacts.rng import Int64s, UInt64s

# D documents, S sentences, T tokens


@dataclass(frozen=True)
class Documents:
    """Documents in order of digest; their sentences and tokens one after another."""

    digests_D2: UInt64s
    """The digest's two halves."""

    weights_D: Int64s
    """How often each document enters every copy of the examples."""

    token_ids_T: NDArray[Any]
    """Ids of the whole bucket, uint16 or uint32."""

    starts_S: Int64s
    """Where each sentence begins in `token_ids_T`; ascending."""

    ends_S: Int64s
    """Where it ends."""

    first_sentence_D1: Int64s
    """The first sentence of each document, and after the last one their number."""

    @property
    def count(self) -> int:
        """Number of documents."""
        return len(self.weights_D)

    @cached_property
    def sentence_counts_D(self) -> Int64s:
        """Sentences of each document."""
        return np.diff(self.first_sentence_D1)

    @cached_property
    def document_of_sentence_S(self) -> Int64s:
        """The document each sentence belongs to."""
        return np.repeat(np.arange(self.count), self.sentence_counts_D)

    def subset(self, chosen: Int64s) -> "Documents":
        """The documents with the `chosen` numbers, over the same `token_ids_T`."""
        wanted_D = np.zeros(self.count, dtype=bool)
        wanted_D[chosen] = True
        kept_S = wanted_D[self.document_of_sentence_S]
        return Documents(
            digests_D2=self.digests_D2[chosen],
            weights_D=self.weights_D[chosen],
            token_ids_T=self.token_ids_T,
            starts_S=self.starts_S[kept_S],
            ends_S=self.ends_S[kept_S],
            first_sentence_D1=_offsets(self.sentence_counts_D[chosen]),
        )


def read_documents(path: str) -> Documents:
    """The documents in the tokens file at `path`."""
    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all().combine_chunks()
        return documents_of(table, source=path)


def documents_of(table: pa.Table, *, source: str) -> Documents:
    """The documents in a tokens table; sentences and documents without tokens are left out."""
    token_ids = _flat(table["token_ids"])
    sentence_lengths = _flat(table["sentence_lengths"]).astype(np.int64)
    ends_S = np.cumsum(sentence_lengths)
    first_sentence_D1 = _offsets(_list_lengths(table["sentence_lengths"]))
    token_ends_D1 = np.concatenate([[0], ends_S])[first_sentence_D1]
    if not np.array_equal(np.diff(token_ends_D1), _list_lengths(table["token_ids"])):
        raise IntegrityError(
            f"{source}: sentence_lengths do not sum to the number of token_ids; "
            "run the tokens stage again"
        )
    documents = Documents(
        digests_D2=_digests(table["document_digest"]),
        weights_D=table["copies"].to_numpy().astype(np.int64),
        token_ids_T=token_ids,
        starts_S=ends_S - sentence_lengths,
        ends_S=ends_S,
        first_sentence_D1=first_sentence_D1,
    )
    return documents if sentence_lengths.all() else _without_empty_sentences(documents)


def _without_empty_sentences(documents: Documents) -> Documents:
    kept_S = documents.ends_S > documents.starts_S
    counts_D = np.bincount(documents.document_of_sentence_S[kept_S], minlength=documents.count)
    kept_D = counts_D > 0
    return Documents(
        digests_D2=documents.digests_D2[kept_D],
        weights_D=documents.weights_D[kept_D],
        token_ids_T=documents.token_ids_T,
        starts_S=documents.starts_S[kept_S],
        ends_S=documents.ends_S[kept_S],
        first_sentence_D1=_offsets(counts_D[kept_D]),
    )


def _flat(column: pa.ChunkedArray) -> NDArray[Any]:
    chunks = [chunk.flatten().to_numpy() for chunk in column.chunks]
    return np.concatenate(chunks) if len(chunks) != 1 else chunks[0]


def _list_lengths(column: pa.ChunkedArray) -> Int64s:
    chunks = [np.diff(chunk.offsets.to_numpy()).astype(np.int64) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *chunks])


def _offsets(counts: Int64s) -> Int64s:
    return np.concatenate([[0], np.cumsum(counts)])


def _digests(column: pa.ChunkedArray) -> UInt64s:
    raw = b"".join(_digest_bytes(chunk) for chunk in column.chunks)
    return np.frombuffer(raw, dtype="<u8").reshape(-1, 2).astype(np.uint64)


def _digest_bytes(chunk: pa.FixedSizeBinaryArray) -> bytes:
    width = chunk.type.byte_width
    data = chunk.buffers()[1]
    return bytes(data[chunk.offset * width : (chunk.offset + len(chunk)) * width]) if data else b""
