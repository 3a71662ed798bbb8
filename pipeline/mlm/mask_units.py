"""What is masked together: single tokens, whole words, or spans of words.

In:  a block of examples and the masking rule.
Out: the `Choice` of that rule, and with it the masked block.

Whole words follow the reference (do_whole_word_mask): words in random order, a word that would
exceed the budget is skipped. Spans follow SpanBERT (Joshi et al. 2020, section 3.1): geometric
lengths in words, p = 0.2, at most 10, and one fate for all tokens of a span.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from artifacts.rng import Int64s, UInt64s, below, draw, high_half, low_half
from pipeline.mlm.masking import Block, Choice, MaskingRule, Masks, choose_tokens, replace_tokens

# N examples, M predicted tokens, T text tokens of all examples, W words of all examples
SPAN_P = 0.2
LONGEST_SPAN = 10
_RANK_BITS = 16  # an example has fewer words than that

# counters of an example's stream, far above the number of spans or words
_FATES, _WORDS = 1 << 32, 1 << 33


@dataclass(frozen=True)
class Words:
    """The words of a block's text tokens: a token, and the `##` word-pieces after it."""

    token_offsets_W1: Int64s
    """Where each word begins among the text tokens, and after the last one their number."""

    offsets_N1: Int64s
    """The first word of each example, and after the last one their number."""

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
    """Mask the block by the configured unit."""
    choose = {"token": choose_tokens, "whole_word": choose_words, "span": choose_spans}
    return replace_tokens(block, choose[rule.config.unit](block, streams_N, rule=rule), rule=rule)


def words_of(
    block: Block, continuation_V: NDArray[np.bool_], *, segments_break_words: bool
) -> Words:
    """The block's words.

    In the reference a `##` word-piece at the very start of B, whose head was cut off, belongs to
    A's last word; with `segments_break_words` it is a word of its own.
    """
    text_offsets_N1 = _offsets(block.text_lengths_N)
    begins_T = ~continuation_V[block.input_ids[_is_text(block)]]
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


def choose_words(block: Block, streams_N: UInt64s, *, rule: MaskingRule) -> Choice:
    """Whole words until the budget is full; a word that does not fit is skipped for a later one."""
    words = words_of(block, rule.continuation_V, segments_break_words=False)
    order_W = _random_order(words, streams_N)
    words_N = np.diff(words.offsets_N1)
    chosen_W = np.zeros(len(order_W), dtype=bool)
    room_N = rule.budgets_N(block)
    step = 0
    # step by step all examples look at their next word
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
    return _choice(block, chosen, fate_M=high_half(bits_M), word_M=low_half(bits_M))


def choose_spans(block: Block, streams_N: UInt64s, *, rule: MaskingRule) -> Choice:
    """Spans of words from random tokens on until the budget is full; the last one may be cut."""
    words = words_of(block, rule.continuation_V, segments_break_words=True)
    span_T = np.full(words.token_offsets_W1[-1], -1)
    room_N = rule.budgets_N(block)
    step = 0
    while len(example := np.flatnonzero(room_N > 0)):
        bits = draw(streams_N[example], step)
        begin, end = _spans(block, words, example, bits=bits, span_T=span_T)
        _take(span_T, room_N, example, begin=begin, end=end, step=step)
        step += 1
    chosen = np.flatnonzero(span_T >= 0)
    stream_M = np.repeat(streams_N, block.text_lengths_N)[chosen]
    return _choice(
        block,
        chosen,
        fate_M=high_half(draw(stream_M, _FATES + span_T[chosen])),
        word_M=high_half(draw(stream_M, _WORDS + chosen)),
    )


def span_lengths(halves: UInt64s) -> Int64s:
    """Words of a span: 1 to 10, geometric, from 32 random bits each."""
    shares = (1 - SPAN_P) ** np.arange(LONGEST_SPAN)
    until = np.round(np.cumsum(shares / shares.sum()) * 2**32).astype(np.uint64)
    return 1 + np.searchsorted(until, halves, side="right")


def _random_order(words: Words, streams_N: UInt64s) -> Int64s:
    """The words of each example in random order, example after example.

    One sort does it: the key is the example, then random bits, then the word.
    """
    example_W = words.example_W
    rank_W = np.arange(len(example_W)) - words.offsets_N1[example_W]
    example_bits = max(len(streams_N) - 1, 1).bit_length()
    key_W = draw(streams_N[example_W], rank_W) >> np.uint64(example_bits)
    key_W |= example_W.astype(np.uint64) << np.uint64(64 - example_bits)
    key_W &= ~np.uint64((1 << _RANK_BITS) - 1)
    key_W |= rank_W.astype(np.uint64)
    key_W.sort()
    shuffled_W = (key_W & np.uint64((1 << _RANK_BITS) - 1)).astype(np.int64)
    return words.offsets_N1[example_W] + shuffled_W


def _spans(
    block: Block, words: Words, example: Int64s, *, bits: UInt64s, span_T: Int64s
) -> tuple[Int64s, Int64s]:
    """One span for each of the examples, within a segment; empty if its first token is taken."""
    text_begin = words.token_offsets_W1[words.offsets_N1[example]]
    anchor = text_begin + below(high_half(bits), block.text_lengths_N[example])
    word = np.searchsorted(words.token_offsets_W1, anchor, side="right") - 1
    second = words.second_N[example]
    segment_end = np.where(word < second, second, words.offsets_N1[example + 1])
    last = np.minimum(word + span_lengths(low_half(bits)), segment_end)
    begin = words.token_offsets_W1[word]
    return begin, np.where(span_T[anchor] < 0, words.token_offsets_W1[last], begin)


def _take(
    span_T: Int64s, room_N: Int64s, example: Int64s, *, begin: Int64s, end: Int64s, step: int
) -> None:
    """Give the free tokens from `begin` to `end` to span number `step`, as far as there is room."""
    sizes = end - begin
    row = np.repeat(np.arange(len(example)), sizes)
    token = np.arange(len(row)) + np.repeat(begin - np.cumsum(sizes) + sizes, sizes)
    free = np.flatnonzero(span_T[token] < 0)
    token, row = token[free], row[free]
    free_before_row = np.searchsorted(row, np.arange(len(example)))
    rank = np.arange(len(row)) - free_before_row[row]
    taken = rank < room_N[example][row]
    span_T[token[taken]] = step
    room_N[example] -= np.bincount(row[taken], minlength=len(example))


def _is_text(block: Block) -> NDArray[np.bool_]:
    text = np.ones(len(block.input_ids), dtype=bool)
    text[block.offsets_N1[:-1]] = False
    text[block.offsets_N1[:-1] + block.a_length_N + 1] = False
    text[block.offsets_N1[1:] - 1] = False
    return text


def _choice(block: Block, chosen: Int64s, *, fate_M: UInt64s, word_M: UInt64s) -> Choice:
    text_offsets_N1 = _offsets(block.text_lengths_N)
    chosen_until_N1 = np.searchsorted(chosen, text_offsets_N1)
    counts_N = np.diff(chosen_until_N1)
    return Choice(
        counts_N=counts_N,
        text_positions_M=chosen - np.repeat(text_offsets_N1[:-1], counts_N),
        fate_M=fate_M,
        word_M=word_M,
    )


def _offsets(counts: Int64s) -> Int64s:
    return np.concatenate([[0], np.cumsum(counts)])
