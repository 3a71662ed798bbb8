"""Masked tokens: exact counts, uniform choice, the shares of Table 8."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloze.artifacts.rng import document_streams, draw, high_half, stream_seed
from cloze.pipeline.config.settings import MaskingConfig
from cloze.pipeline.mlm.masking import (
    Block,
    MaskingRule,
    mask_tokens,
    sample_without_replacement,
    span_lengths,
    words_of,
)

CLS, SEP, MASK, WORDS = 1, 2, 3, 1000
CONTINUATION = np.arange(WORDS) % 4 == 3


def rule(max_seq_length=128, **config):
    return MaskingRule(
        config=MaskingConfig(**config),
        max_seq_length=max_seq_length,
        mask_id=MASK,
        vocabulary_size=WORDS,
        continuation_V=CONTINUATION,
    )


def streams(count, purpose="masking"):
    digests = np.arange(2 * count, dtype=np.uint64).reshape(-1, 2)
    return document_streams(digests, stream_seed(1, purpose))


def block_of(lengths, seed=0):
    """Examples with segments of the given lengths; b = 0 omits the second one."""
    rng = np.random.default_rng(seed)
    examples = []
    for a, b in lengths:
        second = [*rng.integers(4, WORDS, b).tolist(), SEP] if b else []
        examples.append([CLS, *rng.integers(4, WORDS, a).tolist(), SEP, *second])
    return Block(
        input_ids=np.array([i for example in examples for i in example], dtype=np.uint16),
        offsets_N1=np.cumsum([0, *map(len, examples)]),
        a_length_N=np.array([a for a, _ in lengths]),
        b_length_N=np.array([b for _, b in lengths]),
    )


def per_example(block, masks):
    ends = np.cumsum(masks.counts_N)
    for row, end in enumerate(ends):
        chosen = slice(end - masks.counts_N[row], end)
        ids = block.input_ids[block.offsets_N1[row] : block.offsets_N1[row + 1]]
        yield ids, masks.positions_M[chosen], masks.original_ids_M[chosen]


segment_lengths = st.lists(
    st.tuples(st.integers(1, 60), st.integers(0, 60)), min_size=1, max_size=20
)


@pytest.mark.parametrize("unit", ["token", "whole_word", "span"])
@settings(max_examples=50)
@given(lengths=segment_lengths)
def test_predictions_are_text_in_order_and_the_rest_is_untouched(unit, lengths):
    block, before = block_of(lengths), block_of(lengths)
    masks = mask_tokens(block, streams(len(lengths)), rule=rule(unit=unit))
    for (ids, positions, originals), (a, b), begin in zip(
        per_example(block, masks), lengths, before.offsets_N1, strict=False
    ):
        source = before.input_ids[begin : begin + len(ids)]
        assert np.all(np.diff(positions.astype(int)) > 0)
        assert not {0, a + 1, *([a + b + 2] if b else [])} & set(positions.tolist())
        assert np.array_equal(originals, source[positions])
        kept = np.delete(np.arange(len(ids)), positions)
        assert np.array_equal(ids[kept], source[kept])


@pytest.mark.parametrize("unit", ["token", "span"])
@pytest.mark.parametrize("prob", [0.15, 0.4])
@pytest.mark.parametrize("max_predictions", [0, 5])
def test_the_number_of_predictions_is_exact(unit, prob, max_predictions):
    lengths = [(a, b) for a in range(1, 63) for b in (1, 7, 63)]
    block = block_of(lengths)
    config = {"masked_lm_prob": prob, "max_predictions_per_seq": max_predictions, "unit": unit}
    masks = mask_tokens(block, streams(len(lengths)), rule=rule(**config))
    limit = max_predictions or math.ceil(prob * 128)
    expected = [min(limit, max(1, round(prob * (a + b + 3))), a + b) for a, b in lengths]
    assert masks.counts_N.tolist() == expected


def test_halves_are_rounded_to_even_as_python_does():
    block = block_of([(7, 0), (15, 12), (23, 24)])  # lengths 9, 30, 50; 0.15 * 30 = 4.5, 7.5
    masks = mask_tokens(block, streams(3), rule=rule())
    assert masks.counts_N.tolist() == [1, 4, 8]


def test_one_token_per_segment_still_gives_a_prediction():
    masks = mask_tokens(block_of([(1, 1), (1, 0)]), streams(2), rule=rule())
    assert masks.counts_N.tolist() == [1, 1]


def test_every_set_of_places_is_equally_likely():
    rows = 60_000
    bits = draw(streams(rows)[:, None], np.arange(2))
    chosen = sample_without_replacement(high_half(bits), np.full(rows, 5), np.full(rows, 2))
    pairs = chosen.reshape(rows, 2)
    assert np.all(pairs[:, 0] < pairs[:, 1])
    counts = np.bincount(pairs[:, 0] * 5 + pairs[:, 1])
    seen = counts[counts > 0]
    assert len(seen) == 10
    assert np.all(np.abs(seen - rows / 10) < 5 * math.sqrt(rows / 10))


@pytest.mark.parametrize(
    ("mask", "random"), [(0.8, 0.1), (1.0, 0.0), (0.0, 1.0), (0.0, 0.0), (0.8, 0.2), (0.0, 0.2)]
)
@pytest.mark.parametrize("unit", ["token", "whole_word"])
def test_shares_are_those_of_table_8(mask, random, unit):
    lengths = [(60, 65)] * 4000
    block = block_of(lengths)
    config = {"mask_share": mask, "random_share": random, "unit": unit}
    masks = mask_tokens(block, streams(len(lengths)), rule=rule(**config))
    total = len(masks.positions_M)
    for count, share in ((masks.masked, mask), (masks.random, random)):
        assert abs(count / total - share) <= 4 * math.sqrt(share * (1 - share) / total)
    seen = block.input_ids[np.repeat(block.offsets_N1[:-1], masks.counts_N) + masks.positions_M]
    assert np.count_nonzero(seen == MASK) >= masks.masked
    changed = np.count_nonzero(seen != masks.original_ids_M)
    assert changed <= masks.masked + masks.random


@pytest.mark.parametrize("unit", ["token", "span"])
def test_random_word_pieces_are_drawn_from_the_whole_vocabulary(unit):
    lengths = [(60, 65)] * 6000
    block = block_of(lengths)
    config = {"mask_share": 0.0, "random_share": 1.0, "unit": unit}
    masks = mask_tokens(block, streams(len(lengths)), rule=rule(**config))
    seen = block.input_ids[np.repeat(block.offsets_N1[:-1], masks.counts_N) + masks.positions_M]
    counts = np.bincount(seen, minlength=WORDS)
    expected = len(seen) / WORDS
    assert len(counts) == WORDS
    assert np.all(np.abs(counts - expected) < 6 * math.sqrt(expected))


def test_the_masks_of_an_example_do_not_depend_on_its_block():
    lengths = [(20, 30), (5, 5), (60, 65), (1, 9)] * 3
    together = block_of(lengths)
    masks = mask_tokens(together, streams(len(lengths)), rule=rule())
    whole = [positions.tolist() for _, positions, _ in per_example(together, masks)]
    for row in range(len(lengths)):
        alone = Block(
            input_ids=together.input_ids[together.offsets_N1[row] : together.offsets_N1[row + 1]],
            offsets_N1=together.offsets_N1[row : row + 2] - together.offsets_N1[row],
            a_length_N=together.a_length_N[row : row + 1],
            b_length_N=together.b_length_N[row : row + 1],
        )
        own = mask_tokens(alone, streams(len(lengths))[row : row + 1], rule=rule())
        assert own.positions_M.tolist() == whole[row]


def words_by_hand(ids, a, b, *, segments_break_words):
    """Runs of text positions, each a word."""
    words = []
    for position in [*range(1, a + 1), *range(a + 2, a + 2 + b)]:
        breaks = segments_break_words and position == a + 2
        if words and CONTINUATION[ids[position]] and not breaks:
            words[-1].append(position)
        else:
            words.append([position])
    return words


@settings(max_examples=50)
@given(lengths=segment_lengths, breaks=st.booleans())
def test_words_are_tokens_with_their_continuations(lengths, breaks):
    block = block_of(lengths)
    words = words_of(block, CONTINUATION, segments_break_words=breaks)
    expected = [
        len(word)
        for (a, b), begin in zip(lengths, block.offsets_N1, strict=False)
        for word in words_by_hand(block.input_ids[begin:], a, b, segments_break_words=breaks)
    ]
    assert words.sizes_W.tolist() == expected


@settings(max_examples=50)
@given(lengths=segment_lengths)
def test_whole_words_are_masked_whole_and_no_skipped_word_would_have_fitted(lengths):
    block, before = block_of(lengths), block_of(lengths)
    masks = mask_tokens(block, streams(len(lengths)), rule=rule(unit="whole_word"))
    for (ids, positions, _), (a, b), begin in zip(
        per_example(block, masks), lengths, before.offsets_N1, strict=False
    ):
        words = words_by_hand(before.input_ids[begin:], a, b, segments_break_words=False)
        chosen = set(positions.tolist())
        left = [word for word in words if not chosen & set(word)]
        assert all(set(word) <= chosen for word in words if chosen & set(word))
        room = min(20, max(1, round(0.15 * len(ids))), a + b) - len(positions)
        assert room >= 0
        assert all(len(word) > room for word in left)


def test_spans_are_runs_of_words_and_share_one_fate():
    lengths = [(60, 65)] * 300
    block = block_of(lengths)
    masks = mask_tokens(block, streams(300), rule=rule(unit="span", random_share=0.0))
    runs = []
    for ids, positions, _ in per_example(block, masks):
        breaks = np.flatnonzero(np.diff(positions.astype(int)) > 1) + 1
        runs += [set((ids[run] == MASK).tolist()) for run in np.split(positions, breaks)]
    # adjacent spans may touch; otherwise all tokens of a run have the same fate
    assert np.mean([len(fates) == 1 for fates in runs]) > 0.9
    assert len(masks.positions_M) / len(runs) > 2.5


def test_span_lengths_are_geometric_and_end_at_ten():
    lengths = span_lengths(high_half(draw(streams(100_000), 0)))
    shares = np.bincount(lengths, minlength=11)[1:] / 100_000
    expected = 0.8 ** np.arange(10) / np.sum(0.8 ** np.arange(10))
    assert len(shares) == 10
    assert np.all(np.abs(shares - expected) < 0.006)
