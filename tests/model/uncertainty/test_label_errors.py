import numpy as np
import pytest

from cloze.model.uncertainty.held_out import HeldOutRows
from cloze.model.uncertainty.label_errors import (
    beyond_chance,
    confident_joint,
    contradictions,
    pooled,
    suspects,
)


def planted(seed: int, *, rows: int = 400, labels: int = 4) -> tuple[HeldOutRows, np.ndarray]:
    """A good model's rows, a tenth of which are given another label; whether each is."""
    rng = np.random.default_rng(seed)
    true = rng.integers(0, labels, rows)
    logits = rng.normal(0, 1, (rows, labels))
    logits[np.arange(rows), true] += 3.5
    wrong = rng.random(rows) < 0.1
    given = np.where(wrong, (true + rng.integers(1, labels, rows)) % labels, true)
    return HeldOutRows(logits, given), wrong


@pytest.mark.parametrize("seed", range(5))
def test_suspects_are_at_most_as_many_as_cleanlab_counts_in_the_order_it_ranks(seed: int) -> None:
    count = pytest.importorskip("cleanlab.count")
    rank = pytest.importorskip("cleanlab.rank")
    rows, _ = planted(seed)
    shares = rows.probabilities()
    wrong = count.num_label_issues(
        rows.targets, shares, estimation_method="off_diagonal_calibrated"
    )
    scores = rank.get_label_quality_scores(rows.targets, shares, method="self_confidence")
    found = [one.row for one in suspects(rows)]
    assert wrong / 2 < len(found) <= wrong + 2  # counts of each label are rounded alone here
    assert found == np.argsort(scores, kind="stable")[: len(found)].tolist()


def test_a_rare_labels_rows_that_the_model_does_not_know_are_not_suspected_first() -> None:
    # label 2 is known by half: its rows have a low probability, but not as low as a wrong label's
    logits = np.array([[6.0, 0, 0]] * 20 + [[0, 6.0, 0]] * 20 + [[1.0, 0, 0.8], [0, 0, 3.0]] * 2)
    given = np.array([0] * 19 + [1] + [1] * 20 + [2] * 4)
    assert suspects(HeldOutRows(logits, given))[0].row == 19


def test_models_are_pooled_by_what_their_temperatures_leave_of_them() -> None:
    rows, wrong = planted(0)
    guessing = HeldOutRows(np.random.default_rng(1).normal(0, 20, rows.logits.shape), rows.targets)
    first = [one.row for one in suspects(pooled([rows, guessing]))][: round(0.15 * len(rows))]
    assert wrong[first].sum() >= 0.7 * wrong.sum()


def test_most_planted_errors_are_among_the_first_suspects() -> None:
    for seed in range(10):
        rows, wrong = planted(seed)
        first = [one.row for one in suspects(rows)][: round(0.15 * len(rows))]
        assert wrong[first].sum() >= 0.7 * wrong.sum()


def test_a_model_that_errs_by_its_own_doubt_suspects_few_labels_of_a_right_table() -> None:
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 1.5, (600, 6))
    shares = HeldOutRows(logits, np.zeros(600, np.int64)).probabilities()
    # labels as often as the model says: it is calibrated, and right in about half of the rows
    given = np.array([rng.choice(6, p=row) for row in shares])
    rows = HeldOutRows(logits, given)
    joint = confident_joint(shares, given)
    assert joint.sum() - np.trace(joint) > 0.3 * len(rows)  # what confident learning alone lists
    found = suspects(rows)
    assert sum(one.clear for one in found) <= 0.03 * len(rows)
    # what somebody would read through, and not the two fifths that confident learning counts
    assert len(found) == round(0.15 * len(rows))


def test_a_model_that_knows_little_still_lists_most_planted_errors_as_doubtful() -> None:
    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, 1000)
    # right in four of five rows, as a head on SST-2's vectors
    logits = rng.normal(0, 1, (1000, 2))
    logits[np.arange(1000), true] += 1.2
    wrong = rng.random(1000) < 0.1
    found = suspects(HeldOutRows(1.7 * logits, np.where(wrong, 1 - true, true)))
    assert sum(one.clear for one in found) < 0.1 * wrong.sum()
    assert wrong[[one.row for one in found]].sum() > 0.5 * wrong.sum()


def test_the_sure_ones_of_the_suspects_are_mostly_planted_and_beyond_chance() -> None:
    for seed in range(5):
        rows, wrong = planted(seed)
        sure, expected = beyond_chance(rows)
        clear = [one.row for one in suspects(rows) if one.clear]
        assert expected < 0.6 * sure
        assert len(clear) > 0.25 * wrong.sum()
        assert wrong[clear].mean() > 0.8


def test_counts_of_given_and_true_labels_are_computed_by_hand() -> None:
    # the limits are the means 0.7 and 0.65: rows 0 and 2 count as 0, rows 1, 3 and 4 as 1
    shares = np.array([[0.9, 0.1], [0.2, 0.8], [1.0, 0.0], [0.3, 0.7], [0.05, 0.95], [0.7, 0.3]])
    given = np.array([0, 0, 0, 1, 1, 1])
    assert confident_joint(shares, given).tolist() == [[2, 1], [1, 2]]


def test_the_only_row_of_a_label_is_no_suspect() -> None:
    logits = np.array([[4.0, 0.0]] * 6 + [[3.0, 0.0]])
    assert suspects(HeldOutRows(logits, np.array([0] * 6 + [1]))) == []


def test_equal_texts_with_different_labels_are_found_whatever_case_and_spaces() -> None:
    texts = ["Good  film", "bad", "good film ", "bad", "other"]
    assert contradictions(texts, ["pos", "neg", "neg", "neg", "pos"]) == [[0, 2]]
