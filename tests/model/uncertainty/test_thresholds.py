import numpy as np
import pytest

from cloze.model.uncertainty.held_out import HeldOutRows
from cloze.model.uncertainty.thresholds import _best, tuned_thresholds


def rows(shares: list[list[float]] | np.ndarray, present: object) -> HeldOutRows:
    chances = np.asarray(shares)
    return HeldOutRows(np.log(chances / (1 - chances)), np.asarray(present, np.int64))


def test_a_threshold_is_where_f1_of_its_label_is_largest() -> None:
    # Twelve rows have the label and twelve lack it. Naming it for 0.3 and above has 12 hits among
    # 14: F1 = 24 / 26. From 0.4 on, it is 20 / 22, and for all, 24 / 36.
    shares = np.array([0.4] * 10 + [0.3] * 4 + [0.1] * 10)[:, None]
    present = np.array([1] * 12 + [0] * 12, bool)[:, None]
    assert _best(shares, present, 0.5) == pytest.approx([0.2])


def test_a_label_of_few_rows_keeps_its_threshold() -> None:
    shares = np.array([0.3] * 9 + [0.1] * 20)[:, None]
    present = np.array([1] * 9 + [0] * 20, bool)[:, None]
    assert _best(shares, present, 0.5).tolist() == [0.5]


def test_each_label_has_the_threshold_that_unseen_rows_confirm() -> None:
    rng = np.random.default_rng(0)
    present = rng.random((400, 2)) < [0.1, 0.5]
    # The rare label's probabilities are all below a half, the other's are as they should be.
    shares = np.where(present, [0.35, 0.8], [0.1, 0.2]) + rng.uniform(-0.05, 0.05, (400, 2))
    found = tuned_thresholds(rows(shares, present), 0.5)
    assert found is not None
    thresholds, by_row = found
    assert 0.15 < thresholds[0] < 0.3
    assert 0.25 < thresholds[1] < 0.75
    assert by_row.shape == (400, 2)
    assert (by_row[:, 0] < 0.3).all()


def test_thresholds_that_unseen_rows_do_not_confirm_are_left_alone() -> None:
    rng = np.random.default_rng(0)
    present = rng.random((200, 3)) < 0.5
    shares = np.where(present, 0.9, 0.1)  # no threshold is better than a half
    assert tuned_thresholds(rows(shares, present), 0.5) is None
