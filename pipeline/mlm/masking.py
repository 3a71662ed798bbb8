"""Which tokens are predicted, and what the encoder sees in their place, for many examples at once.

In:  a block of examples as one array of ids, and their streams of chance.
Out: `Masks`: the places and original ids of the predicted tokens; the ids are changed in place.

The count per example is exact, min(limit, max(1, round(0.15 * length))), with the length including
[CLS] and [SEP] and Python's rounding of halves to even (reference: create_masked_lm_predictions).
Of the predicted tokens 80 % become [MASK], 10 % a random word-piece of the whole vocabulary, which
may be the original one, and 10 % stay.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from artifacts.rng import Int64s, UInt64s, below, draw, high_half, low_half
from pipeline.config import MaskingConfig

# N examples, M predicted tokens of all of them, K predictions of the longest, V word-pieces


@dataclass(frozen=True)
class Block:
    """Examples [CLS] A [SEP] B [SEP] (or [CLS] A [SEP]), one after another in one array."""

    input_ids: NDArray[Any]
    """Ids of all examples."""

    offsets_N1: Int64s
    """Where each example begins in `input_ids`, and after the last one their end."""

    a_length_N: Int64s
    """Text tokens of the first segment."""

    b_length_N: Int64s
    """Text tokens of the second; 0 if there is none."""

    @property
    def lengths_N(self) -> Int64s:
        """Tokens of each example, special ones included."""
        return np.diff(self.offsets_N1)

    @property
    def text_lengths_N(self) -> Int64s:
        """Tokens of each example that may be predicted."""
        return self.a_length_N + self.b_length_N


@dataclass(frozen=True)
class Choice:
    """The tokens to predict, example by example, places ascending."""

    counts_N: Int64s
    """How many of each example."""

    text_positions_M: Int64s
    """Their places among the example's text tokens, counted without [CLS] and [SEP]."""

    fate_M: UInt64s
    """32 random bits each: whether [MASK], a random word-piece or the original is seen."""

    word_M: UInt64s | None = None
    """32 random bits each: which random word-piece; None: the fate tells that, too."""

    @property
    def example_M(self) -> Int64s:
        """The example each belongs to."""
        return np.repeat(np.arange(len(self.counts_N)), self.counts_N)


@dataclass(frozen=True)
class Masks:
    """The predicted tokens of a block, example by example, places ascending."""

    counts_N: Int64s
    """Predicted tokens of each example."""

    positions_M: NDArray[np.uint16]
    """Their places within the example."""

    original_ids_M: NDArray[Any]
    """What stood there."""

    masked: int
    """How many became [MASK]."""

    random: int
    """How many became a random word-piece."""


@dataclass(frozen=True)
class MaskingRule:
    """How many tokens are predicted, and what replaces them."""

    config: MaskingConfig
    """Shares and limits."""

    max_seq_length: int
    """Longest example."""

    mask_id: int
    """Id of [MASK]."""

    vocabulary_size: int
    """Random word-pieces come from [0, this)."""

    continuation_V: NDArray[np.bool_]
    """Which word-pieces go on with a word (`##`); read for whole words and spans only."""

    @property
    def max_predictions(self) -> int:
        """The limit per example."""
        configured = self.config.max_predictions_per_seq
        return configured or int(np.ceil(self.config.masked_lm_prob * self.max_seq_length))

    def budgets_N(self, block: Block) -> Int64s:
        """How many tokens of each example are to be predicted."""
        wanted_N = np.rint(block.lengths_N * self.config.masked_lm_prob).astype(np.int64)
        limit_N = np.minimum(block.text_lengths_N, self.max_predictions)
        budgets_N: Int64s = np.minimum(np.maximum(wanted_N, 1), limit_N)
        return budgets_N


def choose_tokens(block: Block, streams_N: UInt64s, *, rule: MaskingRule) -> Choice:
    """Single tokens, every set of the right size equally likely."""
    counts_N = rule.budgets_N(block)
    bits_NK = draw(streams_N[:, None], np.arange(counts_N.max(initial=0)))
    used_NK = np.arange(bits_NK.shape[1]) < counts_N[:, None]
    return Choice(
        counts_N=counts_N,
        text_positions_M=sample_without_replacement(
            high_half(bits_NK), block.text_lengths_N, counts_N
        ),
        fate_M=low_half(bits_NK[used_NK]),
    )


def sample_without_replacement(
    halves_NK: UInt64s, population_N: Int64s, counts_N: Int64s
) -> Int64s:
    """`counts` different numbers below `population` for each row, ascending, row after row.

    Floyd's algorithm (Bentley & Floyd 1987), one step for all rows at a time: step j draws t from
    [0, j] and takes t, or j itself if t is taken. Every subset is equally likely.
    """
    width = int(population_N.max(initial=1))
    taken = np.zeros(len(population_N) * width, dtype=bool)
    order = np.argsort(-counts_N, kind="stable")  # rows that still draw are then always the first
    row_start = order * width
    first_top = population_N[order] - counts_N[order]
    rows_at_step = np.searchsorted(-counts_N[order], -np.arange(halves_NK.shape[1]))
    for step, rows in enumerate(rows_at_step):
        top = first_top[:rows] + step
        drawn = halves_NK[order[:rows], step] * (top + 1).astype(np.uint64) >> np.uint64(32)
        place = row_start[:rows] + drawn.view(np.int64)
        taken[np.where(taken[place], row_start[:rows] + top, place)] = True
    return np.flatnonzero(taken) - np.repeat(np.arange(len(counts_N)) * width, counts_N)


def replace_tokens(block: Block, choice: Choice, *, rule: MaskingRule) -> Masks:
    """Put [MASK], a random word-piece or nothing new at the chosen places of `block.input_ids`."""
    example_M = choice.example_M
    behind_a_M = choice.text_positions_M >= block.a_length_N[example_M]
    positions_M = choice.text_positions_M + 1 + behind_a_M
    places_M = block.offsets_N1[example_M] + positions_M
    original_M = block.input_ids[places_M]
    mask_until = round(rule.config.mask_share * 2**32)
    random_until = round((rule.config.mask_share + rule.config.random_share) * 2**32)
    masked_M = choice.fate_M < np.uint64(mask_until)
    random = np.flatnonzero(~masked_M & (choice.fate_M < np.uint64(random_until)))
    new_M = np.where(masked_M, original_M.dtype.type(rule.mask_id), original_M)
    if choice.word_M is None:  # how far a fate lies within its share is uniform again
        within = (choice.fate_M[random] - np.uint64(mask_until)) * np.uint64(rule.vocabulary_size)
        new_M[random] = within // np.uint64(max(random_until - mask_until, 1))
    else:
        new_M[random] = below(choice.word_M[random], rule.vocabulary_size)
    block.input_ids[places_M] = new_M
    return Masks(
        counts_N=choice.counts_N,
        positions_M=positions_M.astype(np.uint16),
        original_ids_M=original_M,
        masked=int(np.count_nonzero(masked_M)),
        random=len(random),
    )
