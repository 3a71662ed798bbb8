"""NumPy array types, and conversions between Arrow columns and NumPy arrays.

In:  columns of a table (artifacts/tables.py).
Out: flat arrays: list values and offsets, digests as integers.

Shape suffixes: D documents, N items of any kind.
"""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cloze.artifacts.tables import TOKEN_DIGEST_BYTES

Bytes = npt.NDArray[np.uint8]
Int64s = npt.NDArray[np.int64]
UInt16s = npt.NDArray[np.uint16]
UInt64s = npt.NDArray[np.uint64]
Offsets = Int64s
"""Ascending positions in a text or an array."""
Mask = npt.NDArray[np.bool_]
TokenIds = npt.NDArray[np.unsignedinteger]
"""uint16 or uint32, depending on the vocabulary size."""


def offsets_of(lengths_N: Int64s) -> Offsets:
    """The start of each of N consecutive ranges, and the end of the last one: (N + 1,)."""
    return np.concatenate(([0], np.cumsum(lengths_N, dtype=np.int64)))


def starts_of(lengths_N: Int64s) -> Offsets:
    """The start of each of N consecutive ranges, (N,)."""
    return offsets_of(lengths_N)[:-1]


def concatenated(texts: Sequence[bytes]) -> tuple[Bytes, Offsets]:
    """The bytes of N texts, and the end of each: (N,)."""
    ends_N = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return np.frombuffer(b"".join(texts), dtype=np.uint8), ends_N


def list_lengths(column: pa.ChunkedArray) -> Int64s:
    """The length of each list in a column, (N,)."""
    chunks = [np.diff(chunk.offsets.to_numpy()).astype(np.int64) for chunk in column.chunks]
    return np.concatenate([np.zeros(0, dtype=np.int64), *chunks])


def list_values(column: pa.ChunkedArray) -> npt.NDArray[np.unsignedinteger]:
    """The concatenated values of all lists in a column."""
    chunks = [chunk.flatten().to_numpy() for chunk in column.chunks]
    nothing = np.zeros(0, dtype=str(column.type.value_type))  # NumPy uses the same type names
    return chunks[0] if len(chunks) == 1 else np.concatenate([nothing, *chunks])


def list_array(
    values: npt.NDArray[np.unsignedinteger], ends_N: Int64s, form: pa.DataType | None = None
) -> pa.ListArray:
    """N lists over `values`, of type `form`, from the end offset of each."""
    # Arrow's list offsets have 32 bits and begin with 0.
    offsets_N1 = np.zeros(len(ends_N) + 1, dtype=np.int32)
    offsets_N1[1:] = ends_N
    return pa.ListArray.from_arrays(pa.array(offsets_N1), pa.array(values), type=form)


def digest_bytes(column: pa.ChunkedArray) -> Bytes:
    """A column of document digests as bytes, (D, 16)."""
    width = TOKEN_DIGEST_BYTES
    raw = [np.zeros(0, dtype=np.uint8)]
    for chunk in column.chunks:
        # The values are the second buffer; a slice shares that of the whole array.
        data = np.frombuffer(chunk.buffers()[1] or b"", dtype=np.uint8)
        raw.append(data[width * chunk.offset : width * (chunk.offset + len(chunk))])
    return np.concatenate(raw).reshape(-1, width)


def digest_array(digests_D16: Bytes) -> pa.FixedSizeBinaryArray:
    """Document digests as an Arrow array, (D,)."""
    content = pa.py_buffer(np.ascontiguousarray(digests_D16))
    form = pa.binary(TOKEN_DIGEST_BYTES)
    return pa.FixedSizeBinaryArray.from_buffers(form, len(digests_D16), [None, content])


def digest_halves(digests_D16: Bytes, byte_order: Literal[">", "<"] = ">") -> UInt64s:
    """Document digests as two 64-bit integers each, (D, 2).

    Big-endian integers (`>`) sort like the digests; buckets, splits and samples use them. Example
    streams are addressed by little-endian ones (`<`). Both determine the bytes of artifacts, so
    neither can replace the other.
    """
    return np.ascontiguousarray(digests_D16).view(f"{byte_order}u8").astype(np.uint64)


def is_first_of_equals(sorted_D2: UInt64s) -> Mask:
    """Which rows of sorted digests differ from the previous row, (D,)."""
    first_D = np.ones(len(sorted_D2), dtype=np.bool_)
    first_D[1:] = np.any(sorted_D2[1:] != sorted_D2[:-1], axis=1)
    return first_D


def entropy(counts: npt.NDArray[np.integer]) -> float:
    """Entropy in nats of the distribution given by `counts`; 0 without any."""
    # 0 log 0 counts as 0, so only what occurs takes part.
    share = counts[counts > 0] / max(int(counts.sum()), 1)
    return float(-(share * np.log(share)).sum())
