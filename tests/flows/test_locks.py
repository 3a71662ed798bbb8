"""Locks: one run per name, one run per artifact, and `cloze gc` without any run."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from cloze.artifacts.errors import UsageError
from cloze.flows.locks import Holder, holder_of, leased, locked, locked_alone
from tests.waiting import wait_for

HOLDS = """
import sys, time
from pathlib import Path
from cloze.flows.locks import leased, locked, locked_alone
folder = Path(sys.argv[1])
with {held}:
    print("held", flush=True)
    time.sleep(300)
"""

RUN = 'locked(folder, run="theirs")'
GC = 'locked_alone(folder, run="gc")'
LEASE = 'leased(folder, "tokens-k", run="theirs", waiting=print)'


@contextmanager
def holder(folder: Path, held: str = RUN) -> "Iterator[subprocess.Popen[str]]":
    with subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDS.format(held=held), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout
        assert running.stdout.readline() == "held\n"
        yield running
        running.kill()


def in_use(running: "subprocess.Popen[str]", *, run: str) -> AbstractContextManager[object]:
    told = rf"in use by run {run} \(pid {running.pid} on \S+, since 20.*--set name=.*--workspace"
    return pytest.raises(UsageError, match=told)


def test_a_second_run_of_a_name_is_told_who_works_on_it(tmp_path: Path) -> None:
    with (
        holder(tmp_path) as running,
        in_use(running, run="theirs"),
        locked(tmp_path, run="theirs"),
    ):
        raise AssertionError("both hold it")


def test_runs_of_other_names_work_beside_it(tmp_path: Path) -> None:
    with holder(tmp_path) as running, locked(tmp_path, run="ours"):
        theirs, ours = holder_of(tmp_path / "theirs"), holder_of(tmp_path / "ours")
        assert theirs
        assert ours
        assert (theirs.run, theirs.pid, ours.pid) == ("theirs", running.pid, os.getpid())
    assert holder_of(tmp_path / "ours") is None


def test_who_wants_the_workspace_alone_is_told_of_a_run(tmp_path: Path) -> None:
    with (
        holder(tmp_path) as running,
        in_use(running, run="theirs"),
        locked_alone(tmp_path, run="gc"),
    ):
        raise AssertionError("it is not alone")


def test_no_run_starts_while_somebody_is_alone(tmp_path: Path) -> None:
    with (
        holder(tmp_path, GC) as running,
        in_use(running, run="gc"),
        locked(tmp_path, run="ours"),
    ):
        raise AssertionError("it is not alone")
    with locked(tmp_path, run="ours"):
        assert (tmp_path / ".lock").read_text() == "", "what the killed one left would be told of"


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    with holder(tmp_path) as running:
        running.kill()
    with locked(tmp_path, run="theirs"):
        assert f'"pid":{os.getpid()}' in (tmp_path / "theirs" / ".lock").read_text()
    with locked_alone(tmp_path, run="gc"):
        pass


def test_whoever_is_refused_does_not_take_it_for_a_moment(tmp_path: Path) -> None:
    with holder(tmp_path):
        for _ in range(3):
            with pytest.raises(UsageError), locked(tmp_path, run="theirs"):
                raise AssertionError("both hold it")
    with locked(tmp_path, run="theirs"):
        pass
    with locked(tmp_path, run="theirs"):
        pass


@pytest.mark.parametrize("held", [RUN, GC])
def test_removing_the_file_lets_nobody_else_in(held: str, tmp_path: Path) -> None:
    with holder(tmp_path, held):
        for file in (tmp_path / ".lock", tmp_path / "theirs" / ".lock"):
            file.unlink(missing_ok=True)
        with pytest.raises(UsageError, match="in use"), locked(tmp_path, run="theirs"):
            raise AssertionError("both hold it")


def test_its_holder_may_ask_for_it_again(tmp_path: Path) -> None:
    with locked(tmp_path, run="ours"):
        with locked(tmp_path, run="ours"):
            pass
        assert holder_of(tmp_path / "ours")


def test_a_failure_inside_frees_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path, run="one"):
        raise RuntimeError
    with locked(tmp_path, run="one"):
        pass


def test_a_lease_is_waited_for_and_says_for_whom(tmp_path: Path) -> None:
    told: list[Holder] = []
    have = threading.Event()

    def second() -> None:
        with leased(tmp_path, "tokens-k", run="second", waiting=told.append) as killed:
            assert killed is None, "who has finished is no longer named"
            have.set()

    thread = threading.Thread(target=second)
    with leased(tmp_path, "tokens-k", run="first", waiting=told.append) as killed:
        assert killed is None
        thread.start()
        wait_for(lambda: told, what="a word about the holder")
        with leased(tmp_path, "tokens-other", run="third", waiting=told.append):
            assert not have.is_set()
    thread.join()
    assert have.is_set()
    assert [(one.run, one.pid) for one in told] == [("first", os.getpid())]


def test_the_lease_of_a_killed_run_is_taken_over_and_names_it(tmp_path: Path) -> None:
    with holder(tmp_path, LEASE) as running:
        running.kill()
    for expected in (running.pid, None):
        with leased(tmp_path, "tokens-k", run="ours", waiting=print) as killed:
            assert (killed.pid if killed else None) == expected
