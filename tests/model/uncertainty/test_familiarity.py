import numpy as np
import pytest
from safetensors.numpy import save

from cloze.artifacts.errors import UsageError
from cloze.model.uncertainty.confidence import Confidence
from cloze.model.uncertainty.familiarity import p_values


def around(direction: int, count: int, seed: int) -> np.ndarray:
    """Vectors near one axis of eight."""
    rng = np.random.default_rng(seed)
    found = rng.normal(0, 0.2, (count, 8))
    found[:, direction] += 1.0
    return found.astype(np.float32)


def test_texts_of_the_same_kind_are_flagged_as_often_as_promised() -> None:
    shares = [
        (p_values(around(0, 100, seed), around(0, 100, seed + 1000)) < 0.05).mean()
        for seed in range(100)
    ]
    assert np.mean(shares) == pytest.approx(0.05, abs=0.015)


def test_texts_of_another_kind_are_flagged() -> None:
    assert (p_values(around(0, 100, 0), around(3, 50, 1)) < 0.05).mean() > 0.95


def test_what_a_model_knows_reads_back_as_it_was_written() -> None:
    known = Confidence(((0.1, 0.2), (0.0, 0.5)), around(0, 3, 0))
    width = known.vectors.shape[1]
    read = Confidence.from_bytes(known.to_bytes(), place="here", limits=2, width=width)
    assert read.scores == [[0.1, 0.2], [0.0, 0.5]]
    np.testing.assert_allclose(read.vectors, known.vectors, atol=1e-3)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "here: not the scores and vectors of a trained model"),
        (b"\x00" * 100, "here: not the scores and vectors of a trained model"),
        (save({"scores": np.zeros((2, 3))}), "here: not the scores and vectors"),
        (save({"scores": np.zeros((1, 3)), "vectors": np.ones((4, 8))}), r"expected numbers, \[2,"),
        (save({"scores": np.zeros((2, 3)), "vectors": np.ones((4, 9))}), r"and \[K, 8\]"),
        (save({"scores": np.zeros((2, 3)), "vectors": np.ones(8)}), r"and \[K, 8\]"),
        (save({"scores": np.full((2, 3), np.nan), "vectors": np.ones((4, 8))}), "numbers"),
        (save({"scores": np.zeros((2, 3)), "vectors": np.full((4, 8), np.inf)}), "numbers"),
    ],
)
def test_what_another_model_knows_is_refused(content: bytes, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Confidence.from_bytes(content, place="here", limits=2, width=8)


def test_a_set_of_none_or_several_labels_is_unsure() -> None:
    known = Confidence(((0.1,) * 10,), around(0, 3, 0))
    shares = np.array([[0.95, 0.05], [0.5, 0.5]])
    assert known.sets(("a", "b"), shares, exclusive=True, confidence=0.9) == [
        {"labels": ["a"], "unsure": False},
        {"labels": [], "unsure": True},
    ]
    several = Confidence(((0.1,) * 10, (0.6,) * 10), around(0, 3, 0))
    assert several.sets(("a", "b"), shares, exclusive=False, confidence=0.9) == [
        {"labels": ["a"], "unsure": []},
        {"labels": [], "unsure": ["a", "b"]},
    ]


def test_an_interval_is_as_wide_as_the_errors_were() -> None:
    known = Confidence((tuple(np.arange(1.0, 20.0)),), around(0, 3, 0))
    assert known.intervals(np.array([5.0]), confidence=0.9) == [{"interval": [-13.0, 23.0]}]
    assert known.intervals(np.array([5.0]), confidence=0.99) == [{"interval": None}]
