import pytest

from cloze.model.tasks.squad import (
    best_null_threshold,
    by_answerability,
    exact_match,
    f1_v1,
    f1_v2,
    normalize_answer,
    score_v1,
    score_v2,
)


# Expected values are from the official scripts (evaluate-v1.1.py, evaluate-v2.0.py).
@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("The  Cat!", "cat"),
        ("a.b. an apple", "ab apple"),
        ("the-cat", "thecat"),
        ("The-a", "thea"),
        ("«Zürich»", "«zürich»"),
        ("1,000.5", "10005"),
        ("an\u00a0apple", "apple"),
        ("İ", "i̇"),
        ("a an the", ""),
        ("!?", ""),
        ("—", "—"),
        ("theatre of the absurd", "theatre of absurd"),
    ],
)
def test_answers_are_normalised_as_the_official_scripts_do(text: str, normal: str) -> None:
    assert normalize_answer(text) == normal


@pytest.mark.parametrize(
    ("guess", "gold", "exact", "v1", "v2"),
    [
        ("the cat", "Cat", 1.0, 1.0, 1.0),
        ("a black cat", "cat", 0.0, 2 / 3, 2 / 3),
        ("", "", 1.0, 0.0, 1.0),
        ("the", "", 1.0, 0.0, 1.0),
        ("the", "a", 1.0, 0.0, 1.0),
        ("", "cat", 0.0, 0.0, 0.0),
        ("cat cat dog", "cat", 0.0, 0.5, 0.5),
        ("東京", "東京都", 0.0, 0.0, 0.0),
        ("U.S.", "US", 1.0, 1.0, 1.0),
    ],
)
def test_squad_scores_agree_with_both_official_scripts(
    guess: str, gold: str, exact: float, v1: float, v2: float
) -> None:
    assert (exact_match(guess, gold), f1_v1(guess, gold), f1_v2(guess, gold)) == (exact, v1, v2)


def test_the_best_of_several_answers_counts_and_empty_golds_only_in_version_1() -> None:
    golds = [["New York", "York"], ["the"], []]
    guesses = ["york", "", ""]
    second = score_v2(golds, guesses)
    assert second == [(1.0, 1.0), (1.0, 1.0), (1.0, 1.0)]
    first = score_v1(golds[:2], guesses[:2])
    assert first == [(1.0, 1.0), (1.0, 0.0)]
    groups = by_answerability(second, [True, True, False])
    assert groups["no_answer"] == {"exact_match": 1.0, "f1": 1.0}


def test_the_null_threshold_is_the_official_one() -> None:
    scores = [1.0, 0.0, 0.5, 0.0]
    margins = [-3.0, -1.0, 0.5, 2.0]
    has_answer = [True, False, True, False]
    best, threshold = best_null_threshold(scores, margins, has_answer, [True] * 4)
    assert (best, threshold) == (0.75, -3.0)
    best, threshold = best_null_threshold(scores, margins, has_answer, [True, False, True, True])
    assert (best, threshold) == (0.875, 0.5)


def test_nothing_is_answered_where_that_is_best() -> None:
    margins = [-1.0, 0.5]
    best, threshold = best_null_threshold([0.0, 0.0], margins, [False, False], [True, True])
    assert best == 1.0
    assert not any(
        margin <= threshold for margin in margins
    )  # answered questions have a margin below
