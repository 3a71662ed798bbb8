"""Choice and replacement of masked tokens, vectorised over many examples.

In:  a block of examples as one array of ids, and their streams of random numbers.
Out: `Masks`: positions and original ids of the predicted tokens; the ids are replaced in place.

The number per example is exact: min(limit, max(1, round(0.15 * length))), where the length includes
[CLS] and [SEP] and halves round to even as in Python (reference: create_masked_lm_predictions). Of
the predicted tokens 80 % become [MASK], 10 % a random word-piece of the whole vocabulary (possibly
the original), and 10 % stay unchanged.

The unit of masking is a token, a whole word or a span. Whole words follow the reference
(do_whole_word_mask): words in random order, skipping those that would exceed the budget. Spans
follow SpanBERT (Joshi et al. 2020, section 3.1): geometric lengths in words with p = 0.2, at most
10, and the same replacement for all tokens of a span.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from cloze.artifacts.arrays import (
    Int64s,
    Mask,
    TokenIds,
    UInt64s,
    offsets_of,
    starts_of,
)
from cloze.artifacts.rng import Replacement, below, draw, high_half, low_half
from cloze.pipeline.config.settings import MaskingConfig

# N examples, M masked tokens of all examples, K most masked tokens in one example, T text tokens of
# all examples, W words of all examples, V word-pieces
SPAN_P = 0.2
LONGEST_SPAN = 10
_RANK_BITS = 16  # an example has fewer than 2**16 words

# counters of an example's stream, far above the number of spans or words
_FATES, _WORDS = 1 << 32, 1 << 33


@dataclass(frozen=True)
class Block:
    """Examples [CLS] A [SEP] B [SEP] (or [CLS] A [SEP]), concatenated in one array."""

    input_ids: TokenIds
    """Ids of all examples."""

    offsets_N1: Int64s
    """Start of each example in `input_ids`, then the end of the last."""

    a_length_N: Int64s
    """Text tokens of the first segment."""

    b_length_N: Int64s
    """Text tokens of the second segment; 0 if there is none."""

    @property
    def lengths_N(self) -> Int64s:
        """Tokens of each example, including special ones."""
        return np.diff(self.offsets_N1)

    @property
    def text_lengths_N(self) -> Int64s:
        """Text tokens of each example, which may be predicted."""
        return self.a_length_N + self.b_length_N


@dataclass(frozen=True)
class Masks:
    """The predicted tokens of a block, ordered by example and position."""

    counts_N: Int64s
    """Number per example."""

    positions_M: NDArray[np.uint16]
    """Positions in the example."""

    original_ids_M: TokenIds
    """Ids before masking."""

    masked: int
    """Number replaced by [MASK]."""

    random: int
    """Number replaced by a random word-piece."""


@dataclass(frozen=True)
class MaskingRule:
    """How many tokens are predicted, and how they are replaced."""

    config: MaskingConfig
    """Shares and limits."""

    max_seq_length: int
    """Longest example."""

    mask_id: int
    """Id of [MASK]."""

    vocabulary_size: int
    """Random word-pieces are drawn from [0, vocabulary_size)."""

    continuation_V: Mask
    """Which word-pieces continue a word (`##`); only for whole words and spans."""

    @property
    def replacement(self) -> Replacement:
        """What replaces the predicted tokens."""
        config = self.config
        return Replacement(
            self.mask_id, self.vocabulary_size, config.mask_share, config.random_share
        )

    @property
    def max_predictions(self) -> int:
        """Most predictions per example."""
        configured = self.config.max_predictions_per_seq
        return configured or int(np.ceil(self.config.masked_lm_prob * self.max_seq_length))

    def budgets_N(self, block: Block) -> Int64s:
        """Number of tokens to predict in each example."""
        wanted_N = np.rint(block.lengths_N * self.config.masked_lm_prob).astype(np.int64)
        limit_N = np.minimum(block.text_lengths_N, self.max_predictions)
        budgets_N: Int64s = np.minimum(np.maximum(wanted_N, 1), limit_N)
        return budgets_N


@dataclass(frozen=True)
class Words:
    """The words of a block: a token and the `##` word-pieces after it."""

    token_offsets_W1: Int64s
    """Start of each word among the text tokens, then the number of tokens."""

    offsets_N1: Int64s
    """The first word of each example, then the number of words."""

    second_N: Int64s
    """The first word of each example's second segment."""

    @property
    def sizes_W(self) -> Int64s:
        """Tokens of each word."""
        return np.diff(self.token_offsets_W1)

    @property
    def example_W(self) -> Int64s:
        """The example of each word."""
        return np.repeat(np.arange(len(self.second_N)), np.diff(self.offsets_N1))


def mask_tokens(block: Block, streams_N: UInt64s, *, rule: MaskingRule) -> Masks:
    """Mask a block: choose tokens by the configured unit, and replace them by their fates."""
    mask = {"token": mask_single_tokens, "whole_word": mask_words, "span": mask_spans}
    return mask[rule.config.unit](block, streams_N, rule=rule)


class _Draws(NamedTuple):
    """32 random bits each for M chosen tokens."""

    fates_M: UInt64s
    """For what replaces a token."""
    words_M: UInt64s | None = None
    """For a random word-piece; None if those of its fate also choose it."""


def _masked(
    block: Block,
    rule: MaskingRule,
    counts_N: Int64s,
    text_positions_M: Int64s,
    draws: _Draws,
) -> Masks:
    """Replace the chosen tokens in place.

    text_positions_M: positions among the text tokens of an example, not counting [CLS] and [SEP].
    """
    example_M = np.repeat(np.arange(len(counts_N)), counts_N)
    # A position in the text becomes one in the example: behind [CLS], and for B behind A's [SEP].
    behind_a_M = text_positions_M >= block.a_length_N[example_M]
    positions_M = text_positions_M + 1 + behind_a_M
    places_M = block.offsets_N1[example_M] + positions_M
    original_M = block.input_ids[places_M]
    drawn_M = None if draws.words_M is None else below(draws.words_M, rule.vocabulary_size)
    # 80 / 10 / 10 of the paper, or as configured.
    new_M, masked_M, random_M = rule.replacement(original_M, draws.fates_M, drawn_M, bits=32)
    block.input_ids[places_M] = new_M
    return Masks(
        counts_N=counts_N,
        positions_M=positions_M.astype(np.uint16),
        original_ids_M=original_M,
        masked=int(np.count_nonzero(masked_M)),
        random=int(np.count_nonzero(random_M)),
    )


def mask_single_tokens(block: Block, streams_N: UInt64s, *, rule: MaskingRule) -> Masks:
    """Mask single tokens; every subset of the right size is equally likely."""
    counts_N = rule.budgets_N(block)
    # 64 bits per prediction: the upper half chooses the token, the lower one its replacement.
    bits_NK = draw(streams_N[:, None], np.arange(counts_N.max(initial=0)))
    used_NK = np.arange(bits_NK.shape[1]) < counts_N[:, None]
    positions_M = sample_without_replacement(high_half(bits_NK), block.text_lengths_N, counts_N)
    return _masked(block, rule, counts_N, positions_M, _Draws(low_half(bits_NK[used_NK])))


def sample_without_replacement(
    halves_NK: UInt64s, population_N: Int64s, counts_N: Int64s
) -> Int64s:
    """For each row `counts` distinct numbers below `population`, ascending, concatenated by row.

    Floyd's algorithm (Bentley & Floyd 1987), one step for all rows at a time: step j draws t from
    [0, j] and takes t, or j if t is taken already. Every subset is equally likely.
    """
    # One flat row of `width` flags per example.
    width = int(population_N.max(initial=1))
    taken = np.zeros(len(population_N) * width, dtype=bool)
    order = np.argsort(-counts_N, kind="stable")  # so that the rows still drawing come first
    row_start = order * width
    # Floyd's j in the first step, so that it reaches population - 1 in an example's last one.
    first_top = population_N[order] - counts_N[order]
    rows_at_step = np.searchsorted(-counts_N[order], -np.arange(halves_NK.shape[1]))
    # `rows`: how many examples, in descending order of counts, still draw in this step
    for step, rows in enumerate(rows_at_step):
        top = first_top[:rows] + step
        drawn = halves_NK[order[:rows], step] * (top + 1).astype(np.uint64) >> np.uint64(32)
        place = row_start[:rows] + drawn.view(np.int64)
        taken[np.where(taken[place], row_start[:rows] + top, place)] = True
    # Flags in flat order are ascending within each row; subtract where the row begins.
    return np.flatnonzero(taken) - np.repeat(np.arange(len(counts_N)) * width, counts_N)


def words_of(block: Block, continuation_V: Mask, *, segments_break_words: bool) -> Words:
    """Group the block's tokens into words.

    If truncation leaves a `##` word-piece at the start of B, the reference adds it to A's last
    word; with `segments_break_words` it is a word of its own.
    """
    text_offsets_N1 = offsets_of(block.text_lengths_N)
    is_text = np.ones(len(block.input_ids), dtype=bool)
    # Text tokens: all but [CLS], the [SEP] after A (or the only one), and the last [SEP].
    is_text[block.offsets_N1[:-1]] = False  # [CLS]
    is_text[block.offsets_N1[:-1] + block.a_length_N + 1] = False
    is_text[block.offsets_N1[1:] - 1] = False  # the last [SEP]
    begins_T = ~continuation_V[block.input_ids[is_text]]
    # The first text token of an example begins a word even if it is a `##` piece, which truncation
    # can leave there.
    begins_T[text_offsets_N1[:-1][block.text_lengths_N > 0]] = True
    second_N = text_offsets_N1[:-1] + block.a_length_N
    if segments_break_words:
        begins_T[second_N[block.b_length_N > 0]] = True
    begins = np.append(np.flatnonzero(begins_T), len(begins_T))
    return Words(
        token_offsets_W1=begins,
        offsets_N1=np.searchsorted(begins, text_offsets_N1),
        second_N=np.searchsorted(begins, second_N),
    )


def mask_words(block: Block, streams_N: UInt64s, *, rule: MaskingRule) -> Masks:
    """Mask random words until the budget is spent, skipping those that do not fit."""
    words = words_of(block, rule.continuation_V, segments_break_words=False)
    # one sort key per word, from the top: example, random bits, the word's rank in its example
    # a single sort shuffles the words within each example: by example, then random bits, then word
    example_W = words.example_W
    rank_W = np.arange(len(example_W)) - words.offsets_N1[example_W]
    example_bits = max(len(streams_N) - 1, 1).bit_length()
    key_W = draw(streams_N[example_W], rank_W) >> np.uint64(example_bits)
    key_W |= example_W.astype(np.uint64) << np.uint64(64 - example_bits)
    key_W &= ~np.uint64((1 << _RANK_BITS) - 1)
    key_W |= rank_W.astype(np.uint64)
    key_W.sort()
    shuffled_W = (key_W & np.uint64((1 << _RANK_BITS) - 1)).astype(np.int64)
    order_W = words.offsets_N1[example_W] + shuffled_W
    words_N = np.diff(words.offsets_N1)
    chosen_W = np.zeros(len(order_W), dtype=bool)
    room_N = rule.budgets_N(block)
    step = 0
    # in each step every example considers its next word
    while len(example := np.flatnonzero((words_N > step) & (room_N > 0))):
        word = order_W[words.offsets_N1[example] + step]
        size = words.sizes_W[word]
        fits = size <= room_N[example]
        chosen_W[word[fits]] = True
        room_N[example[fits]] -= size[fits]
        step += 1
    chosen = np.flatnonzero(np.repeat(chosen_W, words.sizes_W))
    example_M = np.repeat(np.arange(len(streams_N)), block.text_lengths_N)[chosen]
    bits_M = draw(streams_N[example_M], _FATES + chosen)
    return _mask_places(block, rule, chosen, fates_M=high_half(bits_M), words_M=low_half(bits_M))


def mask_spans(block: Block, streams_N: UInt64s, *, rule: MaskingRule) -> Masks:
    """Mask spans of words around random tokens until the budget is spent; the last may be cut."""
    # The span of each text token, by the number of the step that took it; -1: not masked.
    words = words_of(block, rule.continuation_V, segments_break_words=True)
    span_T = np.full(words.token_offsets_W1[-1], -1)
    room_N = rule.budgets_N(block)
    step = 0
    while len(example := np.flatnonzero(room_N > 0)):
        # one span per example, within a segment; empty if its anchor is taken
        # One draw for the anchor (upper half) and the length (lower half).
        bits = draw(streams_N[example], step)
        text_begin = words.token_offsets_W1[words.offsets_N1[example]]
        anchor = text_begin + below(high_half(bits), block.text_lengths_N[example])
        word = np.searchsorted(words.token_offsets_W1, anchor, side="right") - 1
        second = words.second_N[example]
        # The first word behind the anchor's segment: B's first word, or the next example's.
        segment_end = np.where(word < second, second, words.offsets_N1[example + 1])
        last = np.minimum(word + span_lengths(low_half(bits)), segment_end)
        begin = words.token_offsets_W1[word]
        end = np.where(span_T[anchor] < 0, words.token_offsets_W1[last], begin)
        # take its free tokens while there is room
        sizes = end - begin
        row = np.repeat(np.arange(len(example)), sizes)
        token = np.arange(len(row)) + np.repeat(begin - starts_of(sizes), sizes)
        free = np.flatnonzero(span_T[token] < 0)
        token, row = token[free], row[free]
        # The rank of each free token within its row, to stop where the row's budget ends.
        free_before_row = np.searchsorted(row, np.arange(len(example)))
        rank = np.arange(len(row)) - free_before_row[row]
        taken = rank < room_N[example][row]
        span_T[token[taken]] = step
        room_N[example] -= np.bincount(row[taken], minlength=len(example))
        step += 1
    chosen = np.flatnonzero(span_T >= 0)
    stream_M = np.repeat(streams_N, block.text_lengths_N)[chosen]
    return _mask_places(
        block,
        rule,
        chosen,
        fates_M=high_half(draw(stream_M, _FATES + span_T[chosen])),
        words_M=high_half(draw(stream_M, _WORDS + chosen)),
    )


def span_lengths(halves: UInt64s) -> Int64s:
    """Lengths of spans in words: 1 to 10, geometric, from 32 random bits each."""
    # Probability of length k is proportional to (1 - p)^(k - 1); upper bounds of the lengths'
    # ranges in 32 bits.
    shares = (1 - SPAN_P) ** np.arange(LONGEST_SPAN)
    until = np.round(np.cumsum(shares / shares.sum()) * 2**32).astype(np.uint64)
    return 1 + np.searchsorted(until, halves, side="right")


def _mask_places(
    block: Block, rule: MaskingRule, chosen: Int64s, *, fates_M: UInt64s, words_M: UInt64s
) -> Masks:
    """Replace the `chosen` tokens, ascending places among the text tokens of the whole block."""
    text_offsets_N1 = offsets_of(block.text_lengths_N)
    counts_N = np.diff(np.searchsorted(chosen, text_offsets_N1))
    positions_M = chosen - np.repeat(text_offsets_N1[:-1], counts_N)
    return _masked(block, rule, counts_N, positions_M, _Draws(fates_M, words_M))
