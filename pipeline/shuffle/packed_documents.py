"""Tokenised documents as compact bytes for an engine's shuffle.

In:  rows of tokenised documents, split into ranges that go to one bucket each.
Out: bytes for each range; and, at the bucket, the rows again.

A shard of 100 MB has barely one document for each bucket of a large corpus, and an Arrow stream of
one row has 1.5 KB of schema and padding. Here a row takes 43 bytes plus its sentence lengths and
ids. A row may be sent without tokens, if it only serves for comparison or another row brings the
tokens of the same document.
"""

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import numpy as np
import pyarrow as pa

from artifacts.arrays import (
    Mask,
    digest_array,
    digest_bytes,
    digest_halves,
    list_array,
    list_lengths,
    list_values,
    offsets,
)
from artifacts.tables import TOKEN_DIGEST_BYTES, id_type
from pipeline.shuffle.sorted_runs import KEY

_COUNT = struct.Struct("<I")
_ROW = np.dtype(
    [
        ("document_digest", f"V{TOKEN_DIGEST_BYTES}"),
        ("source", "<u2"),
        ("file", "<u4"),
        ("position", "<i8"),
        ("text_bytes", "<u4"),
        ("split", "u1"),
        ("sentences", "<u4"),
        ("tokens", "<u4"),
    ]
)
ROW_BYTES = _ROW.itemsize
"""Bytes of a row without its tokens."""

_PLAIN = ("source", "file", "position", "text_bytes", "split")

# N rows


def pack(rows: pa.Table, with_tokens_N: Mask, ends: Sequence[int]) -> Iterator[bytes]:
    """Consecutive ranges of rows, which end at `ends`, as bytes.

    rows: columns of a sorted run, and `split`. Only the rows in `with_tokens_N` keep their tokens.
    """
    heads_N = np.zeros(len(rows), dtype=_ROW)
    digests_N16 = np.ascontiguousarray(digest_bytes(rows["document_digest"]))
    heads_N["document_digest"] = digests_N16.view(f"V{TOKEN_DIGEST_BYTES}").ravel()
    for name in _PLAIN:
        heads_N[name] = rows[name].to_numpy()
    full = rows.filter(pa.array(with_tokens_N))
    heads_N["sentences"][with_tokens_N] = list_lengths(full["sentence_lengths"])
    heads_N["tokens"][with_tokens_N] = list_lengths(full["token_ids"])
    lengths = list_values(full["sentence_lengths"])
    ids = list_values(full["token_ids"])
    sentences_N1 = offsets(heads_N["sentences"].astype(np.int64))
    tokens_N1 = offsets(heads_N["tokens"].astype(np.int64))
    for start, stop in pairwise((0, *ends)):
        yield b"".join(
            (
                _COUNT.pack(stop - start),
                heads_N[start:stop].tobytes(),
                lengths[sentences_N1[start] : sentences_N1[stop]].tobytes(),
                ids[tokens_N1[start] : tokens_N1[stop]].tobytes(),
            )
        )


def unpack(ranges: Iterable[bytes], *, vocabulary_size: int) -> pa.Table:
    """The rows of packed ranges: the columns of a sorted run, and `split`."""
    form = np.dtype(id_type(vocabulary_size).to_pandas_dtype())
    heads, lengths, ids = [np.zeros(0, dtype=_ROW)], [np.zeros(0, np.uint32)], [np.zeros(0, form)]
    for packed in ranges:
        (count,) = _COUNT.unpack_from(packed)
        heads.append(np.frombuffer(packed, _ROW, count, _COUNT.size))
        place = _COUNT.size + count * _ROW.itemsize
        sentences, tokens = (int(heads[-1][name].sum()) for name in ("sentences", "tokens"))
        lengths.append(np.frombuffer(packed, np.uint32, sentences, place))
        place += sentences * lengths[0].itemsize
        ids.append(np.frombuffer(packed, form, tokens, place))
    rows_N = np.concatenate(heads)
    digests = rows_N["document_digest"].tobytes()
    digests_N16 = np.frombuffer(digests, dtype=np.uint8).reshape(-1, TOKEN_DIGEST_BYTES)
    return pa.table(
        {
            KEY: digest_halves(digests_N16)[:, 0],
            "document_digest": digest_array(digests_N16),
            **{name: np.ascontiguousarray(rows_N[name]) for name in _PLAIN},
            "token_ids": list_array(
                np.concatenate(ids), np.cumsum(rows_N["tokens"], dtype=np.int64)
            ),
            "sentence_lengths": list_array(
                np.concatenate(lengths), np.cumsum(rows_N["sentences"], dtype=np.int64)
            ),
        }
    )
