import numpy as np
import pytest

from cloze.model.uncertainty.calibration import calibration, fit_temperatures, quality
from cloze.model.uncertainty.held_out import HeldOutRows


def drawn(rows: int, *, labels: int = 3, sharpness: float = 1.0, seed: int = 0) -> HeldOutRows:
    """Rows whose labels are drawn from softmax(logits); the logits are then made sharper."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (rows, labels))
    truth = (logits + rng.gumbel(size=logits.shape)).argmax(-1)
    return HeldOutRows(logits * sharpness, truth)


def drawn_sets(rows: int, sharpness: tuple[float, ...], seed: int = 0) -> HeldOutRows:
    """Rows with any number of labels; the logits of each label are made sharper by its own."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 2, (rows, len(sharpness)))
    present = (rng.random(logits.shape) < 1 / (1 + np.exp(-logits))).astype(np.int64)
    return HeldOutRows(logits * np.array(sharpness), present)


@pytest.mark.parametrize("sharpness", [0.25, 1.0, 3.0])
def test_the_temperature_is_how_much_too_sharp_the_logits_are(sharpness: float) -> None:
    (found,) = fit_temperatures(drawn(4000, sharpness=sharpness))
    assert found == pytest.approx(sharpness, rel=0.06)


def test_each_label_of_several_has_its_own_temperature_unless_it_is_rare() -> None:
    rows = drawn_sets(4000, (0.5, 3.0))
    assert fit_temperatures(rows) == pytest.approx((0.5, 3.0), rel=0.1)
    rare = rows.targets.copy()
    rare[:, 1] = 0
    rare[:5, 1] = 1
    first, second = fit_temperatures(HeldOutRows(rows.logits, rare))
    assert first == pytest.approx(0.5, rel=0.1)
    (common,) = {second} - {first}
    assert common != pytest.approx(3.0, rel=0.1)


def test_rows_that_are_all_right_do_not_make_probabilities_certain() -> None:
    certain = HeldOutRows(np.eye(2)[np.arange(20) % 2] * 2, np.arange(20) % 2)
    (found,) = fit_temperatures(certain)
    assert 0.2 < found < 1.0


@pytest.mark.parametrize("seed", range(10))
def test_probabilities_that_are_right_keep_their_temperature_though_rows_are_few(seed: int) -> None:
    # fitted, the logarithm of a temperature would be off by a quarter
    assert fit_temperatures(drawn(128, sharpness=1.0, seed=seed)) == (1.0,)
    (found,) = fit_temperatures(drawn(128, sharpness=3.0, seed=seed))
    assert 2.0 < found < 4.5


def test_nine_rows_are_too_few_for_a_temperature() -> None:
    assert fit_temperatures(drawn(9, sharpness=3.0)) == (1.0,)


def test_figures_are_those_computed_by_hand() -> None:
    # probabilities 0.8, 0.8, 0.8, 0.6 of the likeliest label, which is right but for the third
    rows = HeldOutRows(
        np.log([[0.8, 0.2], [0.2, 0.8], [0.8, 0.2], [0.6, 0.4]]), np.array([0, 1, 1, 0])
    )
    found = quality(rows)
    assert found.log_loss.value == pytest.approx(-np.log([0.8, 0.8, 0.2, 0.6]).mean())
    assert found.brier.value == pytest.approx((0.08 + 0.08 + 1.28 + 0.32) / 4)
    # one bin: mean probability 0.75, three of four right
    assert found.calibration_error.value == pytest.approx(0.0, abs=1e-9)
    (only,) = found.reliability
    assert (only.probability, only.frequency, only.events) == (
        pytest.approx(0.75),
        pytest.approx(0.75),
        4,
    )


def test_of_several_labels_the_brier_score_is_the_mean_over_labels() -> None:
    # probabilities 0.8, 0.5 of labels that the first row has and lacks; 0.2, 0.5 the other way
    rows = HeldOutRows(np.log([[4.0, 1.0], [0.25, 1.0]]), np.array([[1, 0], [0, 1]]))
    assert quality(rows).brier.value == pytest.approx((0.04 + 0.25 + 0.04 + 0.25) / 4)


def test_log_loss_and_brier_score_are_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rows = drawn(500, sharpness=2.0)
    found = quality(rows)
    shares = rows.probabilities()
    assert found.log_loss.value == pytest.approx(metrics.log_loss(rows.targets, shares))
    brier = metrics.brier_score_loss(rows.targets, shares, scale_by_half=False)
    assert found.brier.value == pytest.approx(brier)
    assert found.log_loss.low < found.log_loss.value < found.log_loss.high


@pytest.mark.parametrize("test_rows", [0, 2000])
def test_calibration_lowers_the_error_of_overconfident_probabilities(test_rows: int) -> None:
    judged = drawn(test_rows, sharpness=4.0, seed=1) if test_rows else None
    found = calibration(drawn(2000, sharpness=4.0), judged, split="test" if test_rows else "dev")
    assert found.before.calibration_error.value > 0.1
    assert found.after.calibration_error.value < 0.03
    assert found.after.log_loss.high < found.before.log_loss.low


def test_the_bins_hold_equally_many_events() -> None:
    counts = [one.events for one in quality(drawn(750)).reliability]
    assert len(counts) == 15
    assert set(counts) == {50}
