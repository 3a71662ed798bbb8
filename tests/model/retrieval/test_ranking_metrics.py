"""Metrics of rankings, from the ranks of relevant documents alone."""

import math

import numpy as np
import pytest
import pytrec_eval

from cloze.model.retrieval.ranking_metrics import (
    METRICS,
    Relevant,
    by_metric,
    interval,
    measure,
)

OURS = dict(
    zip(METRICS, ("ndcg_cut_10", "recall_10", "recall_100", "recip_rank", "map"), strict=True)
)
"""Our names, and those of trec_eval."""


def relevant(ranks: list[int], grades: list[float]) -> Relevant:
    return Relevant(np.array(ranks), np.array(grades, float))


def test_a_graded_ranking_has_the_values_computed_by_hand() -> None:
    found = measure(relevant([3, 1, 40], [2.0, 1.0, 3.0]))
    gained = 1 / math.log2(2) + 2 / math.log2(4)
    ideal = 3 / math.log2(2) + 2 / math.log2(3) + 1 / math.log2(4)
    assert found["ndcg@10"] == pytest.approx(gained / ideal)
    assert found["recall@10"] == pytest.approx(2 / 3)
    assert found["recall@100"] == 1.0
    assert found["mrr@10"] == 1.0
    assert found["map"] == pytest.approx((1 / 1 + 2 / 3 + 3 / 40) / 3)


def test_nothing_among_the_first_ten_has_no_reciprocal_rank() -> None:
    found = measure(relevant([11], [1.0]))
    assert (found["mrr@10"], found["ndcg@10"], found["recall@10"]) == (0.0, 0.0, 0.0)
    assert found["map"] == pytest.approx(1 / 11)


def test_every_metric_equals_trec_eval_on_a_thousand_graded_rankings() -> None:
    draw = np.random.default_rng(0)
    found, qrels, run, first_ten = [], {}, {}, {}
    for number in range(1000):
        size = int(draw.integers(1, 300))
        grades = draw.choice([0, 0, 0, 0, 1, 2, 3, 4], size)
        grades[draw.integers(size)] = draw.integers(1, 5)
        order = draw.permutation(size)
        rank = np.empty(size, int)
        rank[order] = np.arange(1, size + 1)
        right = np.flatnonzero(grades)
        found.append(relevant(rank[right].tolist(), grades[right].tolist()))
        name = f"q{number}"
        qrels[name] = {f"d{n}": int(grade) for n, grade in enumerate(grades)}
        run[name] = {f"d{n}": float(-rank[n]) for n in range(size)}
        first_ten[name] = {f"d{n}": float(-rank[n]) for n in order[:10]}
    theirs = pytrec_eval.RelevanceEvaluator(qrels, {*OURS.values()}).evaluate(run)
    # Its reciprocal rank has no cut-off.
    cut = pytrec_eval.RelevanceEvaluator(qrels, {"recip_rank"}).evaluate(first_ten)
    for ours, name in OURS.items():
        source = cut if name == "recip_rank" else theirs
        values = [source[f"q{number}"][name] for number in range(1000)]
        assert by_metric(found)[ours] == pytest.approx(values, abs=1e-6)


def test_an_interval_covers_the_true_mean_about_as_often_as_it_says() -> None:
    draw = np.random.default_rng(0)
    covered = 0
    for _ in range(100):
        found = interval(draw.binomial(1, 0.7, 200).astype(float))
        covered += found.low <= 0.7 <= found.high
    assert 88 <= covered <= 100


def test_the_interval_of_equal_values_is_a_point() -> None:
    assert interval(np.full(30, 0.25)) == (0.25, 0.25, 0.25)


def test_questions_of_one_group_count_as_one_in_the_interval() -> None:
    draw = np.random.default_rng(0)
    values = draw.normal(size=50)
    alike = interval(np.repeat(values, 8), groups_Q=np.repeat(np.arange(50), 8))
    assert alike == pytest.approx(interval(values))
    apart = interval(np.repeat(values, 8))
    assert apart.high - apart.low < (alike.high - alike.low) / 2
