"""Full examples: stretches of several documents side by side in each.

In:  a copy's examples of one document each, in random order.
Out: examples of several, masks and all.

Best fit, longest first (Johnson 1974; Krell et al. 2022 for BERT): a stretch goes where the least
room is that is enough. Nothing is cut for it, so a document that fits into an example is never in
two. The short stretches of a corpus fill what the long ones leave.
"""

import numpy as np
import pyarrow as pa

from artifacts.arrays import Int64s, list_array, offsets
from artifacts.tables import DOCUMENT_LENGTHS_FIELD

# N stretches, E examples of several stretches


def fill_examples(lengths_N: Int64s, max_seq_length: int) -> tuple[Int64s, Int64s]:
    """The stretches in the order of the examples, (N,), and how many each example has, (E,).

    An example stands where its longest stretch stood, so random order stays random.
    """
    longest_first_N = np.argsort(-lengths_N, kind="stable")
    example_of: list[int] = []
    examples_with_room: list[list[int]] = [[] for _ in range(max_seq_length + 1)]
    # A Python integer as a set of those lengths of which there is room: the least one that is
    # enough is its lowest bit after a shift.
    rooms = 0
    examples = 0
    for length in lengths_N[longest_first_N].tolist():
        enough = rooms >> length
        if enough:
            room = length + (enough & -enough).bit_length() - 1
            example = examples_with_room[room].pop()
            if not examples_with_room[room]:
                rooms ^= 1 << room
        else:
            room, example = max_seq_length, examples
            examples += 1
        example_of.append(example)
        left = room - length
        if not examples_with_room[left]:
            rooms |= 1 << left
        examples_with_room[left].append(example)
    example_N = np.array(example_of, dtype=np.int64)
    _, first_E = np.unique(example_N, return_index=True)
    rank_E = np.argsort(np.argsort(longest_first_N[first_E]))
    rank_N = rank_E[example_N]
    return longest_first_N[np.argsort(rank_N, kind="stable")], np.bincount(rank_N)


def packed(batch: pa.RecordBatch, counts_E: Int64s) -> pa.RecordBatch:
    """So many rows in turn as one: the same tokens and masks, with the length of each document."""
    rows_E1 = offsets(counts_E)
    ids, positions, originals = (batch.column(index) for index in (0, 2, 3))
    starts_N1, masked_starts_N1 = (lists.offsets.to_numpy() for lists in (ids, positions))
    starts_E1 = starts_N1[rows_E1]
    before_N = starts_N1[:-1] - np.repeat(starts_E1[:-1], counts_E)
    moved_M = positions.values.to_numpy() + np.repeat(before_N, np.diff(masked_starts_N1))
    masked_ends_E = masked_starts_N1[rows_E1[1:]]
    schema = batch.schema.append(DOCUMENT_LENGTHS_FIELD)
    columns = [
        list_array(ids.values.to_numpy(), starts_E1[1:], ids.type),
        pa.array(np.diff(starts_E1).astype(np.uint16)),
        list_array(moved_M.astype(np.uint16), masked_ends_E, positions.type),
        list_array(originals.values.to_numpy(), masked_ends_E, originals.type),
        batch.column(4).take(pa.array(rows_E1[:-1])),
        list_array(np.diff(starts_N1).astype(np.uint32), rows_E1[1:], schema.field(5).type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
