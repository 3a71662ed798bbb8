"""Counts and samples in bounded memory."""

from collections import Counter

import hypothesis.strategies as st
import numpy as np
from hypothesis import given

from cloze.pipeline.survey.counting import FrequentKeys, Lengths, Smallest


@given(st.lists(st.lists(st.integers(0, 40), max_size=60), max_size=30))
def test_no_count_is_too_large_nor_too_small_by_more_than_the_error_said(
    blocks: list[list[int]],
) -> None:
    counted = FrequentKeys(counters=5)
    exact: Counter[int] = Counter()
    for block in blocks:
        keys = np.array(block, dtype=np.uint64)
        counted.add(keys, lambda at, block=block: str(block[at]), every=True)
        exact.update(block)
    found = {int(one.text): one.times for one in counted.most(100)}
    assert counted.total == exact.total()
    assert counted.error <= exact.total() / 6
    for key, count in exact.items():
        if count - counted.error > 1:
            assert count - counted.error <= found[key] <= count
    assert all(exact[key] >= count for key, count in found.items())


def test_what_fits_into_the_table_is_counted_exactly() -> None:
    counted = FrequentKeys()
    for block in (["a", "b", "a"], ["c", "c", "a"]):
        keys = np.array([ord(one) for one in block], dtype=np.uint64)
        counted.add(keys, lambda at, block=block: block[at])
    assert [tuple(one) for one in counted.most(5)] == [("a", 3), ("c", 2)]
    assert counted.error == 0


def test_quantiles_of_lengths_are_within_their_bins() -> None:
    lengths = Lengths()
    values = np.arange(1, 100_001)
    lengths.add(values[:60_000])
    lengths.add(values[60_000:])
    found = lengths.quantiles((0.0005, 0.25, 0.5, 0.95, 1.0))
    expected = [50, 25_000, 50_000, 95_000, 100_000]
    assert found[0] == 50  # short ones are counted by themselves
    assert np.allclose(found, expected, rtol=0.022)
    assert lengths.largest == 100_000
    assert lengths.total == 5_000_050_000


def test_the_histogram_has_powers_of_two_and_every_length() -> None:
    lengths = Lengths()
    lengths.add(np.array([0, 1, 2, 3, 63, 64, 127, 128, 1000], dtype=np.int64))
    edges, counts = lengths.histogram()
    assert edges == [0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
    assert counts == [1, 1, 2, 0, 0, 0, 1, 2, 1, 0, 1]
    assert Lengths().histogram() == ([0, 1], [0])
    assert Lengths().quantiles((0.5,)) == [0]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 50)), max_size=60), st.integers(1, 7))
def test_the_smallest_are_those_of_a_sorted_list(drawn: list[tuple[int, int]], wanted: int) -> None:
    pairs = [(score, 50 * score + key) for score, key in drawn]  # a key has one score
    kept: Smallest[tuple[int, int]] = Smallest(wanted)
    for start in range(0, len(pairs), 9):
        block = pairs[start : start + 9]
        scores, keys = (np.array([pair[at] for pair in block]) for at in (0, 1))
        # five stands for what is never kept
        infinite = np.where(scores == 5, np.inf, scores)
        kept.offer(infinite, keys.astype(np.uint64), lambda at, block=block: block[at])
    best = sorted({pair for pair in pairs if pair[0] != 5})
    assert kept.payloads() == best[:wanted]
