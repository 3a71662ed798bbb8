import math

import numpy as np
import pytest
import scipy

from cloze.model.uncertainty.conformal import (
    label_sets,
    label_states,
    limits,
    nonconformity,
    reliance,
)
from cloze.model.uncertainty.held_out import HeldOutRows

REDRAWS, SCORED, NEW = 200, 99, 200


def rows(count: int, rng: np.random.Generator, *, several: bool = False) -> HeldOutRows:
    """A model that is too sure: coverage must not depend on its being right."""
    logits = rng.normal(0, 1, (count, 4))
    if several:
        truth = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    else:
        truth = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return HeldOutRows(3 * logits, truth)


def band(rows_each: int) -> float:
    """Three standard errors of the mean coverage over redraws; of a redraw it is Beta(90, 10)."""
    of_limit = scipy.stats.beta(90, 10).var()
    return 3 * math.sqrt((of_limit + 0.9 * 0.1 / rows_each) / REDRAWS)


def test_sets_of_labels_hold_the_truth_as_often_as_they_promise() -> None:
    covered = []
    for seed in range(REDRAWS):
        rng = np.random.default_rng(seed)
        limit = limits(nonconformity(rows(SCORED, rng)).T, 0.9)
        new = rows(NEW, rng)
        sets = label_sets(new.probabilities(), limit)
        covered.append(sets[np.arange(NEW), new.targets].mean())
    assert np.mean(covered) == pytest.approx(0.9, abs=band(NEW))


def test_the_states_of_each_of_several_labels_hold_the_truth_as_often() -> None:
    covered = []
    for seed in range(REDRAWS):
        rng = np.random.default_rng(seed)
        limit = limits(nonconformity(rows(SCORED, rng, several=True)).T, 0.9)
        new = rows(NEW, rng, several=True)
        present, absent = label_states(new.probabilities(), limit)
        covered.append(np.where(new.targets > 0, present, absent).mean(0))
    assert np.mean(covered, axis=0) == pytest.approx(np.full(4, 0.9), abs=band(NEW))


def test_intervals_of_numbers_hold_the_truth_as_often() -> None:
    covered = []
    for seed in range(REDRAWS):
        rng = np.random.default_rng(seed)
        errors = np.abs(rng.standard_t(3, SCORED + NEW))
        covered.append((errors[SCORED:] <= limits(errors[None, :SCORED], 0.9)).mean())
    assert np.mean(covered) == pytest.approx(0.9, abs=band(NEW))


def test_too_few_rows_for_a_confidence_exclude_nothing() -> None:
    assert limits([[0.1] * 8], 0.9).tolist() == [math.inf]
    assert limits([[0.1] * 8 + [0.7]], 0.9).tolist() == [0.7]
    assert limits([[0.1, 0.2, 0.3]], 0.5).tolist() == [0.2]


@pytest.mark.parametrize("confidence", [0.8, 0.9, 0.95])
def test_sets_are_those_of_mapie(confidence: float) -> None:
    classification = pytest.importorskip("mapie.classification")
    rng = np.random.default_rng(0)
    scored, new = rows(150, rng), rows(100, rng)

    class Known:
        """Looks probabilities up by a row's number."""

        classes_ = np.arange(4)
        table = np.concatenate((scored.probabilities(), new.probabilities()))

        def fit(self, *_: object) -> "Known":
            return self

        def predict_proba(self, places: np.ndarray) -> np.ndarray:
            return self.table[places[:, 0]]

        def predict(self, places: np.ndarray) -> np.ndarray:
            return self.predict_proba(places).argmax(-1)

        def __sklearn_is_fitted__(self) -> bool:
            return True

    theirs = classification.SplitConformalClassifier(
        Known(), confidence_level=confidence, conformity_score="lac", prefit=True
    )
    places = np.arange(250)[:, None]
    theirs.conformalize(places[:150], scored.targets)
    _, sets = theirs.predict_set(places[150:])
    ours = label_sets(new.probabilities(), limits(nonconformity(scored).T, confidence))
    assert (ours == sets[:, :, 0]).all()


def test_coverage_and_sizes_in_the_report_are_counted() -> None:
    sure = HeldOutRows(np.log([[0.9, 0.1]] * 19 + [[0.4, 0.6]]), np.array([0] * 19 + [0]))
    new = HeldOutRows(np.log([[0.95, 0.05], [0.5, 0.5], [0.05, 0.95]]), np.array([0, 0, 0]))
    found = reliance(sure, new, split="test")
    # at 0.9 and 0.8 the largest score allowed is 0.1: sets {0}, {}, {1}
    by_level = {one.confidence: one for one in found.coverage}
    for level in (0.8, 0.9):
        assert by_level[level].coverage == pytest.approx(1 / 3)
        assert by_level[level].size == pytest.approx(2 / 3)
        assert by_level[level].empty == pytest.approx(1 / 3)
    # at 0.95 it is that of the twentieth row, 0.6: sets {0}, {0, 1}, {1}
    assert by_level[0.95].size == pytest.approx(4 / 3)
    assert [(one.answered, one.errors) for one in found.risk] == [
        (pytest.approx(1 / 3), pytest.approx(0.0)),
        (pytest.approx(2 / 3), pytest.approx(0.5)),
        (pytest.approx(1.0), pytest.approx(1 / 3)),
    ]
