"""A rank that hangs ends within its time-out and says where it was."""

import subprocess
import sys

from model.training.watchdog import EXIT_CODE
from tests.waiting import PATIENCE

WATCHED = """
import time
from model.training.watchdog import Watchdog
with Watchdog(3, {timeout}) as watchdog:
    watchdog.alive("before_step", 17)
    {inside}
{after}
"""


def _watched(*, timeout: float, inside: str, after: str = "") -> tuple[int, str]:
    source = WATCHED.format(timeout=timeout, inside=inside, after=after)
    program = [sys.executable, "-c", source]
    done = subprocess.run(program, capture_output=True, text=True, timeout=PATIENCE, check=False)
    return done.returncode, done.stderr


def test_a_hanging_rank_ends_and_names_rank_step_and_site() -> None:
    code, message = _watched(timeout=0.6, inside=f"time.sleep({PATIENCE})")
    assert code == EXIT_CODE
    assert "rank 3 has made no progress for 0.6 s, last seen at before_step of step 17" in message
    assert 'File "<string>"' in message, "the stacks of all threads are shown"


def test_a_rank_that_lives_is_left_alone() -> None:
    steps = "for i in range(25): time.sleep(0.2); watchdog.alive('after_step', i)"
    assert _watched(timeout=4, inside=steps) == (0, "")


def test_leaving_ends_the_watch() -> None:
    assert _watched(timeout=2, inside="pass", after="time.sleep(3)") == (0, "")
