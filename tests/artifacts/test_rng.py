"""Counter-based random numbers: correct bits, uniform, one draw per address."""

import math

import numpy as np
import pytest

from cloze.artifacts.rng import (
    address,
    below,
    coin_flips,
    document_streams,
    draw,
    happens,
    high_half,
    low_half,
    permutation,
    stream_seed,
)


def many_streams(count: int) -> np.ndarray:
    digests = np.arange(2 * count, dtype=np.uint64).reshape(-1, 2)
    return document_streams(digests, stream_seed(1, "test"))


def within_noise(successes: int, trials: int, probability: float) -> bool:
    sigma = math.sqrt(trials * probability * (1 - probability))
    return abs(successes - trials * probability) < 5 * sigma


def test_a_stream_is_splitmix64():
    outputs = draw(np.zeros(3, dtype=np.uint64), np.arange(3))
    assert [hex(value) for value in outputs.tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x6e789e6aa1b965f4",
        "0x6c45d188009454f",
    ]


def test_one_stream_for_all_counters_is_the_published_sequence():
    # First outputs of splitmix64 seeded with 1234567 (Vigna's reference implementation).
    assert draw(np.uint64(1234567), np.arange(3)).tolist() == [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
    ]


def test_a_permutation_has_every_number_once_and_depends_on_its_address_only():
    first, again = (permutation(address(1, "order", 0), 1000) for _ in range(2))
    other = permutation(address(1, "order", 1), 1000)
    assert np.array_equal(first, again)
    assert np.array_equal(np.sort(first), np.arange(1000))
    assert not np.array_equal(first, other)


def test_a_counter_gives_the_same_draw_alone_and_in_an_array():
    streams = many_streams(5)
    together = draw(streams[:, None], np.arange(7))
    alone = np.stack([draw(streams, counter) for counter in range(7)], axis=1)
    assert np.array_equal(together, alone)


def test_streams_of_other_seeds_purposes_and_documents_differ():
    starts = [
        stream_seed(seed, purpose, copy)
        for seed in range(20)
        for purpose in ("examples", "tokens")
        for copy in range(20)
    ]
    assert len(set(starts)) == len(starts)
    assert len(np.unique(many_streams(50_000))) == 50_000


def test_drawing_leaves_the_streams_as_they_were():
    streams = many_streams(3)
    before = streams.copy()
    draw(streams, 4)
    draw(streams, np.arange(3))
    assert np.array_equal(streams, before)


@pytest.mark.parametrize("half", [high_half, low_half])
@pytest.mark.parametrize("limit", [1, 2, 7, 125, 30522])
def test_below_is_even_and_in_range(half, limit):
    numbers = below(half(draw(many_streams(200_000), 3)), limit)
    assert numbers.min() >= 0
    assert numbers.max() < limit
    counts = np.bincount(numbers % 7, minlength=min(limit, 7))
    expected = np.bincount(np.arange(limit) % 7) * (200_000 / limit)
    assert np.all(np.abs(counts - expected) < 5 * np.sqrt(expected) + 1)


@pytest.mark.parametrize(("probability", "certain"), [(0.0, False), (1.0, True)])
def test_certain_events_are_certain(probability, certain):
    assert set(happens(high_half(draw(many_streams(1000), 0)), probability)) == {certain}


def test_events_happen_as_often_as_they_should():
    hits = happens(high_half(draw(many_streams(100_000), 0)), 0.1)
    assert within_noise(int(hits.sum()), 100_000, 0.1)


@pytest.mark.parametrize("flips", [0, 1, 2, 17, 63, 64, 65, 128, 129, 1000])
def test_heads_are_binomial(flips):
    streams = many_streams(20_000)
    heads = coin_flips(streams, np.full(20_000, flips))
    assert heads.min() >= 0
    assert heads.max() <= flips
    assert abs(heads.mean() - flips / 2) <= 5 * math.sqrt(flips / 4 / 20_000)
    assert abs(heads.var() - flips / 4) <= 0.1 * flips / 4


def test_heads_of_one_stream_do_not_depend_on_its_neighbours():
    streams = many_streams(50)
    flips = np.arange(50) * 7
    together = coin_flips(streams, flips)
    alone = [int(coin_flips(streams[i : i + 1], flips[i : i + 1])[0]) for i in range(50)]
    assert together.tolist() == alone
