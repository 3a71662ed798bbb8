"""One program, watched to its end."""

import sys
from pathlib import Path

import pytest

from flows.launchers.local import LocalLauncher, local_job
from flows.launchers.watch import JobResult, StageFailed, run_job


def run(source: str, job: Path, *, stall_timeout: float = 60.0, lines: list[str] | None = None):
    heard = [] if lines is None else lines
    return run_job(
        [sys.executable, "-P", "-c", source],
        job=job,
        launcher=LocalLauncher(grace=1.0),
        on_line=heard.append,
        stall_timeout=stall_timeout,
    )


def test_its_lines_are_heard_in_order_and_its_memory_is_measured(tmp_path: Path) -> None:
    lines: list[str] = []
    source = "import time; block = b'x' * 60_000_000; time.sleep(1.5); print('one'); print('two')"
    result = run(source, tmp_path / "tokens", lines=lines)
    assert lines == ["one", "two"]
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
    found = local_job(tmp_path / "job")
    assert found
    assert not found.keeper.alive


def test_whatever_interrupts_the_watching_ends_the_program(tmp_path: Path) -> None:
    def interrupt(line: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_job(
            [sys.executable, "-u", "-c", "import time; print('begun'); time.sleep(300)"],
            job=tmp_path / "job",
            launcher=LocalLauncher(grace=1.0),
            on_line=interrupt,
            stall_timeout=60.0,
        )
    found = local_job(tmp_path / "job")
    assert found
    assert not found.keeper.alive
