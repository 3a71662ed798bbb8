"""Scores are means over the predicted tokens and sentences."""

import pytest

from cloze.model.training.loop import mean_scores


def test_sums_are_divided_by_their_own_counts() -> None:
    scores = mean_scores([30.0, 4.0, 5.0, 6.0], masked=10, labelled=8)
    assert scores == {
        "masked_lm_loss": 3.0,
        "masked_lm_accuracy": 0.5,
        "next_sentence_loss": 0.5,
        "next_sentence_accuracy": 0.75,
    }


def test_empty_micro_batch_is_no_division_by_zero() -> None:
    scores = mean_scores([2.0, 0.0, 1.0, 0.0], masked=4, labelled=0)
    assert scores["next_sentence_loss"] == 0.0
    assert scores["masked_lm_loss"] == pytest.approx(0.5)
