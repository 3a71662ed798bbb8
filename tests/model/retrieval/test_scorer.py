"""Scores of a collection: exact ones of all, or of those that int8 vectors name."""

from pathlib import Path

import numpy as np
import pytest

from cloze.model.retrieval.compact_vectors import (
    COMPACT_FILES,
    CompactVectors,
    write_compact_vectors,
)
from cloze.model.retrieval.fusion import best_rows
from cloze.model.retrieval.lexical_index import FILES, LexicalIndex, write_lexical_index
from cloze.model.retrieval.passage_index import Vectors, cosines
from cloze.model.retrieval.scorer import PassageScores, Scorer

ROWS, WIDTH, TOP = 4000, 33, 10


def compact(folder: Path, matrix: Vectors) -> CompactVectors:
    np.save(folder / "vectors.npy", matrix)
    assert [*write_compact_vectors(str(folder / "vectors.npy"), folder)] == [*range(len(matrix))]
    return CompactVectors({name: str(folder / name) for name in COMPACT_FILES})


def unit(rows: np.ndarray) -> Vectors:
    return (rows / np.linalg.norm(rows, axis=-1, keepdims=True)).astype(np.float32)


@pytest.fixture
def matrix() -> Vectors:
    """Vectors in clusters, with a coordinate that is large in all, as in encoders."""
    draw = np.random.default_rng(0)
    centres = draw.standard_normal((40, WIDTH))
    rows = centres[draw.integers(0, 40, ROWS)] + 0.3 * draw.standard_normal((ROWS, WIDTH))
    rows[:, 5] += 20
    return unit(rows)


def words(number: int) -> str:
    draw = np.random.default_rng(number)
    return " ".join(f"w{rank}" for rank in np.minimum(draw.zipf(1.3, 12), 300))


def first(scores: PassageScores, weight: float) -> list[tuple[int, float, dict[str, int]]]:
    """The best rows with their scores and ranks."""
    ranked = scores.ranked(weight)
    places = best_rows(ranked, TOP).tolist()
    rows = places if scores.rows_C is None else scores.rows_C[places].tolist()
    ranks = [{name: scores.rank(name, place) for name in scores.by} for place in places]
    return [*zip(rows, ranked[places].tolist(), ranks, strict=True)]


def test_no_cosine_of_int8_vectors_is_further_off_than_the_bound(
    tmp_path: Path, matrix: Vectors
) -> None:
    codes = compact(tmp_path, matrix)
    for question in unit(np.random.default_rng(1).standard_normal((50, WIDTH))):
        about, off = codes.cosines(question)
        assert np.abs(about - matrix @ question).max() <= off < 0.05
    assert (tmp_path / "codes.npy").stat().st_size < matrix.nbytes / 3.9


@pytest.mark.parametrize("with_words", [True, False])
def test_a_single_question_has_the_answers_of_a_comparison_with_all(
    tmp_path: Path, matrix: Vectors, with_words: bool
) -> None:
    lexical = None
    if with_words:
        write_lexical_index(tmp_path, map(words, range(ROWS)), language="none")
        lexical = LexicalIndex({name: f"{tmp_path}/{name}" for name in FILES}, language="none")
    exhaustive = Scorer(matrix, lexical)
    fast = Scorer(matrix, lexical, compact=compact(tmp_path, matrix))
    draw = np.random.default_rng(2)
    fewer = 0
    for number in range(40):
        question = unit(matrix[draw.integers(ROWS)] + 0.05 * draw.standard_normal(WIDTH))
        asked = ([words(10_000 + number)], question[None])
        (whole,), (some,) = (one.scores(*asked, top_k=TOP) for one in (exhaustive, fast))
        fewer += some.rows_C is not None
        for one, other in zip(first(whole, 0.65), first(some, 0.65), strict=True):
            assert one[0] == other[0]
            assert one[1] == pytest.approx(other[1], rel=1e-4)
            for name, rank in one[2].items():
                # exact among the first hundred, and by words everywhere
                near = 0.1 * rank if rank > 100 and name == "vectors" else 0
                assert other[2][name] == pytest.approx(rank, abs=near)
    assert fewer >= 20  # the others have too many near passages to be picked out
    (whole,) = fast.scores(["w1"], question[None])
    assert whole.rows_C is None  # nobody said how many are wanted


def test_equal_vectors_are_all_compared(tmp_path: Path, matrix: Vectors) -> None:
    equal = np.repeat(matrix[:1], 300, 0)
    (scores,) = Scorer(equal, compact=compact(tmp_path, equal)).scores(["a"], equal[:1], top_k=3)
    assert scores.rows_C is None
    np.testing.assert_array_equal(scores.by["vectors"], cosines(equal, equal[:1])[0])
