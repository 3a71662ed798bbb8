"""CPU attention: a compiled kernel, or batched matrix products over groups of sequences.

In:  query, key, value of all tokens, [T, 3, A, K].
Out: context vectors, [T, A, K]; in the backward pass, the gradient of query, key and value.

The kernel (attention.c) works on the packed sequences in place, stores no scores, and computes only
the visible ones. Without a compiler, or with a wide head, one gather moves all tokens into groups
and another moves the results back (torch's fused CPU attention has no dropout). Each group is
padded to its longest member, inside attention only. A few groups keep the waste small: with
Wikipedia at 128 tokens, more than half of the sequences are full and need no padding.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from cloze.artifacts.arrays import starts_of
from cloze.model.config import EncoderConfig
from cloze.model.data.batch import PackedBatch, ladder, on
from cloze.model.encoder.operations.autograd import Context, apply
from cloze.model.encoder.operations.dropout import CPU, Draws, Noise, dropout_draws, dropping, keep_
from cloze.model.encoder.operations.native_kernels import Kernels, kernels
from cloze.model.encoder.operations.products import wide

# B sequences, G of them in a group, T tokens, A heads, K width of one head, S longest length of a
# group, R rows of all groups together: the sum of G * A * S

Lengths = npt.NDArray[np.int64]

MASKED = -10_000.0
"""Added to the scores of masked keys (modeling.py:712)."""

FAR = 1 << 30
"""Visible distance to each side if attention is not local."""

GROUP_COST = 100_000
"""Cost of another group per layer, in attention scores: a dozen more small operations."""

GRANULE = 16
"""The lengths of groups are multiples of this."""

WIDEST = 128
"""Largest head width that the kernel supports, `SIDE` in attention.c."""

GROUP_RUNGS, GROUP_PLACES = 4, 256
"""Group sizes per octave, and the minimum of sequences times length. Rounding sizes up costs only
attention, whereas oneDNN generates code for every new product shape."""


@dataclass(frozen=True)
class Group:
    """Sequences padded to a common length."""

    sequences: int  # G
    length: int  # S

    first_score: int
    """Offset of its G * A * S * S scores among those of all groups."""

    lengths: Lengths
    """[G]: the actual lengths; 0 for padding sequences."""

    starts: Lengths
    """[G]: the first token of each sequence; 0 for padding sequences."""

    @property
    def is_padded(self) -> bool:
        """Whether any member is shorter than the group."""
        return bool((self.lengths != self.length).any())


class Indices(NamedTuple):
    """The mapping between tokens and rows [group, sequence, head, position]; int64."""

    token_head_of_row: Tensor
    """[R]: token * A + head of each row. Padding repeats the last token of its sequence; padding
    sequences repeat the first token of the batch."""

    row_of_token_head: Tensor
    """[T * A]: the inverse mapping, without padding."""

    padding_rows: Tensor
    """[P]: rows that are padding."""


@dataclass(frozen=True)
class Grouping:
    """The groups, and for the path without the kernel, their indices."""

    groups: tuple[Group, ...]
    scores: int
    """Attention scores of all groups."""

    heads: int
    device: torch.device
    """Where the indices are."""

    @property
    def rows(self) -> int:
        """R."""
        return sum(self._rows)

    @property
    def _rows(self) -> list[int]:
        return [group.sequences * self.heads * group.length for group in self.groups]

    def split_rows(self, rows: Tensor) -> list[Tensor]:
        """Views of the rows [..., R, K] of each group: [..., G A, S, K]."""
        parts = zip(torch.split(rows, self._rows, dim=-2), self.groups, strict=True)
        return [
            part.view(*part.shape[:-2], -1, group.length, part.shape[-1]) for part, group in parts
        ]

    def split_scores(self, scores: Tensor) -> list[Tensor]:
        """Views of the scores of each group: [G A, S, S]."""
        sizes = [rows * group.length for rows, group in zip(self._rows, self.groups, strict=True)]
        parts = zip(torch.split(scores, sizes), self.groups, strict=True)
        return [part.view(-1, group.length, group.length) for part, group in parts]

    @cached_property
    def indices(self) -> Indices:
        """The mapping between tokens and rows, built when it is first used."""
        token_heads, padding = [], []
        every_head = np.arange(self.heads)[None, :, None]
        # [1, A, 1]
        for group in self.groups:
            places, last = np.arange(group.length), np.maximum(group.lengths - 1, 0)
            # [G, S] → [G, A, S]: the tokens of each sequence, the last one repeated, for all heads.
            tokens = group.starts[:, None] + np.minimum(places, last[:, None])
            token_heads.append((tokens[:, None] * self.heads + every_head).ravel())
            outside = places >= group.lengths[:, None]
            padding.append(np.repeat(outside, self.heads, axis=0).ravel())
        token_head_of_row, is_padding = np.concatenate(token_heads), np.concatenate(padding)
        filled = np.flatnonzero(~is_padding)
        # Every row that is not padding belongs to one token and head, so this inverts the mapping.
        row_of_token_head = np.empty(len(filled), np.int64)
        row_of_token_head[token_head_of_row[filled]] = filled
        found = (token_head_of_row, row_of_token_head, np.flatnonzero(is_padding))
        return Indices(*(on(self.device, torch.from_numpy(each)) for each in found))

    @cached_property
    def gather_index(self) -> Tensor:
        """[3 R]: index of the query, key and value of every row in [T, 3, A]."""
        token_head = self.indices.token_head_of_row
        # token * 3 A + head, the query's place, from token * A + head; key and value are A and 2 A
        # later.
        first = token_head // self.heads * (2 * self.heads) + token_head
        return torch.cat((first, first + self.heads, first + 2 * self.heads))

    @cached_property
    def scatter_index(self) -> Tensor:
        """[T * 3 * A]: index of the query, key and value of every token in [3, R]."""
        row = self.indices.row_of_token_head.view(-1, 1, self.heads)
        return torch.cat((row, row + self.rows, row + 2 * self.rows), dim=1).view(-1)


def group_sequences(lengths: Lengths, *, heads: int, device: torch.device = CPU) -> Grouping:
    """Sort the sequences by length, and split them where it saves most.

    G and S are rounded up to short ladders, so that few product shapes occur: a group is filled
    with the next shorter sequences, the last one with empty sequences.
    """
    order = np.argsort(-lengths, kind="stable")
    starts = starts_of(lengths)
    groups: list[Group] = []
    score = taken = 0
    for end in (*cuts(lengths[order], heads=heads), len(order)):
        # Rounding up an earlier group has already taken sequences from beyond its end.
        if end <= taken:
            continue
        # S: the group's longest length. G: at least so large that G S reaches `GROUP_PLACES`.
        side = -(-int(lengths[order[taken]]) // GRANULE) * GRANULE
        size = ladder(end - taken, rungs=GROUP_RUNGS, step=max(1, GROUP_PLACES // side))
        members = order[taken : taken + size]
        taken += len(members)
        # Where the sequences run out, empty ones fill the group.
        empty = (0, size - len(members))
        own, first = np.pad(lengths[members], empty), np.pad(starts[members], empty)
        groups.append(Group(size, side, score, own, first))
        score += size * heads * side**2
    return Grouping(tuple(groups), score, heads, device)


def cuts(descending: Lengths, *, heads: int) -> list[int]:
    """Where to split descending lengths to minimise scores plus the cost of groups."""
    # Cutting between sequences that round up to the same length would add a group and save next to
    # nothing, so only the places where the rounded length changes are candidates: at most 32
    # lengths for 512 tokens, however large the batch.
    granules = -(-descending // GRANULE)
    edges = [0, *(np.flatnonzero(np.diff(granules)) + 1).tolist(), len(descending)]
    # Dynamic programming over these edges. best[e]: the least cost of the sequences before edge e;
    # cut_before[e]: the edge where its last group begins. What follows an edge costs the same
    # however the sequences before it are grouped, so the best grouping up to an edge is the best
    # one up to some earlier edge and one more group, whose members are all padded to its first, the
    # longest.
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
    # Follow the last groups back to edge 0, which is the beginning and no cut.
    found = []
    edge = cut_before[-1]
    while edge:
        found.append(edges[edge])
        edge = cut_before[edge]
    return found[::-1]


def attention_kernel(device: torch.device, dtype: torch.dtype, *, width: int) -> Kernels | None:
    """The compiled kernels, if they support heads of this width."""
    return kernels(dtype) if device.type == "cpu" and width <= WIDEST else None


Kept = tuple[Tensor, ...]
"""Saved for the backward pass. By the kernel: query, key and value [T, 3, A, K], the context
vectors, and the log-sum-exps [A, T]. Otherwise: query, key and value in groups [3, R, K], and the
attention probabilities of all groups before and after dropout, unscaled."""


Attend = Callable[[Tensor, Noise | None], Tensor]
"""Query, key and value [T, 3, A, K] → context vectors [T, A, K]; dropout if there is noise."""


def angles(
    batch: PackedBatch, config: EncoderConfig, theta: float | None
) -> tuple[Tensor | None, Tensor | None]:
    """Cosine and sine, [T, K / 2], of rotary positions (RoPE; Su et al. 2021), if these are used.

    Queries and keys are rotated by their positions, so their product depends on the distance alone.
    """
    if theta is None or config.positions == "learned":
        return None, None
    width = config.hidden_size // config.num_attention_heads
    pairs = torch.arange(0, width, 2, dtype=torch.float, device=batch.position_ids.device)
    # position / theta^(2 i / K) for pair i
    angles_TK = batch.position_ids.float()[:, None] * (1.0 / theta ** (pairs / width))
    return angles_TK.cos(), angles_TK.sin()


def rotated(parts_T3AK: Tensor, cosine_TK: Tensor | None, sine_TK: Tensor | None) -> Tensor:
    """Queries and keys rotated by the angles of each token, one for each of K / 2 pairs, if any."""
    if cosine_TK is None or sine_TK is None:
        return parts_T3AK
    # Pairs are (i, i + K / 2), not neighbours.
    first, second = wide(parts_T3AK[:, :2]).chunk(2, dim=-1)
    cosine, sine = cosine_TK[:, None, None], sine_TK[:, None, None]
    turned = (first * cosine - second * sine, second * cosine + first * sine)
    turned_T2AK = torch.cat(turned, dim=-1).to(parts_T3AK.dtype)
    return torch.cat((turned_T2AK, parts_T3AK[:, 2:]), dim=1)


def sight_of(config: EncoderConfig, *, reach: int | None = None) -> tuple[int, int]:
    """Tokens before and after itself that a query sees.

    An encoder that reads right to left sees none before it.
    """
    far = FAR if reach is None else reach
    return (
        0 if config.attention_direction == "right_to_left" else far,
        0 if config.attention_direction == "left_to_right" else far,
    )


class GroupedAttention:
    """The attention of one batch, for all layers."""

    def __init__(
        self,
        batch: PackedBatch,
        config: EncoderConfig,
        *,
        reach: int | None = None,
        theta: float | None = None,
    ) -> None:
        """`reach`: visible distance to each side; groups still compute all scores.

        `theta`: base of rotary positions.
        """
        self.heads = config.num_attention_heads
        self.sight = sight_of(config, reach=reach)
        self.dropout_prob = config.attention_probs_dropout_prob
        self.width = config.hidden_size // config.num_attention_heads
        self.factor = 1 / math.sqrt(self.width)
        self.device = batch.input_ids.device
        self.lengths = batch.lengths
        self.cosine, self.sine = angles(batch, config, theta)
        # [4, B]: first token and length of each sequence.
        starts, unused = starts_of(self.lengths), np.zeros_like(self.lengths)
        # As `_drawn_places`, without dropout.
        self._places = torch.from_numpy(np.stack((starts, self.lengths, unused, unused)))

    def __call__(self, parts_T3AK: Tensor, noise: Noise | None) -> Tensor:
        """Context vectors, [T, A, K]."""
        if self.kernel(parts_T3AK) is None:  # the kernel rotates by itself
            parts_T3AK = rotated(parts_T3AK, self.cosine, self.sine)
        return apply(_Attention, parts_T3AK, self, self.draw(noise))

    @cached_property
    def grouping(self) -> Grouping:
        """The groups; the kernel uses them only to number its scores for dropout."""
        return group_sequences(self.lengths, heads=self.heads, device=self.device)

    def draw(self, noise: Noise | None) -> Draws | None:
        """The dropout of the attention probabilities of one layer."""
        if noise is None or self.dropout_prob == 0.0:
            return None
        return dropout_draws(
            noise, self.grouping.scores, probability=self.dropout_prob, device=self.device
        )

    def kernel(self, tensor_TAK: Tensor) -> Kernels | None:
        """The compiled kernels, if they support these vectors."""
        return attention_kernel(tensor_TAK.device, tensor_TAK.dtype, width=self.width)

    def forward(self, parts_T3AK: Tensor, draws: Draws | None) -> tuple[Tensor, Kept]:
        """Context vectors, [T, A, K], and the tensors saved for the backward pass."""
        native = self.kernel(parts_T3AK)
        if native is None:
            return self.torch_forward(parts_T3AK, draws)
        parts_T3AK = parts_T3AK.contiguous()
        context_TAK = torch.empty_like(parts_T3AK[:, 0])
        log_sums_AT = torch.empty(self.heads, len(parts_T3AK))
        # For the backward pass, the log of each softmax's denominator, float32: with it the
        # probabilities are computed again, so that no scores are stored.
        arguments = self._arguments(parts_T3AK, draws)
        native("attention_forward", *arguments, context_TAK, log_sums_AT)
        return context_TAK, (parts_T3AK, context_TAK, log_sums_AT)

    def backward(self, gradient_TAK: Tensor, kept: Kept, draws: Draws | None) -> Tensor:
        """Gradient of query, key and value, [T, 3, A, K]."""
        native = self.kernel(gradient_TAK)
        if native is None:
            return self.torch_backward(gradient_TAK, kept, draws)
        parts_T3AK, context_TAK, log_sums_AT = kept
        dparts_T3AK = torch.empty_like(parts_T3AK)
        native(
            "attention_backward",
            *(*self._arguments(parts_T3AK, draws), context_TAK, log_sums_AT),
            *(gradient_TAK.contiguous(), dparts_T3AK),
        )
        return dparts_T3AK

    def _arguments(
        self, parts_T3AK: Tensor, draws: Draws | None
    ) -> tuple[Tensor | float | None, ...]:
        """The arguments common to the forward and the backward kernel."""
        places = self._places if draws is None else self._drawn_places
        return (
            *(places.shape[1], self.heads, self.width, places, len(parts_T3AK)),
            *(*self.sight, parts_T3AK, self.cosine, self.sine, *dropping(draws)),
        )

    @cached_property
    def _drawn_places(self) -> Tensor:
        """[4, B]: first token, length, number of the first score, score numbers per query."""
        columns = []
        # The kernel numbers a score by where the groups of the other form would keep it, so that
        # both forms draw the same bits for it.
        for group in self.grouping.groups:
            of_sequence = self.heads * group.length**2
            numbers = group.first_score + of_sequence * np.arange(group.sequences)
            sides = np.full(group.sequences, group.length)
            columns.append(np.stack((group.starts, group.lengths, numbers, sides)))
        return torch.from_numpy(np.concatenate(columns, axis=1))

    def torch_forward(self, parts_T3AK: Tensor, draws: Draws | None) -> tuple[Tensor, Kept]:
        """`forward` without the kernel."""
        grouping, scale = self.grouping, dropping(draws)[-1]
        tokens, _, heads, width = parts_T3AK.shape
        rows_3RK = parts_T3AK.reshape(-1, width).index_select(0, grouping.gather_index)
        # [3, R, K]
        rows_3RK = rows_3RK.view(3, -1, width)
        parts = grouping.split_rows(rows_3RK)
        # One buffer for the scores of all groups, of which `scores` are views: a single pass of
        # random bits serves them all.
        weights = rows_3RK.new_empty(grouping.scores)
        for group, (query, key, _), scores in zip(
            grouping.groups, parts, grouping.split_scores(weights), strict=True
        ):
            scaled_product(query, key.mT, self.factor, out=scores)
            if group.is_padded or self.sight != (FAR, FAR):
                shape = (group.sequences, heads, group.length, group.length)
                scores.view(shape).add_(on(self.device, visibility(group, self.sight)))
            torch.softmax(scores, -1, out=scores)
        # Only zeros are set here; the kept ones' scale is a factor of the next product.
        dropped = weights if draws is None else keep_(weights.clone(), draws.mask())
        context_RK = torch.empty_like(rows_3RK[0])
        for (_, _, value), scores, context in zip(
            parts, grouping.split_scores(dropped), grouping.split_rows(context_RK), strict=True
        ):
            scaled_product(scores, value, scale, out=context)
        context_TAK = context_RK.index_select(0, grouping.indices.row_of_token_head)
        return context_TAK.view(tokens, heads, width), (rows_3RK, weights, dropped)

    def torch_backward(self, gradient_TAK: Tensor, kept: Kept, draws: Draws | None) -> Tensor:
        """`backward` without the kernel."""
        grouping, width, scale = self.grouping, gradient_TAK.shape[-1], dropping(draws)[-1]
        rows_3RK, weights, dropped = kept
        index = grouping.indices.token_head_of_row
        gradient_RK = gradient_TAK.reshape(-1, width).index_select(0, index)
        # Padding rows repeat a token, whose gradient would otherwise count more than once.
        gradient_RK.index_fill_(0, grouping.indices.padding_rows, 0.0)
        drows_3RK, dweights = torch.empty_like(rows_3RK), torch.empty_like(weights)
        parts, dparts = grouping.split_rows(rows_3RK), grouping.split_rows(drows_3RK)
        gradients, dscores = grouping.split_rows(gradient_RK), grouping.split_scores(dweights)
        for (_, _, value), (_, _, dvalue), gradient, scores, of_scores in zip(
            parts, dparts, gradients, grouping.split_scores(dropped), dscores, strict=True
        ):
            # Through the product with the values: first theirs, then that of the weights after
            # dropout.
            scaled_product(scores.mT, gradient, scale, out=dvalue)
            scaled_product(gradient, value.mT, scale, out=of_scores)
        if draws is not None:
            keep_(dweights, draws.mask())
        for (query, key, _), (dquery, dkey, _), scores, of_scores in zip(
            parts, dparts, grouping.split_scores(weights), dscores, strict=True
        ):
            # Through softmax, with the weights before dropout, and the product of queries and keys.
            dproduct = torch._softmax_backward_data(of_scores, scores, -1, weights.dtype)
            scaled_product(dproduct, key, self.factor, out=dquery)
            scaled_product(dproduct.mT, query, self.factor, out=dkey)
        dparts_RK = drows_3RK.view(-1, width).index_select(0, grouping.scatter_index)
        return dparts_RK.view(-1, 3, self.heads, width)


def visibility(group: Group, sight: tuple[int, int]) -> Tensor:
    """float32 [G, 1, 1 or S, S]: 0 where a query sees a key, else `MASKED`."""
    places = torch.arange(group.length)
    visible = (places < torch.from_numpy(group.lengths)[:, None])[:, None, None, :]
    if sight != (FAR, FAR):
        # Signed distance from query to key, [S, S].
        ahead = places - places[:, None]
        visible = visible & (ahead >= -sight[0]) & (ahead <= sight[1])
    return torch.zeros(visible.shape).masked_fill(~visible, MASKED)


def scaled_product(
    left: Tensor, right: Tensor, factor: float, *, out: Tensor | None = None
) -> Tensor:
    """Batched product times `factor`, written into `out` if given."""
    if out is None:
        out = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    return torch.baddbmm(out, left, right, beta=0, alpha=factor, out=out)


class _Context(Context):
    attention: GroupedAttention
    draws: Draws | None


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context, parts_T3AK: Tensor, attention: GroupedAttention, draws: Draws | None
    ) -> Tensor:
        context_TAK, kept = attention.forward(parts_T3AK, draws)
        ctx.save_for_backward(*kept)
        ctx.attention, ctx.draws = attention, draws
        return context_TAK

    @staticmethod
    def backward(ctx: _Context, gradient_TAK: Tensor) -> tuple[Tensor, None, None]:
        return ctx.attention.backward(gradient_TAK, ctx.saved_tensors, ctx.draws), None, None
