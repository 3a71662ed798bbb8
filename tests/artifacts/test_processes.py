"""Child processes: identified reliably, never left behind, terminated and then killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cloze.artifacts.config import Config
from cloze.artifacts.runtime.processes import (
    ProcessId,
    die_with_parent,
    end,
    family,
    is_running,
    start,
)

DEAF = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
)
PARENT = """
import sys, time
from cloze.artifacts.runtime.processes import start
print(start([sys.executable, "-c", "import time; time.sleep(60)"]).pid, flush=True)
time.sleep(60)
"""
FORKING_PARENT = """
import os, time
from cloze.artifacts.runtime.processes import die_with_parent
parent = os.getpid()
child = os.fork()
if not child:
    die_with_parent(parent)
    os.write(1, f"{os.getpid()}\\n".encode())
time.sleep(60)
"""
ADOPTING = """
import os, subprocess, sys
import psutil
from cloze.artifacts.runtime.processes import adopt_orphans
adopt_orphans()
subprocess.run(["sh", "-c", "sleep 60 & exit 0"])
orphans = psutil.Process().children()
print(len(orphans))
for orphan in orphans:
    orphan.kill()
"""


class Record(Config):
    """A program written to a file."""

    owner: ProcessId


def wait_for(condition: Callable[[], object], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)


def python(source: str) -> "subprocess.Popen[bytes]":
    """A program that has printed its first line, the process id of its child."""
    return subprocess.Popen([sys.executable, "-P", "-c", source], stdout=subprocess.PIPE)


def test_another_process_with_our_pid_is_not_us() -> None:
    ours = ProcessId.of(os.getpid())
    assert ours.alive
    assert not replace(ours, started=ours.started + 1_000).alive
    assert not replace(ours, host="elsewhere").alive


def test_a_process_that_has_ended_is_not_alive_even_as_a_zombie() -> None:
    child = subprocess.Popen(["true"])
    known = ProcessId.of(child.pid)
    wait_for(lambda: not known.alive)
    assert child.wait() == 0
    assert not known.alive
    assert not ProcessId.of(child.pid).alive


def test_a_process_is_known_again_from_a_file() -> None:
    written = Record(owner=ProcessId.of(os.getpid())).model_dump_json()
    assert Record.model_validate_json(written).owner.alive


@pytest.mark.skipif(sys.platform != "linux", reason="the record is Linux's own")
def test_a_process_is_known_again_from_a_record_of_the_version_before() -> None:
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    ours = ProcessId.of(os.getpid())
    before = f'{{"owner": {{"pid": {ours.pid}, "started": "{ticks}", "host": "{ours.host}"}}}}'
    assert Record.model_validate_json(before).owner.alive


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


def test_a_process_that_ignores_sigterm_is_killed_after_its_grace() -> None:
    with python(DEAF) as child:
        assert child.stdout
        child.stdout.readline()
        ProcessId.of(child.pid).end(grace=0.2)
        assert child.wait(10) == -signal.SIGKILL


def test_a_family_is_ended_with_its_grandchildren_and_keeps_its_exit_code() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60; exit 0"]) as child:
        wait_for(lambda: len(family(child.pid)) == 3)
        members = family(child.pid)
        end(members, grace=5.0)
        assert not any(map(is_running, members))
        assert child.wait(10) == -signal.SIGTERM


def test_a_process_that_is_gone_has_no_family_and_ends_without_a_word() -> None:
    child = subprocess.Popen(["true"])
    known = [psutil.Process(child.pid)]
    child.wait()
    assert family(child.pid) == []
    end(known, grace=1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone hands orphans on")
def test_orphans_are_adopted() -> None:
    with python(ADOPTING) as parent:
        assert parent.stdout
        assert parent.stdout.read() == b"1\n"
