"""Warnings come when they should, once in a while, and not otherwise."""

from dataclasses import dataclass

import numpy as np
import pytest

from model.training.alarms import SILENCE, Alarms, entropy


@dataclass
class Step:
    step: int
    masked_lm_loss: float = 3.0
    seconds: float = 1.0
    waited: float = 0.0
    imbalance: float = 0.0


def _warnings(steps: list[Step], unigram_entropy: float = 6.0, patience: int = 200) -> list[str]:
    alarms = Alarms(unigram_entropy, patience)
    return [warning for step in steps for warning in alarms.check(step)]


def _noisy(count: int, mean: float = 3.0) -> list[Step]:
    rng = np.random.default_rng(0)
    return [Step(i, masked_lm_loss=mean + rng.normal() * 0.1) for i in range(count)]


def test_a_healthy_run_is_silent() -> None:
    assert _warnings(_noisy(1000)) == []


def test_a_loss_at_the_unigram_entropy_is_reported_after_some_patience() -> None:
    found = _warnings(_noisy(400, mean=6.0))
    assert len(found) == 1
    assert "unigram entropy 6.00 after 200 steps" in found[0]


def test_a_spike_is_reported_with_the_mean_before() -> None:
    found = _warnings([*_noisy(200), Step(200, masked_lm_loss=9.0)])
    assert len(found) == 1
    assert "9.000 at step 200, mean of the last 128 steps 2.997" in found[0]


def test_waiting_for_batches_is_reported() -> None:
    found = _warnings([Step(i, waited=0.3) for i in range(200)])
    assert found == [
        "30% of the time is spent waiting for batches; put the examples on a faster disk"
    ]


def test_uneven_work_is_reported_once_in_a_while() -> None:
    found = _warnings([Step(i, imbalance=0.5) for i in range(2 * SILENCE)])
    assert len(found) == 2
    assert "50% more work" in found[0]


def test_entropy_is_in_nats() -> None:
    assert entropy(np.array([1, 1, 0, 1, 1])) == pytest.approx(np.log(4))
    assert entropy(np.zeros(3, np.int64)) == 0.0
