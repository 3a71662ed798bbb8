"""When a difference over seeds is called real."""

import numpy as np
import pytest
from scipy import stats

from cloze.artifacts.significance import gap, holm, is_real


def seeded(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


def test_the_same_seeds_are_compared_in_pairs() -> None:
    ours, theirs = seeded(0.71, 0.74, 0.70, 0.75), seeded(0.70, 0.72, 0.69, 0.71)
    found, expected = gap(ours, theirs), stats.ttest_rel([*ours.values()], [*theirs.values()])
    low, high = expected.confidence_interval(0.95)
    assert found.paired
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx((low, high))


def test_other_seeds_are_compared_by_welchs_test() -> None:
    ours, theirs = seeded(0.71, 0.74, 0.70, 0.75), {7: 0.70, 8: 0.62, 9: 0.69}
    found = gap(ours, theirs)
    expected = stats.ttest_ind([*ours.values()], [*theirs.values()], equal_var=False)
    low, high = expected.confidence_interval(0.95)
    assert not found.paired
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.interval == pytest.approx((low, high))


def test_a_deterministic_system_adds_no_error() -> None:
    found = gap(seeded(0.71, 0.74, 0.70), {0: 0.68})
    expected = stats.ttest_1samp([0.71, 0.74, 0.70], 0.68)
    assert found.p_value == pytest.approx(expected.pvalue)
    assert found.freedom == 2


def test_equal_seeds_determine_no_error() -> None:
    """Three trials that decode to the same answers say nothing about a fourth."""
    found = gap(seeded(0.8, 0.8, 0.8), seeded(0.7, 0.7, 0.7))
    assert found.p_value is None
    assert found.interval is None
    assert is_real(found.p_value, seeds=3) is None


def test_fewer_than_three_seeds_cannot_tell() -> None:
    assert is_real(1e-6, seeds=2) is None
    assert is_real(1e-6, seeds=3) is True
    assert is_real(0.051, seeds=5) is False


def test_holm_multiplies_the_smallest_by_all_and_the_largest_by_one() -> None:
    assert holm([0.04, None, 0.01, 0.02]) == [pytest.approx(0.04), None, 0.03, 0.04]
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []


@pytest.mark.parametrize("seeds", [3, 5])
@pytest.mark.parametrize("tasks", [1, 9])
@pytest.mark.parametrize("paired", [True, False])
def test_at_most_one_table_in_twenty_names_a_difference_that_is_none(
    tasks: int, seeds: int, paired: bool
) -> None:
    """1,000 tables of systems that do not differ; chance adds two standard deviations to 5 %."""
    generator, tables = np.random.default_rng(7), 1_000
    first = 0 if paired else seeds
    named = 0
    for _ in range(tables):
        shared = generator.normal(0, 3, size=(tasks, seeds)) if paired else 0.0
        ours, theirs = (shared + generator.normal(size=(tasks, seeds)) for _ in range(2))
        p_values = [
            gap(dict(enumerate(a)), dict(enumerate(b, start=first))).p_value
            for a, b in zip(ours.tolist(), theirs.tolist(), strict=True)
        ]
        named += any(is_real(p, seeds=seeds) for p in holm(p_values))
    assert named / tables <= 0.05 + 2 * (0.05 * 0.95 / tables) ** 0.5


def test_a_clear_difference_is_found_among_eight_that_are_none() -> None:
    clear = gap(seeded(0.80, 0.82, 0.80), seeded(0.70, 0.72, 0.701))
    none = gap(seeded(0.70, 0.72, 0.71), seeded(0.70, 0.72, 0.70))
    found, *others = holm([clear.p_value, *[none.p_value] * 8])
    assert is_real(found, seeds=3) is True
    assert [is_real(one, seeds=3) for one in others] == [False] * 8
