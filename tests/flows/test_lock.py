"""One run at a time works in a workspace."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from artifacts.errors import UsageError
from flows.workspace import locked

HOLDS = """
import sys, time
from pathlib import Path
from flows.workspace import locked
with locked(Path(sys.argv[1]), run="theirs"):
    print("held", flush=True)
    time.sleep(300)
"""


def holder(folder: Path) -> "subprocess.Popen[str]":
    running = subprocess.Popen(
        [sys.executable, "-P", "-c", HOLDS, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert running.stdout
    assert running.stdout.readline() == "held\n"
    return running


def test_a_second_run_is_told_who_works_there(tmp_path: Path) -> None:
    with holder(tmp_path) as running:
        expected = rf"in use by run theirs \(pid {running.pid} on \S+, since 20.*--workspace"
        with pytest.raises(UsageError, match=expected), locked(tmp_path, run="ours"):
            raise AssertionError("both hold it")
        running.kill()


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    with holder(tmp_path) as running:
        running.kill()
    with locked(tmp_path, run="ours"):
        assert f'"pid": {os.getpid()}' in (tmp_path / ".lock").read_text()


def test_whoever_is_refused_does_not_take_it_for_a_moment(tmp_path: Path) -> None:
    with holder(tmp_path) as running:
        for _ in range(3):
            with pytest.raises(UsageError), locked(tmp_path, run="ours"):
                raise AssertionError("both hold it")
        running.kill()
    with locked(tmp_path, run="one"):
        pass
    with locked(tmp_path, run="two"):
        pass


def test_removing_the_file_lets_nobody_else_in(tmp_path: Path) -> None:
    with holder(tmp_path) as running:
        (tmp_path / ".lock").unlink()
        with pytest.raises(UsageError, match="in use"), locked(tmp_path, run="ours"):
            raise AssertionError("both hold it")
        running.kill()


def test_its_holder_may_ask_for_it_again(tmp_path: Path) -> None:
    with locked(tmp_path, run="ours"):
        with locked(tmp_path, run="ours"):
            pass
        assert f'"pid": {os.getpid()}' in (tmp_path / ".lock").read_text()


def test_a_failure_inside_frees_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path, run="one"):
        raise RuntimeError
    with locked(tmp_path, run="two"):
        pass
