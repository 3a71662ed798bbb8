"""The learning rate is the reference's (optimization.py:32-54), its drop included."""

import pytest

from model.config import OptimizerConfig
from model.training.schedule import learning_rate

RECIPE = OptimizerConfig(learning_rate=1e-4, warmup_steps=10)


def _rate(step: int) -> float:
    return learning_rate(step, steps=100, optimizer=RECIPE)


def test_it_begins_at_zero_and_rises_linearly() -> None:
    assert _rate(0) == 0.0
    assert _rate(5) == pytest.approx(0.5e-4)
    assert _rate(9) == pytest.approx(0.9e-4)


def test_it_drops_to_the_decay_line_that_began_at_step_0() -> None:
    assert _rate(10) == pytest.approx(1e-4 * (1 - 10 / 100))


def test_it_ends_at_zero() -> None:
    assert _rate(99) == pytest.approx(1e-6)
    assert _rate(100) == 0.0


def test_no_warmup_begins_at_the_peak() -> None:
    assert learning_rate(0, steps=10, optimizer=OptimizerConfig(warmup_steps=0)) == 1e-4
