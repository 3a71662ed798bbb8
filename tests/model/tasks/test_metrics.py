import random

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from sklearn.metrics import f1_score, matthews_corrcoef, ndcg_score

from model.tasks.metrics import (
    best_null_threshold,
    by_answerability,
    count_entities,
    entities,
    exact_match,
    f1_v1,
    f1_v2,
    is_entity_scheme,
    measure,
    measure_ranking,
    normalize_answer,
    score_v1,
    score_v2,
)


def test_glue_metrics_are_those_of_scikit_learn_and_scipy() -> None:
    rng = np.random.default_rng(0)
    gold, guess = rng.integers(0, 2, 200), rng.integers(0, 2, 200)
    scores = measure(("accuracy", "f1", "matthews"), gold, guess)
    assert scores == {
        "accuracy": float((gold == guess).mean()),
        "f1": f1_score(gold, guess),
        "matthews": matthews_corrcoef(gold, guess),
    }
    gold, guess = rng.random(100), rng.random(100)
    assert measure(("pearson", "spearman"), gold, guess) == {
        "pearson": pearsonr(gold, guess).statistic,
        "spearman": spearmanr(gold, guess).statistic,
    }


def test_constant_predictions_score_zero_instead_of_nan() -> None:
    gold = np.array([0.0, 1.0, 2.0])
    assert measure(("pearson", "spearman"), gold, np.ones(3)) == {"pearson": 0.0, "spearman": 0.0}
    assert measure(("matthews",), np.array([0, 1, 1]), np.ones(3, np.int64)) == {"matthews": 0.0}


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
    assert second.exact == (1.0, 1.0, 1.0)
    assert second.f1 == (1.0, 1.0, 1.0)
    first = score_v1(golds[:2], guesses[:2])
    assert first.exact == (1.0, 1.0)
    assert first.f1 == (1.0, 0.0)
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


# Counts by conlleval.pl (version 2004-01-26) on the same tags.
@pytest.mark.parametrize(
    ("tags", "seed", "expected"),
    [
        (["O", "I-PER", "I-LOC"], 1, (736, 722, 407, "55.83")),
        (["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], 2, (1038, 1015, 632, "61.57")),
    ],
)
def test_entities_are_counted_as_conlleval_counts_them(
    tags: list[str], seed: int, expected: tuple[int, int, int, str]
) -> None:
    rng = random.Random(seed)
    gold = [[rng.choice(tags) for _ in range(rng.randint(1, 9))] for _ in range(300)]
    guess = [[tag if rng.random() < 0.6 else rng.choice(tags) for tag in row] for row in gold]
    counts = count_entities(gold, guess)
    assert (counts.gold, counts.predicted, counts.correct, f"{100 * counts.f1:.2f}") == expected


def test_entities_of_both_schemes() -> None:
    assert entities(["I-PER", "I-PER", "O", "I-LOC", "B-LOC"]) == [
        (0, 1, "PER"),
        (3, 3, "LOC"),
        (4, 4, "LOC"),
    ]
    assert entities(["B-PER", "I-LOC", "I-LOC"]) == [(0, 0, "PER"), (1, 2, "LOC")]
    assert entities(["S-A", "B-A", "I-A", "E-A", "E-A"]) == [
        (0, 0, "A"),
        (1, 3, "A"),
        (4, 4, "A"),
    ]


def test_classes_of_words_are_no_entities() -> None:
    assert is_entity_scheme(["O", "B-PER"])
    assert not is_entity_scheme(["NN", "VB"])
    assert not is_entity_scheme(["O"])


def test_no_entities_anywhere_score_zero() -> None:
    assert count_entities([["O"]], [["O"]]).f1 == 0.0


def test_a_single_query_scores_what_paper_and_pencil_say() -> None:
    found = measure_ranking(
        ["ndcg@3", "recall@1", "recall@3", "mrr@10", "mrr@1"], [[7, 3, 5, 9]], [{3, 9}]
    )
    assert found == {
        "ndcg@3": pytest.approx((1 / np.log2(3)) / (1 + 1 / np.log2(3))),
        "recall@1": 0.0,
        "recall@3": 0.5,
        "mrr@10": 0.5,
        "mrr@1": 0.0,
    }


def test_ndcg_is_scikit_learns_for_any_ranking_and_any_number_of_right_ones() -> None:
    rng = np.random.default_rng(0)
    scores = rng.normal(size=(50, 40))
    gold = np.zeros((50, 40))
    for row in gold:
        row[rng.choice(40, rng.integers(1, 15), replace=False)] = 1
    ranked = np.argsort(-scores, axis=1).tolist()
    found = measure_ranking(["ndcg@10"], ranked, [set(np.flatnonzero(row)) for row in gold])
    assert found["ndcg@10"] == pytest.approx(ndcg_score(gold, scores, k=10))


def test_fewer_candidates_than_ranks_are_asked_for_are_all_there_is() -> None:
    assert measure_ranking(["ndcg@10", "recall@100"], [[0], [0]], [{0}, {1}]) == {
        "ndcg@10": 0.5,
        "recall@100": 0.5,
    }
