"""The command of a stage's program, and following it until it exits."""

import itertools
import os
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from cloze.artifacts.config import StageConfig
from cloze.flows import job as jobs
from cloze.flows.config import MachineConfig
from cloze.flows.events import OutputLog
from cloze.flows.job import (
    JobResult,
    StageFailed,
    begin_attempt,
    end_attempt,
    program_argv,
    pss_of,
    run_job,
    tail,
)
from cloze.flows.launchers.local import LocalJob, LocalLauncher
from cloze.model.config import EvaluateStage, FinetuneStage, PretrainStage
from cloze.pipeline.config.settings import TokensStage

PRETRAIN = PretrainStage.model_construct()
TOKENS = TokensStage.model_construct()


def words(config: StageConfig, *options: str, **training: int) -> str:
    machine = MachineConfig.model_validate({"training": training})
    argv = program_argv(config, "TABLE", machine=machine, options=options)
    assert argv[0] == sys.executable
    return " ".join(argv[1:])


def test_a_program_runs_with_p_and_its_options_come_last() -> None:
    assert words(TOKENS) == "-P -m cloze.pipeline.tokens --config TABLE"
    assert words(TOKENS, "--region=x").endswith("--config TABLE --region=x")


@pytest.mark.parametrize("stage", [PretrainStage, FinetuneStage, EvaluateStage])
def test_what_computes_with_torch_is_started_in_the_environment_for_it(
    stage: type[StageConfig],
) -> None:
    started = f"-P -m cloze.model.training.start {stage.program} --config TABLE"
    assert words(stage.model_construct()) == started


@pytest.mark.parametrize("stage", [PretrainStage, FinetuneStage, EvaluateStage])
@pytest.mark.parametrize("training", [{"ranks": 2}, {"max_restarts": 1}])
def test_whatever_computes_with_torch_has_a_supervisor_for_ranks_or_restarts(
    stage: type[StageConfig], training: dict[str, int]
) -> None:
    supervisor = "-P -m cloze.model.training.supervisor"
    supervised = f"{supervisor} {stage.program} --config TABLE"
    assert words(stage.model_construct(), **training) == supervised
    assert "supervisor" not in words(TOKENS, **training)


def test_options_for_the_launcher_go_through_the_supervisor() -> None:
    shown = words(PRETRAIN, "--hostfile", "hosts")
    assert shown.endswith("pretrain --config TABLE --hostfile hosts")
    assert "supervisor" in shown


def run(source: str, job: Path, *, stall_timeout: float = 60.0) -> JobResult:
    argv = [sys.executable, "-P", "-c", source]
    with closing(LocalLauncher(grace=1.0)) as launcher:
        return run_job(argv, key="k", folder=job, launcher=launcher, stall_timeout=stall_timeout)


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
    assert pss_of([os.getpid()]) > 1_000_000
    child = subprocess.Popen(["true"])
    child.wait()
    assert pss_of([child.pid]) == 0


def test_memory_of_processes_that_ran_before_the_job_is_not_the_jobs(tmp_path: Path) -> None:
    code = "x = bytearray(200_000_000); print('ready', flush=True); input()"
    other = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert other.stdout is not None
        other.stdout.readline()
        result = run("import time; time.sleep(1.5)", tmp_path / "job")
    finally:
        other.communicate(b"\n")
    assert 1_000_000 < result.peak_memory < 100_000_000


def test_attempts_at_the_same_key_add_up(tmp_path: Path) -> None:
    first = begin_attempt(tmp_path, "k")
    assert end_attempt(tmp_path, first, spent=100.0, finished=False) == 100.0
    second = begin_attempt(tmp_path, "k")
    assert end_attempt(tmp_path, second, spent=20.0, finished=False) == 120.0
    assert begin_attempt(tmp_path, "other").seconds == 0.0


def test_a_killed_attempt_lasted_until_the_last_line_of_its_program(tmp_path: Path) -> None:
    killed = begin_attempt(tmp_path, "k")
    log = tmp_path / "log"
    log.write_text("step=40\n")
    assert killed.started
    os.utime(log, (killed.started + 60.0, killed.started + 60.0))
    again = begin_attempt(tmp_path, "k")
    assert again.seconds == pytest.approx(60.0, abs=0.1)
    end_attempt(tmp_path, again, spent=1.0, finished=True)
    assert begin_attempt(tmp_path, "k").seconds == 0.0


def test_a_clock_that_jumps_during_a_job_changes_nothing_of_its_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = itertools.count(1e9, 3600.0)  # an hour passes between any two looks at it
    monkeypatch.setattr("cloze.flows.job.time.time", lambda: next(times))
    assert run("pass", tmp_path / "job").seconds < 60.0


def test_each_line_comes_once_when_it_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = tail(path)
    assert next(lines) == []
    path.write_bytes(b"one\ntw")
    assert next(lines) == ["one"]
    with path.open("ab") as file:
        file.write(b"o\n\nthree\n")
    assert next(lines) == ["two", "three"]
    assert next(lines) == []


def test_a_carriage_return_ends_a_line_too(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"10 %\r20 %\r\n")
    assert next(tail(tmp_path / "log")) == ["10 %", "20 %"]


def test_bytes_that_are_no_text_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\xff\xfe\n")
    assert next(tail(tmp_path / "log")) == ["\ufffd\ufffd"]


def test_reading_can_begin_where_an_earlier_attempt_ended(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"old\nnew\n")
    assert next(tail(tmp_path / "log", offset=4)) == ["new"]
