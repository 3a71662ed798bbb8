"""Cutting a global batch into every rank's micro-batches.

In:  the cost and length of each of its N examples, the ranks, a token budget.
Out: the rank and micro-batch of each example; every rank gets the same number of micro-batches.

Pure, so every rank computes the same cut and no rank has to be asked. Examples are dealt in order
of falling cost, to and fro: first to the ranks, then to a rank's micro-batches.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from artifacts.errors import UsageError
from model.config import EncoderConfig

Int64 = NDArray[np.int64]


@dataclass(frozen=True)
class CostModel:
    """Work of one example in units of one token's linear layers.

    Per layer and token, forward: 24 H² FLOPs in linear layers, 4 H S in attention over S keys;
    per masked token 2 H V in the vocabulary's logits.
    """

    attention: float
    masked: float

    @staticmethod
    def of(encoder: EncoderConfig, vocabulary_size: int) -> "CostModel":
        """The weights for one architecture."""
        width, layers = encoder.hidden_size, encoder.num_hidden_layers
        return CostModel(attention=1 / (6 * width), masked=vocabulary_size / (12 * layers * width))

    def __call__(self, lengths: Int64, masked_counts: Int64) -> NDArray[np.float64]:
        """Cost of each example, `[N]`."""
        costs: NDArray[np.float64] = (
            lengths * (1 + self.attention * lengths) + self.masked * masked_counts
        )
        return costs


@dataclass(frozen=True)
class Cut:
    """Who computes what: example i belongs to micro-batch `micro[i]` of rank `rank[i]`."""

    rank: Int64  # [N]
    micro: Int64  # [N]
    micro_batches: int
    order: Int64  # [N] the examples by falling cost

    def share(self, rank: int, micro: int) -> Int64:
        """The examples of one micro-batch, by falling cost; may be empty."""
        mine = (self.rank[self.order] == rank) & (self.micro[self.order] == micro)
        places: Int64 = self.order[mine]
        return places


def cut(lengths: Int64, costs: NDArray[np.float64], *, ranks: int, token_budget: int) -> Cut:
    """Deal N examples to `ranks` ranks so that no micro-batch exceeds `token_budget` tokens."""
    if len(lengths) and int(lengths.max()) > token_budget:
        raise UsageError(
            f"training.token_budget is {token_budget}, an example has {int(lengths.max())} tokens; "
            "raise it to at least the longest sequence length"
        )
    order = np.argsort(-costs, kind="stable")
    turn, rank_in_order = _deal(np.arange(len(order)), ranks)
    micro_batches = _fewest(lengths[order], rank_in_order, ranks=ranks, token_budget=token_budget)
    while True:
        micro_in_order = _deal(turn, micro_batches)[1]
        sums = _token_sums(lengths[order], rank_in_order, micro_in_order, micro_batches)
        if not len(sums) or int(sums.max()) <= token_budget:
            break
        micro_batches += 1
    rank, micro = np.empty_like(order), np.empty_like(order)
    rank[order], micro[order] = rank_in_order, micro_in_order
    return Cut(rank, micro, micro_batches, order)


def _deal(places: Int64, hands: int) -> tuple[Int64, Int64]:
    """The turn and the hand of each place when cards are dealt to and fro."""
    turn, hand = places // hands, places % hands
    return turn, np.where(turn % 2 == 0, hand, hands - 1 - hand)


def _fewest(lengths: Int64, rank: Int64, *, ranks: int, token_budget: int) -> int:
    tokens = np.bincount(rank, weights=lengths, minlength=ranks)
    return max(1, -(-int(tokens.max()) // token_budget))


def _token_sums(lengths: Int64, rank: Int64, micro: Int64, micro_batches: int) -> Int64:
    sums = np.bincount(rank * micro_batches + micro, weights=lengths)
    return sums.astype(np.int64)
