"""How far passages stand out from each other: of vectors that say something, and of others."""

import numpy as np
import pytest

from cloze.model.retrieval.fusion import STANDING, WEIGHT, weight_of_vectors
from cloze.model.retrieval.standing import part_of, standing_of

PASSAGES, WIDTH = 400, 64


def unit(vectors: np.ndarray) -> np.ndarray:
    scaled: np.ndarray = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return scaled.astype(np.float32)


def test_a_part_is_the_middle_fifth_of_a_passage_in_any_script() -> None:
    assert part_of(" ".join(map(str, range(20)))) == "8 9 10 11"
    assert part_of("一二三四五六七八九十") == "五六"
    assert part_of("a") == "a"


def test_passages_stand_out_by_vectors_that_tell_them_apart_and_not_by_others() -> None:
    random = np.random.default_rng(0)
    vectors_NH = unit(random.normal(size=(PASSAGES, WIDTH)))
    rows = range(0, PASSAGES, 4)
    near_QH = unit(vectors_NH[::4] + 0.1 * random.normal(size=(len(rows), WIDTH)))
    assert standing_of(vectors_NH, rows, near_QH) > STANDING
    foreign_QH = unit(random.normal(size=(len(rows), WIDTH)))
    assert abs(standing_of(vectors_NH, rows, foreign_QH)) < 0.5
    same_NH = np.repeat(vectors_NH[:1], PASSAGES, axis=0)
    assert standing_of(same_NH, rows, near_QH) == pytest.approx(0.0, abs=0.5)


def test_vectors_count_less_the_less_passages_stand_out_by_them() -> None:
    assert weight_of_vectors(STANDING + 1) == WEIGHT
    assert 0 < weight_of_vectors(1.0) < weight_of_vectors(2.0) < WEIGHT
    assert weight_of_vectors(-0.3) == 0
