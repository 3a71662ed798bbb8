import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from model.tasks.metrics.ranking_metrics import measure_ranking


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
