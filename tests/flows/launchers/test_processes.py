"""Who a process is."""

import os
import signal
import subprocess
import sys

from flows.launchers.job import tree_pss
from flows.launchers.processes import Process, process
from tests.waiting import PATIENCE, wait_for

DEAF = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
)


def test_we_are_alive_and_have_memory() -> None:
    ours = process(os.getpid())
    assert ours.alive
    assert ours.here
    assert tree_pss(ours.pid) > 1_000_000


def test_another_process_with_our_pid_is_not_us() -> None:
    ours = process(os.getpid())
    assert not ours.model_copy(update={"started": "1"}).alive
    assert not ours.model_copy(update={"host": "elsewhere"}).alive


def test_a_process_that_has_ended_is_not_alive_even_as_a_zombie() -> None:
    child = subprocess.Popen(["true"])
    known = process(child.pid)
    wait_for(lambda: not known.alive)
    child.wait()
    assert not known.alive
    assert tree_pss(child.pid) == 0


def test_a_process_that_does_not_listen_is_killed_after_its_grace() -> None:
    with subprocess.Popen([sys.executable, "-c", DEAF], stdout=subprocess.PIPE) as child:
        assert child.stdout
        child.stdout.readline()
        process(child.pid).end(grace=0.3)
        assert child.wait(PATIENCE) == -signal.SIGKILL


def test_it_survives_a_file() -> None:
    ours = process(os.getpid())
    assert Process.model_validate_json(ours.model_dump_json()) == ours
