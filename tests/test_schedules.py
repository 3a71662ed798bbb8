"""Runs started together, killed and continued by the dice: they end with the same digests.

A schedule is a seed. In each of its rounds one to three runs start in one workspace, some moments
apart; then the command, or any process below it, is sent SIGKILL or SIGTERM, or nothing is. After
the last round one more run finishes what is left. Runs have one of two names: of one name one works
at a time, two names share all their stages. Stand-ins take the place of the stages' programs,
but for a few schedules that the smoke run's own stages follow.
"""

import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.conftest import SMOKE, GoldenRun
from tests.flows.standin_chain import Chain, ends, make_chain
from tests.forked_commands import Forked
from tests.running import RunFolder

SCHEDULES = int(os.environ.get("CLOZE_SCHEDULES", "24"))  # `make schedules` follows 200
REAL_SCHEDULES = int(os.environ.get("CLOZE_REAL_SCHEDULES", "1"))  # and 20 with real stages
AT_ONCE = 2 * (os.cpu_count() or 1)
REFUSED = 2
NAMES = ("try", "again")
STAGES = ("vocabulary", "tokens", "examples")


def struck(run: "Forked | subprocess.Popen[str]", dice: random.Random) -> bool:
    """Whether a process of the run was sent a signal, its own or one below it."""
    with suppress(psutil.NoSuchProcess):
        family = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        dice.choice(family).send_signal(dice.choice([signal.SIGKILL, signal.SIGTERM]))
        return True
    return False


def follow(chain: Chain, seed: int) -> None:
    """Do what the schedule says; every run ends in a way that it may."""
    dice, name = random.Random(seed), f"schedule-{seed}"
    for _ in range(dice.randint(1, 3)):
        runs = []
        for _ in range(dice.choice([1, 1, 2, 3])):
            time.sleep(dice.choice([0.0, 0.0, 0.5, 2.0]))
            runs.append(chain.begin(name, verb="prepare", run=dice.choice(NAMES)))
        time.sleep(dice.uniform(0.0, 6.0))
        anyone_struck = [struck(run, dice) for run in runs if dice.random() < 0.8]
        for code, said in ends(runs):
            refused = code == REFUSED and "in use by run" in said
            assert code == 0 or refused or any(anyone_struck), (seed, code, said)
    ((code, said),) = ends([chain.begin(name, verb="prepare")])
    assert code == 0, (seed, said)
    assert chain.digests(name) == {stage: chain.expected[stage] for stage in STAGES}, seed
    assert not RunFolder(chain.workspace(name)).processes(), seed


@pytest.mark.slow
def test_every_schedule_of_starts_kills_and_continued_runs_ends_with_the_same_digests(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    chain = make_chain(tmp_path_factory.mktemp("schedules"))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for done in [pool.submit(follow, chain, seed) for seed in range(SCHEDULES)]:
            done.result()


@pytest.mark.slow
def test_the_smoke_runs_own_stages_follow_schedules_to_the_golden_digests(
    golden: GoldenRun, tmp_path: Path
) -> None:
    expected = RunFolder(golden.workspace).digests()
    chain = Chain(tmp_path, expected, "cloze", SMOKE)
    for seed in range(REAL_SCHEDULES):
        follow(chain, seed)
