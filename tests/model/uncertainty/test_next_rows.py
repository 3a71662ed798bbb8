import numpy as np
import pytest

from cloze.model.uncertainty.next_rows import CONSTANT, COPY, SUREST, next_rows


def clusters(sizes: list[int], *, seed: int = 0, spread: float = 0.15) -> np.ndarray:
    """Unit vectors around one axis for every size, cluster by cluster."""
    rng = np.random.default_rng(seed)
    found = rng.normal(0, spread, (sum(sizes), 16))
    found[np.arange(sum(sizes)), np.repeat(np.arange(len(sizes)), sizes)] += 1.0
    return (found / np.linalg.norm(found, axis=-1, keepdims=True)).astype(np.float32)


def test_without_labels_the_first_draw_covers_every_cluster() -> None:
    vectors = clusters([60, 30, 30, 20])
    chosen = next_rows(vectors, [""] * 140, None, 4)
    assert {int(np.searchsorted([60, 90, 120], row, side="right")) for row in chosen} == {
        0,
        1,
        2,
        3,
    }


def test_a_cluster_without_labels_comes_before_one_that_has_some() -> None:
    vectors = clusters([30, 30])
    labels = ["a"] * 2 + [""] * 58
    assert next_rows(vectors, labels, None, 1)[0] >= 30


def test_no_row_is_chosen_twice_and_no_labelled_one() -> None:
    vectors = clusters([50, 50])
    labels = ["a"] * 6 + [""] * 44 + ["b"] * 6 + [""] * 44
    shares = np.full((100, 2), 0.5)
    for probabilities in (None, shares):
        chosen = next_rows(vectors, labels, probabilities, 40)
        assert len(set(chosen)) == 40
        assert not any(labels[row] for row in chosen)


def test_copies_are_chosen_once() -> None:
    vectors = np.repeat(clusters([5, 5], spread=0.3), 3, axis=0)
    chosen = next_rows(vectors, [""] * 30, None, 30)
    assert len(chosen) == 10
    cosines = vectors[chosen] @ vectors[chosen].T - 2 * np.eye(10)
    assert cosines.max() < COPY


def test_with_labels_of_each_class_unsure_rows_in_different_places_are_chosen() -> None:
    vectors = clusters([20, 20, 20, 20])
    labels = (["a"] * 6 + [""] * 14) + (["b"] * 6 + [""] * 14) + [""] * 40
    shares = np.array([[0.999, 0.001]] * 20 + [[0.001, 0.999]] * 20 + [[0.5, 0.5]] * 40)
    chosen = next_rows(vectors, labels, shares, 8)
    places = [row // 20 for row in chosen]
    assert {2, 3} <= set(places[:4])
    assert sum(place >= 2 for place in places) >= 7


def test_each_informative_row_is_the_one_that_lowers_the_mean_variance_most() -> None:
    vectors = clusters([15, 15], spread=0.4)
    labels = ["a"] + [""] * 14 + ["b"] + [""] * 14
    shares = np.random.default_rng(0).dirichlet((1.0, 1.0), 30)
    centred = vectors - vectors.mean(0)
    inputs = np.hstack((centred / np.sqrt((centred**2).sum(-1).mean()), np.full((30, 1), CONSTANT)))
    weights = 1 - (shares**2).sum(-1) + SUREST
    weights /= weights.mean()

    def mean_variance(rows: list[int]) -> float:
        precision = np.eye(17) + (inputs[rows] * weights[rows, None]).T @ inputs[rows]
        variance = np.einsum("nh,hg,ng->n", inputs, np.linalg.inv(precision), inputs)
        return float((weights * variance).mean())

    known = [0, 15]
    for row in next_rows(vectors, labels, shares, 5):
        others = [one for one in range(30) if one not in known]
        assert row == min(others, key=lambda one: mean_variance([*known, one]))
        known.append(row)


def test_rows_beyond_those_compared_are_chosen_if_more_are_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("cloze.model.uncertainty.next_rows.MOST_CANDIDATES", 5)
    vectors = clusters([20, 20], spread=0.4)
    labels = ["a"] + [""] * 19 + ["b"] + [""] * 19
    chosen = next_rows(vectors, labels, np.full((40, 2), 0.5), 30)
    assert len(set(chosen)) == 30
    assert not {0, 20} & set(chosen)
