"""Warnings are issued when due; a hanging rank is ended; a signal is a request to stop."""

import os
import signal
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest

from cloze.artifacts.arrays import entropy
from cloze.model.training.health import HANG_EXIT_CODE, SILENCE, Alarms, Deadline, Stop
from cloze.model.training.telemetry import StepRecord
from tests.model.training.training_fixtures import step_record
from tests.waiting import PATIENCE

WATCHED = """
import time
from cloze.model.training.health import Watchdog
with Watchdog(3, {timeout}) as watchdog:
    watchdog.reached("before_step", 17)
    {inside}
{after}
"""


class SlowClock:
    """Seconds that a test decides."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def _ends(pace: list[float], *, limit: float, steps: int, closing: float = 0.0) -> list[int]:
    """The end after each step, which takes as long as `pace` says, until it is reached."""
    clock = SlowClock()
    deadline = Deadline(limit, closing, now=clock)
    ends = [steps]
    for step, seconds in enumerate(pace, 1):
        clock.seconds += seconds
        ends.append(deadline.end(step, ends[-1]))
        if ends[-1] == step:
            break
    return ends[1:]


def test_steps_that_fit_are_all_made() -> None:
    assert _ends([1.0] * 100, limit=100, steps=100) == [100] * 100


def test_a_machine_that_was_slow_in_the_middle_only_loses_nothing() -> None:
    # 25 s of 100 are lost, then steps are four times as fast
    assert _ends([1.0] * 20 + [2.0] * 25 + [0.25] * 55, limit=100, steps=100) == [100] * 100


def test_steps_that_do_not_fit_are_left_out_in_the_last_fifth_of_the_time() -> None:
    # 80 s are over after step 40; 20 s are left for 10 steps of 2 s
    ends = _ends([2.0] * 100, limit=100, steps=100)
    assert ends == [100] * 39 + [50] * 11


def test_time_is_left_for_what_comes_after_the_last_step() -> None:
    assert _ends([2.0] * 100, limit=100, steps=100, closing=3)[-1] == 47


def test_an_evaluation_longer_than_a_fifth_of_the_time_has_its_time() -> None:
    # the evaluation takes 13 steps of 5 s: 35 s are left for steps, and decide after 28
    ends = _ends([5.0] * 100, limit=100, steps=100, closing=13)
    assert ends == [100] * 5 + [7] * 2
    # one that takes more than the time leaves what was needed to know it
    assert _ends([5.0] * 100, limit=100, steps=100, closing=50) == [100] * 3 + [4]


def test_a_machine_that_becomes_slower_still_ends_in_time_to_a_step() -> None:
    # 100 fit at first; at 80 s steps begin to take 10 s, and one of them shows it
    ends = _ends([1.0] * 80 + [10.0] * 20, limit=100, steps=100)
    assert ends[:80] == [100] * 80
    assert ends[-1] == 82


def test_a_machine_that_slows_down_more_and_more_shortens_a_few_times_and_ends_in_time() -> None:
    # every step of the last fifth takes 5 % longer than the one before
    pace = [0.01] * 8000 + [0.01 * 1.05**late for late in range(200)]
    ends = _ends(pace, limit=100, steps=10_000)
    changes = [step for step, (a, b) in enumerate(pairwise([10_000, *ends]), 1) if a != b]
    left = [100 - sum(pace[:step]) for step in changes]
    assert 2 <= len(changes) <= 8
    # half of the time left is over before the next
    assert all(later <= sooner / 2 for sooner, later in pairwise(left))
    assert sum(pace[: len(ends) - 1]) < 100


def test_a_step_longer_than_the_time_is_the_only_one() -> None:
    assert _ends([300.0], limit=100, steps=100) == [1]


def _step(step: int, **changes: float) -> StepRecord:
    healthy = {"masked_lm_loss": 3.0, "seconds": 1.0, "waited": 0.0, "imbalance": 0.0}
    return step_record(step, **{**healthy, **changes})


def _warnings(
    steps: list[StepRecord], unigram_entropy: float = 6.0, patience: int = 200
) -> list[str]:
    alarms = Alarms(unigram_entropy, patience)
    return [warning for step in steps for warning in alarms.check(step)]


def _noisy(count: int, mean: float = 3.0) -> list[StepRecord]:
    rng = np.random.default_rng(0)
    return [_step(i, masked_lm_loss=mean + rng.normal() * 0.1) for i in range(count)]


def test_a_healthy_run_is_silent() -> None:
    assert _warnings(_noisy(1000)) == []


def test_a_loss_at_the_unigram_entropy_is_reported_after_some_patience() -> None:
    found = _warnings(_noisy(400, mean=6.0))
    assert len(found) == 1
    assert "unigram entropy 6.00 after 200 steps" in found[0]


def test_a_spike_is_reported_with_the_mean_before() -> None:
    found = _warnings([*_noisy(200), _step(200, masked_lm_loss=9.0)])
    assert len(found) == 1
    assert "9.000 at step 200, mean of the last 128 steps 2.997" in found[0]


def test_waiting_for_batches_is_reported() -> None:
    found = _warnings([_step(i, waited=0.3) for i in range(200)])
    assert found == [
        "30% of the time is spent waiting for batches; put the examples on a faster disk"
    ]


def test_uneven_work_is_reported_once_in_a_while() -> None:
    found = _warnings([_step(i, imbalance=0.5) for i in range(2 * SILENCE)])
    assert len(found) == 2
    assert "50% more work" in found[0]


def test_entropy_is_in_nats() -> None:
    assert entropy(np.array([1, 1, 0, 1, 1])) == pytest.approx(np.log(4))
    assert entropy(np.array([1, 1, 0, 2])) == pytest.approx(1.5 * np.log(2))
    assert entropy(np.zeros(3, np.int64)) == 0.0


def _watched(*, timeout: float, inside: str, after: str = "") -> tuple[int, str]:
    source = WATCHED.format(timeout=timeout, inside=inside, after=after)
    program = [sys.executable, "-c", source]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stderr


def test_a_hanging_rank_ends_and_names_rank_step_and_site() -> None:
    code, message = _watched(timeout=0.6, inside=f"time.sleep({PATIENCE})")
    assert code == HANG_EXIT_CODE
    assert "rank 3 has made no progress for 0.6 s, last seen at before_step of step 17" in message
    assert 'File "<string>"' in message, "the stacks of all threads are shown"


def test_a_rank_that_lives_is_left_alone() -> None:
    steps = "for i in range(25): time.sleep(0.2); watchdog.reached('after_step', i)"
    assert _watched(timeout=4, inside=steps) == (0, "")


def test_leaving_ends_the_watch() -> None:
    assert _watched(timeout=2, inside="pass", after="time.sleep(3)") == (0, "")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_a_wish_and_may_come_twice(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with Stop().listening() as stop:
        assert not stop.wanted
        os.kill(os.getpid(), number)
        os.kill(os.getpid(), number)
        assert stop.wanted
    assert signal.getsignal(number) is before
