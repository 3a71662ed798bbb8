"""Following one program until it exits."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows import job as jobs
from flows.events import OutputLog
from flows.job import JobResult, StageFailed, run_job, tree_pss
from flows.launchers.local import LocalJob, LocalLauncher


def run(source: str, job: Path, *, stall_timeout: float = 60.0) -> JobResult:
    argv = [sys.executable, "-P", "-c", source]
    launcher = LocalLauncher(grace=1.0)
    return run_job(argv, folder=job, launcher=launcher, stall_timeout=stall_timeout)


def test_its_lines_are_logged_in_order_and_its_memory_is_measured(
    tmp_path: Path, events: list[tuple[str, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(jobs, "MEMORY_SHARE", 1.0)  # sample once a second even on a slow machine
    source = "import time; block = b'x' * 60_000_000; time.sleep(1.5); print('one'); print('two')"
    result = run(source, tmp_path / "tokens")
    assert events == [("tokens", "output", "one"), ("tokens", "output", "two")]
    assert isinstance(result, JobResult)
    assert result.seconds > 1.5
    assert result.peak_memory > 60_000_000


def test_an_error_line_becomes_the_failure_with_the_log_named(tmp_path: Path) -> None:
    source = "import sys; print('error: a.txt: is cut'); print('bye'); sys.exit(2)"
    with pytest.raises(StageFailed, match=r"^tokens: a.txt: is cut \(log: .*/tokens/log\)$") as got:
        run(source, tmp_path / "tokens")
    assert (got.value.exit_code, got.value.retryable) == (2, False)


def test_a_crash_is_named_by_its_last_line(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="exit 1; last line: RuntimeError: boom") as got:
        run("raise RuntimeError('boom')", tmp_path / "tokens")
    assert (got.value.exit_code, got.value.retryable) == (1, False)


def test_a_killed_program_is_worth_another_try(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="killed by signal 9") as got:
        run("import os; os.kill(os.getpid(), 9)", tmp_path / "tokens")
    assert got.value.retryable


def test_an_earlier_attempts_error_is_not_taken_for_this_ones(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match="the first"):
        run("print('error: the first'); raise SystemExit(1)", tmp_path / "tokens")
    with pytest.raises(StageFailed, match="last line: nothing"):
        run("print('nothing'); raise SystemExit(1)", tmp_path / "tokens")


def test_a_program_that_falls_silent_is_ended(tmp_path: Path) -> None:
    with pytest.raises(StageFailed, match=r"no output for .*jobs.stall_timeout") as got:
        run("import time; print('begun'); time.sleep(300)", tmp_path / "job", stall_timeout=1.0)
    assert got.value.retryable
    found = LocalJob.read(tmp_path / "job")
    assert found
    assert not found.supervisor.alive


def test_whatever_interrupts_the_waiting_ends_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: OutputLog, line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(OutputLog, "line", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run("import time; print('begun', flush=True); time.sleep(300)", tmp_path / "job")
    found = LocalJob.read(tmp_path / "job")
    assert found
    assert not found.supervisor.alive


def test_a_process_has_memory_until_it_has_ended() -> None:
    assert tree_pss(os.getpid()) > 1_000_000
    child = subprocess.Popen(["true"])
    child.wait()
    assert tree_pss(child.pid) == 0
