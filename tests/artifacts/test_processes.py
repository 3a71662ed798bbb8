"""Processes: identified reliably, terminated and then killed, with all below them."""

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
from cloze.artifacts.runtime.processes import ProcessId, end, family, is_running

DEAF = (
    "import signal, time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
)


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


def test_a_stopped_process_is_continued_so_that_it_can_save(tmp_path: Path) -> None:
    source = f"""
import os, pathlib, signal, sys
def save(*_):
    pathlib.Path({str(tmp_path / "saved")!r}).touch()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
print(1, flush=True)
os.kill(os.getpid(), signal.SIGSTOP)
"""
    with python(source) as child:
        assert child.stdout
        child.stdout.readline()
        process = psutil.Process(child.pid)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        ProcessId.of(child.pid).end(grace=20.0)
        assert child.wait(10) == 0
    assert (tmp_path / "saved").exists()


def test_what_a_stopped_and_killed_process_leaves_behind_is_ended_too() -> None:
    source = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print(subprocess.Popen(["sleep", "60"]).pid, flush=True)
signal.pause()
"""
    with python(source) as child:
        assert child.stdout
        below = ProcessId.of(int(child.stdout.readline()))
        ProcessId.of(child.pid).end(grace=0.1)
        assert not below.alive
        assert child.wait(10) == -signal.SIGKILL


def test_a_test_that_fails_does_not_wait_for_its_program() -> None:
    with pytest.raises(AssertionError), subprocess.Popen(["sleep", "600"]) as program:
        raise AssertionError
    assert program.returncode == -signal.SIGKILL
