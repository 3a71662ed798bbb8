"""OpenMP threads spin while the cores are free and sleep while they are not."""

import subprocess
import sys
from typing import Any

import pytest

from cloze.model.training import waiting
from cloze.model.training.start import WAITING
from cloze.model.training.waiting import Use, Waiting

PROGRAM = """
import time, torch
from cloze.model.training.waiting import IdleTeam, _runtime
torch.set_num_threads(2)
values = torch.ones(1 << 17)

def burnt():
    started = time.process_time()
    for _ in range(150):
        values.add_(1)
        time.sleep(0.002)
    return time.process_time() - started

burnt()
spinning = burnt()
team = IdleTeam(_runtime(), size=17)
asleep = burnt()
team.end()
print(spinning, asleep, burnt())
"""


def test_an_idle_team_puts_waiting_threads_to_sleep_and_its_end_wakes_them() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**WAITING, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
        cwd=".",
    )
    spinning, asleep, again = map(float, done.stdout.split())
    assert asleep < 0.3 * spinning
    assert asleep < 0.3 * again


class Team:
    """Counts."""

    there = 0

    def __init__(self, runtime: Any, *, size: int) -> None:
        Team.there += 1

    def end(self) -> None:
        Team.there -= 1


@pytest.fixture
def switch(monkeypatch: pytest.MonkeyPatch) -> Waiting:
    monkeypatch.setattr(waiting, "IdleTeam", Team)
    monkeypatch.setattr(Team, "there", 0)
    return Waiting(None, threads=2)  # type: ignore[arg-type]


def test_threads_sleep_as_long_as_another_program_has_a_core(switch: Waiting) -> None:
    alone = {"idle": 0.0, "ours": 2.0}
    beside = {"idle": 0.1, "ours": 0.9}
    shown, at, idle, ours = [], 0.0, 0.0, 0.0
    for use in (alone, beside, beside, alone, alone, beside, alone):
        before = Use(at, idle, ours)
        at, idle, ours = at + 1.0, idle + use["idle"], ours + use["ours"]
        switch.decide(before, Use(at, idle, ours))
        shown.append(switch.asleep)
    assert shown == [False, True, True, False, False, True, False]
    assert Team.there == 0


def test_threads_sleep_until_the_cores_are_known_to_be_free(switch: Waiting) -> None:
    assert switch.asleep
    switch.decide(Use(0.0, 0.0, 0.0), Use(1.0, 0.2, 1.8))
    assert not switch.asleep


def test_free_cores_beside_ours_are_no_contention(switch: Waiting) -> None:
    switch.decide(Use(0.0, 0.0, 0.0), Use(1.0, 6.0, 1.9))  # 8 cores, others use less than one
    assert not switch.asleep


def test_a_little_work_of_others_changes_nothing_back_and_forth(switch: Waiting) -> None:
    switch.spin()
    for ours in (1.8, 1.85, 1.8):
        switch.decide(Use(0.0, 0.0, 0.0), Use(1.0, 0.0, ours))
        assert not switch.asleep


def test_between_the_two_bounds_threads_stay_as_they_are(switch: Waiting) -> None:
    between = Use(0.0, 0.0, 0.0), Use(1.0, 0.0, 1.8)  # a fifth of a core is missing
    switch.decide(*between)
    assert switch.asleep
    switch.spin()
    switch.decide(*between)
    assert not switch.asleep


def test_a_single_thread_has_nothing_to_wait_for() -> None:
    with waiting.patient_threads(1):
        pass
    assert waiting.processor_use() is not None
