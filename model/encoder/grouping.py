"""Which sequences of a packed batch attend together.

In:  the lengths of the sequences.
Out: `Grouping`: groups of similar length and the index tensors that bring tokens there and back.

A group is padded to its longest member, inside attention only. Few groups waste little: with
Wikipedia at 128 tokens more than half of the sequences are full and need no padding at all.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

# B sequences, G of them in a group, T tokens, A heads, S longest length of a group,
# R rows of all groups together: the sum of G * A * S

Lengths = npt.NDArray[np.int64]

GROUP_COST = 50_000
"""What one more group costs per layer, in attention scores: launching a dozen small operations."""

GRANULE = 16
"""Lengths between two multiples are not told apart when groups are formed."""


@dataclass(frozen=True)
class Group:
    """Sequences that are padded to one length."""

    sequences: int
    """G."""

    length: int
    """S."""

    first_row: int
    """Where the group's rows begin among all R."""

    first_score: int
    """Where its scores begin among all groups' G * A * S * S."""

    lengths: Lengths
    """[G]: the members' own lengths."""

    @property
    def is_padded(self) -> bool:
        """Whether any member is shorter than the group."""
        return bool((self.lengths != self.length).any())


@dataclass(frozen=True)
class Grouping:
    """The groups, and the way from tokens to their rows [group, sequence, head, place] and back."""

    groups: tuple[Group, ...]
    scores: int
    """Attention scores of all groups."""

    heads: int
    """A."""

    token_head_of_row: Tensor
    """[R] int64: token * A + head of each row; padding repeats its sequence's last token."""

    row_of_token_head: Tensor
    """[T * A] int64: the inverse, without the padding."""

    padding_rows: Tensor
    """[P] int64: rows that are padding."""

    @property
    def rows(self) -> int:
        """R."""
        return self.token_head_of_row.shape[0]

    @cached_property
    def gather_index(self) -> Tensor:
        """[3 R]: where query, key and value of every row lie in the tokens' [T, 3, A]."""
        token = self.token_head_of_row // self.heads
        first = token * (2 * self.heads) + self.token_head_of_row
        return torch.cat((first, first + self.heads, first + 2 * self.heads))

    @cached_property
    def scatter_index(self) -> Tensor:
        """[T * 3 * A]: where query, key and value of every token lie in the rows' [3, R]."""
        row = self.row_of_token_head.view(-1, 1, self.heads)
        return torch.cat((row, row + self.rows, row + 2 * self.rows), dim=1).view(-1)

    def to(self, device: torch.device) -> "Grouping":
        """The same with its indices on `device`."""
        return Grouping(
            self.groups,
            self.scores,
            self.heads,
            self.token_head_of_row.to(device),
            self.row_of_token_head.to(device),
            self.padding_rows.to(device),
        )


def group_sequences(lengths: Lengths, *, heads: int) -> Grouping:
    """Sort by length, cut where it saves most, and index."""
    order = np.argsort(-lengths, kind="stable")
    starts = np.concatenate(([0], np.cumsum(lengths)))[:-1]
    groups, token_heads, padding = [], [], []
    row = score = 0
    for members in np.split(order, cuts(lengths[order], heads=heads)):
        group = Group(len(members), int(lengths[members[0]]), row, score, lengths[members])
        inside = np.arange(group.length) < group.lengths[:, None]
        tokens = starts[members][:, None] + np.minimum(
            np.arange(group.length), group.lengths[:, None] - 1
        )
        every_head = np.arange(heads)[None, :, None]
        token_heads.append((tokens[:, None] * heads + every_head).ravel())
        padding.append(np.repeat(~inside, heads, axis=0).ravel())
        groups.append(group)
        row += len(token_heads[-1])
        score += len(token_heads[-1]) * group.length
    token_head_of_row, is_padding = np.concatenate(token_heads), np.concatenate(padding)
    row_of_token_head = np.empty(int(lengths.sum()) * heads, np.int64)
    row_of_token_head[token_head_of_row[~is_padding]] = np.flatnonzero(~is_padding)
    return Grouping(
        tuple(groups),
        score,
        heads,
        torch.from_numpy(token_head_of_row),
        torch.from_numpy(row_of_token_head),
        torch.from_numpy(np.flatnonzero(is_padding)),
    )


def cuts(descending: Lengths, *, heads: int) -> list[int]:
    """Where to cut lengths that fall, so that scores plus the cost of groups are fewest."""
    granules = -(-descending // GRANULE)
    edges = [0, *(np.flatnonzero(np.diff(granules)) + 1).tolist(), len(descending)]
    best = [0.0]
    cut_before = [0]
    for end in range(1, len(edges)):
        costs = [
            best[begin]
            + GROUP_COST
            + heads * (edges[end] - edges[begin]) * int(descending[edges[begin]]) ** 2
            for begin in range(end)
        ]
        cut_before.append(int(np.argmin(costs)))
        best.append(min(costs))
    found = []
    edge = cut_before[-1]
    while edge:
        found.append(edges[edge])
        edge = cut_before[edge]
    return found[::-1]
