"""The documents of one bucket, as flat arrays.

In:  a tokens file (artifacts/tables.py).
Out: `Documents`: one array of ids, with the boundaries of sentences and documents.

There are no Python objects per document: a bucket of millions of tokens is six arrays.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from artifacts.arrays import (
    Int64s,
    TokenIds,
    UInt64s,
    digest_bytes,
    digest_halves,
    list_lengths,
    list_values,
    offsets,
)
from artifacts.errors import IntegrityError

# D documents, S sentences, T tokens


@dataclass(frozen=True)
class Documents:
    """Documents sorted by digest, with concatenated sentences and tokens."""

    digests_D2: UInt64s
    """The digest's two halves as little-endian integers, which address the random streams."""

    weights_D: Int64s
    """How often each document occurs in every copy of the examples."""

    token_ids_T: TokenIds
    """Ids of the whole bucket, uint16 or uint32."""

    starts_S: Int64s
    """Ascending start of each sentence in `token_ids_T`."""

    ends_S: Int64s
    """End of each sentence."""

    first_sentence_D1: Int64s
    """The first sentence of each document, then the number of sentences."""

    @property
    def count(self) -> int:
        """Number of documents."""
        return len(self.weights_D)

    @cached_property
    def sentence_counts_D(self) -> Int64s:
        """Number of sentences of each document."""
        return np.diff(self.first_sentence_D1)

    @cached_property
    def document_of_sentence_S(self) -> Int64s:
        """The document each sentence belongs to."""
        return np.repeat(np.arange(self.count), self.sentence_counts_D)

    def subset(self, chosen: Int64s) -> "Documents":
        """The `chosen` documents, over the same `token_ids_T`."""
        wanted_D = np.zeros(self.count, dtype=bool)
        wanted_D[chosen] = True
        kept_S = wanted_D[self.document_of_sentence_S]
        return Documents(
            digests_D2=self.digests_D2[chosen],
            weights_D=self.weights_D[chosen],
            token_ids_T=self.token_ids_T,
            starts_S=self.starts_S[kept_S],
            ends_S=self.ends_S[kept_S],
            first_sentence_D1=offsets(self.sentence_counts_D[chosen]),
        )


def read_documents(path: str) -> Documents:
    """Read the tokens file at `path`."""
    with pa.memory_map(path) as source:
        table = pa.ipc.open_file(source).read_all().combine_chunks()
        return documents_of(table, source=path)


def documents_of(table: pa.Table, *, source: str) -> Documents:
    """Convert a tokens table; empty sentences and documents are left out."""
    lengths_S = list_values(table["sentence_lengths"]).astype(np.int64)
    ends_S = np.cumsum(lengths_S)
    counts_D = list_lengths(table["sentence_lengths"])
    token_ends_D1 = np.concatenate([[0], ends_S])[offsets(counts_D)]
    if not np.array_equal(np.diff(token_ends_D1), list_lengths(table["token_ids"])):
        raise IntegrityError(
            f"{source}: sentence_lengths do not sum to the number of token_ids; "
            "run the tokens stage again"
        )
    digests_D2 = digest_halves(digest_bytes(table["document_digest"]), byte_order="<")
    weights_D = table["copies"].to_numpy().astype(np.int64)
    starts_S = ends_S - lengths_S
    if not lengths_S.all():
        kept_S = lengths_S > 0
        documents_S = np.repeat(np.arange(len(counts_D)), counts_D)
        counts_D = np.bincount(documents_S[kept_S], minlength=len(counts_D))
        kept_D = counts_D > 0
        starts_S, ends_S = starts_S[kept_S], ends_S[kept_S]
        digests_D2, weights_D, counts_D = digests_D2[kept_D], weights_D[kept_D], counts_D[kept_D]
    return Documents(
        digests_D2=digests_D2,
        weights_D=weights_D,
        token_ids_T=list_values(table["token_ids"]),
        starts_S=starts_S,
        ends_S=ends_S,
        first_sentence_D1=offsets(counts_D),
    )
