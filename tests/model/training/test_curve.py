"""The curve is bounded, deterministic, and the same after an interruption."""

import json

from model.training import curve as curve_module
from model.training.curve import Curve


def _values(step: int) -> tuple[float, ...]:
    return (8.0 - step / 10, 7.0 - step / 10, 1.0, step / 100)


def test_a_short_run_has_a_point_a_step() -> None:
    curve = Curve(3)
    for step in (1, 2, 3):
        curve.add(step, _values(step))
    points = [json.loads(line) for line in curve.json_lines().splitlines()]
    assert [point["step"] for point in points] == [1, 2, 3]
    assert points[0]["masked_lm_loss"] == 6.9


def test_a_long_run_has_bounded_points_that_are_means(monkeypatch) -> None:
    monkeypatch.setattr(curve_module, "POINTS", 4)
    curve = Curve(10)
    for step in range(1, 11):
        curve.add(step, _values(step))
    assert [point["step"] for point in curve.points] == [3, 6, 9, 10]
    assert curve.points[0]["loss"] == (_values(1)[0] + _values(2)[0] + _values(3)[0]) / 3


def test_an_interruption_leaves_no_trace(monkeypatch) -> None:
    monkeypatch.setattr(curve_module, "POINTS", 4)
    whole, first = Curve(10), Curve(10)
    for step in range(1, 11):
        whole.add(step, _values(step))
        if step <= 4:
            first.add(step, _values(step))
    again = Curve(10)
    again.restore(json.loads(json.dumps(first.state())))
    for step in range(5, 11):
        again.add(step, _values(step))
    assert again.json_lines() == whole.json_lines()


def test_a_skipped_step_is_no_part_of_a_mean(monkeypatch) -> None:
    monkeypatch.setattr(curve_module, "POINTS", 2)
    curve = Curve(4)
    for step in (1, 3, 4):
        curve.add(step, _values(step))
    assert [point["step"] for point in curve.points] == [4]
    assert curve.points[0]["next_sentence_loss"] == 1.0
