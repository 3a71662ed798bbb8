"""Rankings by vectors and words together."""

import numpy as np
import pytest

from cloze.model.retrieval.fusion import best_rows, fused, rank_of, spread_of


def ranked(vectors: list[float], words: list[float], weight: float) -> list[float]:
    by = {"vectors": np.array(vectors, np.float32), "lexical": np.array(words, np.float32)}
    spreads = {name: spread_of(scores) for name, scores in by.items()}
    return fused(by, spreads, weight=weight).tolist()


def test_scores_count_in_units_of_their_own_spread() -> None:
    assert ranked([0.1, 0.3], [0.0, 0.0], 0.5) == pytest.approx([-0.5, 0.5])
    assert ranked([0.1, 0.3], [80.0, 0.0], 0.5) == pytest.approx([0.0, 0.0], abs=1e-6)
    assert ranked([0.1, 0.3], [80.0, 0.0], 0.25) == pytest.approx([0.5, -0.5])


def test_rounding_differences_of_equal_vectors_do_not_rank() -> None:
    equal = [0.5, 0.5 + 6e-8, 0.5 - 6e-8]
    assert ranked(equal, [0.0, 0.0, 3.0], 0.9)[2] == pytest.approx(0.1 * 2**0.5, abs=1e-6)
    assert ranked(equal, [0.0, 0.0, 0.0], 0.9) == [0, 0, 0]


def test_equal_scores_share_the_best_rank() -> None:
    scores = np.array([1.0, 3.0, 3.0, 0.0], np.float32)
    assert [rank_of(scores, row) for row in range(4)] == [3, 1, 1, 4]


def test_the_best_rows_are_those_of_a_stable_sort_whatever_the_number_of_scores() -> None:
    draw = np.random.default_rng(0)
    for number in range(300):
        rows, kept = int(draw.integers(1, 30_000)), int(draw.integers(1, 130))
        scores = draw.standard_normal(rows).astype(np.float32)
        if number % 2:  # few different scores, some of them the lowest there is
            scores = np.where(scores < -1, -np.inf, scores.round(1)).astype(np.float32)
        expected = np.argsort(-scores, kind="stable")[:kept]
        np.testing.assert_array_equal(best_rows(scores, kept), expected)


def test_a_spread_is_that_of_all_scores() -> None:
    scores = np.random.default_rng(0).normal(0.8, 0.05, 200_000).astype(np.float32)
    expected = (scores.mean(dtype=np.float64), scores.std(dtype=np.float64))
    assert spread_of(scores) == pytest.approx(expected, rel=1e-6)
