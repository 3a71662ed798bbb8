"""Fixtures that several packages' tests share."""

import faulthandler
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fsspec
import hypothesis
import pytest

from cloze.artifacts import filesystem
from tests.listening import Sockets, watched
from tests.object_store.faulty_store import FaultyStore
from tests.running import RunFolder

PROJECT = Path(__file__).resolve().parent.parent

# Beside another busy program threads that spin while they wait make a step dozens of times slower,
# and machines that test are busy. Set before torch is imported, for it and whatever tests start;
# tests of how threads wait choose for themselves.
os.environ.update(OMP_WAIT_POLICY="PASSIVE", GOMP_SPINCOUNT="0")

# How long an example takes says more about the machine than about the code; and what CI refuses it
# must refuse again, so the examples are the same every time. `make fuzz` draws others.
hypothesis.settings.register_profile(
    "repeatable",
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    derandomize="CLOZE_FUZZ_EXAMPLES" not in os.environ,
)
hypothesis.settings.load_profile("repeatable")


def pytest_configure(config: pytest.Config) -> None:
    """Let Ctrl-C be heard by what tests start: below a shell's `&` it would be ignored by all."""
    config.stash[HUNG] = os.dup(2)
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


_leave = subprocess.Popen.__exit__


def _kill_and_leave(
    program: "subprocess.Popen[bytes]", kind: type[BaseException] | None, *rest: Any
) -> None:
    """End the program of a test that has failed: one that hangs would be waited for for ever."""
    if kind is not None:
        program.kill()
    _leave(program, kind, *rest)


subprocess.Popen.__exit__ = _kill_and_leave  # type: ignore[method-assign]

HUNG = pytest.StashKey[int]()
"""The real standard error, for the stacks of a test that hangs."""


def watch(config: pytest.Config) -> None:
    """End this process if nothing happens from now on; whatever cannot be interrupted is named.

    pytest-timeout interrupts a test once, and its `finally` may then wait for ever; pytest's own
    watch (`faulthandler_timeout`) is over as soon as a test has failed, and between tests.
    """
    if seconds := float(config.getini("faulthandler_timeout")):
        faulthandler.dump_traceback_later(seconds, exit=True, file=config.stash[HUNG])


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    """Watch what cleans up."""
    watch(item.config)
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Watch the time between two tests: pytest-xdist always has another one, or ends."""
    result = yield
    watch(item.config)
    return result


def pytest_sessionfinish() -> None:
    """Let whatever comes after the tests take its time."""
    faulthandler.cancel_dump_traceback_later()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip slow tests once CI's time budget is spent; the report lists each one skipped.

    CI ends a run that exceeds its time limit, and machines differ widely in speed.
    """
    deadline = float(os.environ.get("CLOZE_SLOW_TESTS_UNTIL", "inf"))
    if time.time() > deadline and item.get_closest_marker("slow"):
        pytest.skip("the time for slow tests is spent; `make test-ci` runs all of them")


SMOKE = ("configs/smoke.toml", "--set", "pipeline.worker_mode=processes")
"""The configuration of the golden run; so small a corpus would be prepared without workers."""


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real corpora and labelled tasks beside the project; tests that want them skip without."""
    directory = PROJECT.parent / "shared" / "data"
    if not directory.is_dir():
        pytest.skip("no ../shared/data here: this test wants its real corpora")
    return directory


@pytest.fixture
def faulty_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An object store of which every third call fails."""
    fsspec.register_implementation("faulty", FaultyStore, clobber=True)
    monkeypatch.setenv("FAULTY_EVERY", "3")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(filesystem, "FIRST_PAUSE_SECONDS", 0.001)
    return f"faulty://{tmp_path}/store"


@dataclass(frozen=True)
class GoldenRun:
    """A finished run of configs/smoke.toml; look at it, never change it (copy the folder)."""

    workspace: Path
    stdout: str
    stderr: str
    sockets: Sockets
    """Where its processes listened, and whom they called."""

    def digests(self) -> dict[str, str]:
        """Every stage's digest but the report's."""
        return RunFolder(self.workspace).digests()


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> GoldenRun:
    """Every real stage, run once by the real command under Prefect, shared by all tests."""
    workspace = tmp_path_factory.mktemp("golden") / "runs"
    argv, environment = command("run", *SMOKE, "--workspace", str(workspace))
    pipe = subprocess.PIPE
    with (
        subprocess.Popen(
            argv, stdout=pipe, stderr=pipe, text=True, cwd=PROJECT, env=environment
        ) as running,
        watched(running.pid) as sockets,
    ):
        stdout, stderr = running.communicate(timeout=600)
    assert running.returncode == 0, stderr
    return GoldenRun(workspace, stdout, stderr, sockets)


def cloze(*arguments: str, cwd: Path = PROJECT) -> "subprocess.CompletedProcess[str]":
    """`cloze …` as a program of its own."""
    argv, environment = command(*arguments)
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
        env=environment,
        timeout=600,
    )


def command(*arguments: str) -> tuple[list[str], dict[str, str]]:
    """Argv and environment of `cloze …`, which reports to no server that happens to be there."""
    source = "from cloze.command import main; main()"
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    return [sys.executable, "-P", "-c", source, *arguments], environment
