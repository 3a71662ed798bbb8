"""Children: what if one dies, hangs, is told to stop, or outlives its parent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil
import pytest

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.runtime.children import (
    Child,
    WorkerFailed,
    WorkerKilled,
    Workers,
    die_with_parent,
    run_forked,
    start,
)
from cloze.artifacts.runtime.processes import ProcessId
from tests.waiting import wait_for

PARENT = """
import sys, time
from cloze.artifacts.runtime.children import start
print(start([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""
FORKING_PARENT = """
import time
from cloze.artifacts.runtime.children import run_forked
print(run_forked(lambda: time.sleep(60)).pid, flush=True)
time.sleep(60)
"""
SUPERVISING = """
import os, sys
from cloze.artifacts.runtime.children import Supervisor, start
with Supervisor(grace={grace}, owner={owner}) as supervisor:
    code = supervisor.watch(start(["sh", "-c", {script!r}]))
    below = open(f"/proc/self/task/{{os.getpid()}}/children").read()
    print(code, supervisor.received, repr(below), flush=True)
"""


def python(source: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen([sys.executable, "-P", "-c", source], stdout=subprocess.PIPE)


def alive(pid: int) -> bool:
    return ProcessId.of(pid).alive


@pytest.mark.parametrize("source", [PARENT, FORKING_PARENT])
def test_a_child_dies_with_its_parent_even_when_that_is_killed(source: str) -> None:
    with python(source) as parent:
        assert parent.stdout
        child = ProcessId.of(int(parent.stdout.readline()))
        assert child.alive
        parent.kill()
        wait_for(lambda: not child.alive)


def test_a_child_whose_parent_died_before_it_could_ask_ends_at_once() -> None:
    child = os.fork()
    if not child:
        die_with_parent(parent=1 << 30)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL


def test_a_started_program_says_how_it_ended_and_what_it_printed(tmp_path: Path) -> None:
    with open(tmp_path / "log", "wb") as log:
        child = start(["sh", "-c", "echo out; echo err >&2; exit 3"], output=log)
        assert child.wait(10) == 3
    assert (tmp_path / "log").read_text() == "out\nerr\n"


@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_waiting_ends_when_the_child_does_or_the_time_is_over(
    platform: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with start(["sleep", "60"]) as child:
        monkeypatch.setattr(sys, "platform", platform)
        assert child.wait(0.05) is None
        os.kill(child.pid, signal.SIGTERM)
        assert child.wait() == -signal.SIGTERM
        assert child.poll() == -signal.SIGTERM


def test_leaving_the_block_of_a_child_kills_it_with_all_below_it() -> None:
    def raises(child: Child) -> None:
        wait_for(lambda: len(psutil.Process(child.pid).children()) == 1)
        below.extend(one.pid for one in psutil.Process(child.pid).children())
        raise KeyboardInterrupt

    below: list[int] = []
    with (
        pytest.raises(KeyboardInterrupt),
        start(["sh", "-c", "trap '' TERM; sleep 60 & wait; wait"]) as child,
    ):
        raises(child)
    assert child.poll() == -signal.SIGKILL
    assert not any(map(alive, below))


def fail(error: BaseException) -> None:
    raise error


def kill(signum: int) -> None:
    os.kill(os.getpid(), signum)


@pytest.mark.parametrize(
    ("work", "code", "said"),
    [
        (lambda: None, 0, ""),
        (partial(fail, ClozeError("a.txt: is cut")), 1, "error: a.txt: is cut\n"),
        (partial(fail, ZeroDivisionError("by zero")), 1, "ZeroDivisionError: by zero\n"),
        (partial(kill, signal.SIGTERM), -signal.SIGTERM, ""),
    ],
)
def test_forked_work_ends_with_a_code_and_never_fails_without_a_word(
    work: Callable[[], None], code: int, said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run_forked(work).wait(20) == code
    assert capfd.readouterr().err.endswith(said)


def test_forked_work_is_not_deaf_to_signals_that_its_parent_handles() -> None:
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with run_forked(lambda: time.sleep(60)) as child:
            wait_for(lambda: not signals_caught(child.pid) & 1 << signal.SIGTERM - 1)
            os.kill(child.pid, signal.SIGTERM)
            assert child.wait(20) == -signal.SIGTERM
    finally:
        signal.signal(signal.SIGTERM, before)


def signals_caught(pid: int) -> int:
    """The mask of signals that a process handles."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))


@pytest.mark.parametrize(
    ("work", "kind", "code", "match"),
    [
        (partial(kill, signal.SIGKILL), WorkerKilled, 137, "SIGKILL, possibly out of memory; fin"),
        (partial(kill, signal.SIGTERM), WorkerKilled, 137, "was ended by SIGTERM; finished parts"),
        (partial(kill, signal.SIGUSR1), WorkerFailed, 1, "SIGUSR1; its messages are above"),
        (partial(fail, ClozeError("no")), WorkerFailed, 1, "exit code 1; its messages are above"),
    ],
)
def test_a_worker_that_ends_early_ends_the_others(
    work: Callable[[], None], kind: type[WorkerFailed], code: int, match: str, tmp_path: Path
) -> None:
    def sleep() -> None:
        (tmp_path / "pid").write_text(str(os.getpid()))
        time.sleep(60)

    def wait_and_work() -> None:
        wait_for(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        work()

    with pytest.raises(kind, match=match) as caught, Workers([sleep, wait_and_work]) as workers:
        while workers.running():
            time.sleep(0.01)
    assert type(caught.value) is kind
    assert caught.value.exit_code == code
    assert not alive(int((tmp_path / "pid").read_text()))


def supervised(script: str, *, grace: float = 20.0, owner: int | None = None) -> bytes:
    """What the program above prints about a child that runs `script`."""
    with python(SUPERVISING.format(grace=grace, owner=owner, script=script)) as running:
        assert running.stdout
        return running.stdout.read()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone hands orphans on")
@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("exit 3", b"3 None ''\n"),
        ("sleep 60 & exit 0", b"0 None ''\n"),
        ("kill -9 $$", b"-9 None ''\n"),
        ("trap 'sleep 0.3; exit 7' TERM; kill -TERM $PPID; sleep 60 & wait; wait", b"7 15 ''\n"),
        ("trap '' INT; kill -INT $PPID; sleep 60", b"-15 2 ''\n"),
    ],
)
def test_a_supervisor_ends_with_its_child_leaves_nothing_and_passes_on_the_wish_to_stop(
    script: str, expected: bytes
) -> None:
    assert supervised(script) == expected


def test_a_supervisor_kills_a_child_that_is_deaf_after_its_grace() -> None:
    assert supervised("trap '' TERM; kill -TERM $PPID; sleep 60", grace=0.2) == b"-9 15 ''\n"


def test_a_supervisor_whose_owner_is_gone_ends_its_child() -> None:
    assert supervised("sleep 60", owner=1 << 30) == b"-15 None ''\n"
