"""A rank that hangs ends within its time-out and says where it was."""

import subprocess
import sys
import time

from model.training.watchdog import EXIT_CODE, Watchdog

HANGING = """
import time
from model.training.watchdog import Watchdog
with Watchdog(3, 0.6) as watchdog:
    watchdog.alive("before_step", 17)
    {hang}
"""


def _hang(code: str) -> tuple[int, str, float]:
    started = time.monotonic()
    program = [sys.executable, "-c", HANGING.format(hang=code)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr, time.monotonic() - started


def test_a_hanging_rank_ends_and_names_rank_step_and_site() -> None:
    code, message, _ = _hang("time.sleep(50)")
    assert code == EXIT_CODE
    assert "rank 3 has made no progress for 0.6 s, last seen at before_step of step 17" in message
    assert 'File "<string>"' in message, "the stacks of all threads are shown"


def test_a_rank_that_lives_is_left_alone() -> None:
    code, message, _ = _hang("for i in range(12): time.sleep(0.1); watchdog.alive('after_step', i)")
    assert (code, message) == (0, "")


def test_leaving_ends_the_watch() -> None:
    with Watchdog(0, 0.2):
        pass
    time.sleep(0.5)
