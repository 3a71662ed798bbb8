"""From segment pairs to record batches: gathering ids, masking, counting.

In:  the `Pairs` of one copy, in their final order, and the bucket's token ids.
Out: one Arrow record batch (artifacts/tables.py) and what is counted over it.

Work goes on in blocks of a few thousand examples, so that a block's arrays stay in the cache and
memory does not grow with the bucket.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from artifacts.rng import Int64s, draw
from pipeline.mlm.mask_units import mask_tokens
from pipeline.mlm.masking import Block, MaskingRule, Masks
from pipeline.mlm.pairing import MASKS, Pairs
from pipeline.mlm.statistics import Statistics, statistics_of

BLOCK_ROWS = 2048


@dataclass(frozen=True)
class SpecialIds:
    """The ids that frame the segments."""

    cls_id: int
    """Of [CLS]."""
    sep_id: int
    """Of [SEP]."""


def framed(token_ids_T: NDArray[Any], special: SpecialIds) -> NDArray[Any]:
    """The bucket's ids with [CLS] and [SEP] behind them, where `assemble` finds them."""
    frame = np.array([special.cls_id, special.sep_id], dtype=token_ids_T.dtype)
    return np.concatenate([token_ids_T, frame])


def assemble(
    pairs: Pairs, framed_ids: NDArray[Any], *, rule: MaskingRule, schema: pa.Schema
) -> tuple[pa.RecordBatch, Statistics]:
    """The record batch of one copy, and its counts."""
    blocks = [(block, masks) for block, masks in _masked_blocks(pairs, framed_ids, rule=rule)]
    lengths_N = np.concatenate([block.lengths_N for block, _ in blocks] or [np.zeros(0, np.int64)])
    counts_N = np.concatenate([masks.counts_N for _, masks in blocks] or [np.zeros(0, np.int64)])
    id_dtype = framed_ids.dtype
    columns = [
        _lists([block.input_ids for block, _ in blocks], lengths_N, schema.field(0).type, id_dtype),
        pa.array((pairs.a_length_N + 2).astype(np.uint16)),
        _lists(
            [masks.positions_M for _, masks in blocks], counts_N, schema.field(2).type, np.uint16
        ),
        _lists(
            [masks.original_ids_M for _, masks in blocks], counts_N, schema.field(3).type, id_dtype
        ),
        pa.array(pairs.label_N),
    ]
    batch = pa.RecordBatch.from_arrays(columns, schema=schema)
    statistics = statistics_of(
        pairs, lengths_N, [masks for _, masks in blocks], max_seq_length=rule.max_seq_length
    )
    return batch, statistics


def _masked_blocks(
    pairs: Pairs, framed_ids: NDArray[Any], *, rule: MaskingRule
) -> Iterator[tuple[Block, Masks]]:
    streams_N = draw(pairs.stream_N, MASKS)
    for begin in range(0, pairs.count, BLOCK_ROWS):
        rows = slice(begin, begin + BLOCK_ROWS)
        block = gather(pairs, rows, framed_ids)
        yield block, mask_tokens(block, streams_N[rows], rule=rule)


def gather(pairs: Pairs, rows: slice, framed_ids: NDArray[Any]) -> Block:
    """[CLS] A [SEP] B [SEP] of some examples, or [CLS] A [SEP] where there is no B."""
    a_length_N, b_length_N = pairs.a_length_N[rows], pairs.b_length_N[rows]
    cls_place = len(framed_ids) - 2
    pieces_N5 = np.ones((len(a_length_N), 5), dtype=np.int64)
    pieces_N5[:, 1] = a_length_N
    pieces_N5[:, 3] = b_length_N
    pieces_N5[:, 4] = b_length_N > 0
    sources_N5 = np.full_like(pieces_N5, cls_place + 1)
    sources_N5[:, 0] = cls_place
    sources_N5[:, 1] = pairs.a_start_N[rows]
    sources_N5[:, 3] = pairs.b_start_N[rows]
    piece_ends = np.cumsum(pieces_N5.ravel())
    # each token's source is its own place plus its piece's shift
    shifts = sources_N5.ravel() - piece_ends + pieces_N5.ravel()
    places = np.repeat(shifts, pieces_N5.ravel())
    places += np.arange(len(places))
    return Block(
        input_ids=framed_ids.take(places, mode="clip"),
        offsets_N1=np.concatenate([[0], piece_ends[4::5]]),
        a_length_N=a_length_N,
        b_length_N=b_length_N,
    )


def _lists(
    parts: list[NDArray[Any]], lengths_N: Int64s, form: pa.DataType, dtype: Any
) -> pa.ListArray:
    values = np.concatenate(parts) if parts else np.zeros(0, dtype)
    offsets = np.zeros(len(lengths_N) + 1, dtype=np.int32)
    np.cumsum(lengths_N, out=offsets[1:])
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=form)
