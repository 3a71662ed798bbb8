"""Stage programs: one line and an exit code for every error that a user can fix."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.runtime.processes import ProcessId
from cloze.artifacts.runtime.program import StageFunction, run_program
from cloze.artifacts.stage import StageTable, read_stage_table, write_stage_table
from cloze.artifacts.store import Artifact, commit
from tests.waiting import wait_for

PROJECT = Path(__file__).resolve().parents[2]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "tokens.json"
    write_stage_table(
        StageTable(stage="tokens", format_version=1, config={}, output=str(tmp_path / "out")), path
    )
    return path


def code_of(stage: StageFunction, arguments: list[str]) -> object:
    """The exit code of a program of `stage`."""
    with pytest.raises(SystemExit) as ended:
        run_program(stage, arguments)
    return ended.value.code


def finish(table: StageTable, options: list[str]) -> Artifact:
    return commit(table, [], statistics={"options": options})


def test_success_prints_the_digest_and_passes_engine_options(table: Path, capsys) -> None:
    assert code_of(finish, ["--config", str(table), "--runner=FlinkRunner"]) == 0
    manifest = json.loads((Path(read_stage_table(table).output) / "manifest.json").read_text())
    assert manifest["statistics"] == {"options": ["--runner=FlinkRunner"]}
    assert len(capsys.readouterr().out.strip()) == 64


@pytest.mark.parametrize(
    ("error", "code"),
    [(ClozeError("disk full"), 1), (UsageError("no corpus"), 2), (KeyboardInterrupt(), 130)],
)
def test_failures_are_one_line_and_a_code(table: Path, capsys, error, code: int) -> None:
    def fail(table: StageTable, options: list[str]) -> Artifact:
        raise error

    assert code_of(fail, ["--config", str(table)]) == code
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert str(error) in lines[0]


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_an_error_that_a_library_makes_of_a_signal_is_the_signal(
    table: Path, capsys, signum: signal.Signals
) -> None:
    def fail(table: StageTable, options: list[str]) -> Artifact:
        try:
            signal.raise_signal(signum)
        except BaseException as error:
            raise ValueError(f"no validator: {error}") from None
        raise AssertionError

    assert code_of(fail, ["--config", str(table)]) == 128 + signum
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("finished parts are kept, run the same command to resume")


def test_a_panic_of_a_library_in_rust_is_one_line(table: Path, capsys) -> None:
    def fail(table: StageTable, options: list[str]) -> Artifact:
        raise type("PanicException", (BaseException,), {})("index out of bounds")

    assert code_of(fail, ["--config", str(table)]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: a library in Rust failed (index out of bounds)")


@pytest.mark.parametrize("content", [None, "{", '{"stage": 1}'])
def test_a_wrong_stage_table_is_a_usage_error(tmp_path: Path, content: str | None, capsys) -> None:
    path = tmp_path / "table.json"
    if content is not None:
        path.write_text(content)
    assert code_of(finish, ["--config", str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_sigterm_ends_a_stage_with_143_after_its_cleanup(table: Path, tmp_path: Path) -> None:
    # longer than an orphan may take: otherwise its launcher sets the limit
    argv = waiting_stage(table, tmp_path, cleanup="time.sleep(2); print('cleaned', flush=True)")
    with python(*argv) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        child.send_signal(signal.SIGTERM)
        assert child.stdout.read() == "cleaned\n"
        assert child.wait(timeout=60) == 143


def test_a_stage_that_cannot_end_does_not_outlive_a_killed_launcher(
    table: Path, tmp_path: Path
) -> None:
    deadlock = "lock = threading.Lock(); lock.acquire(); print('stuck', flush=True); lock.acquire()"
    argv = waiting_stage(table, tmp_path, cleanup=deadlock)
    launching = (
        "import sys, time\n"
        "from cloze.artifacts.runtime.children import start\n"
        "print(start([sys.executable, *sys.argv[1:]]).pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with python("-c", launching, *argv) as launcher:
        assert launcher.stdout is not None
        stage = ProcessId.of(int(launcher.stdout.readline()))
        assert launcher.stdout.readline() == "ready\n"
        launcher.kill()
        assert launcher.stdout.readline() == "stuck\n"
        try:
            wait_for(lambda: not stage.alive, seconds=60, what="the stage's end")
        finally:
            stage.end(grace=0)


def waiting_stage(table: Path, folder: Path, *, cleanup: str) -> list[str]:
    """Python arguments for a stage that waits; as an orphan it has one second for `cleanup`."""
    program = folder / "waiting.py"
    program.write_text(
        "import threading, time\n"
        "from cloze.artifacts.runtime import program\n"
        "program.ORPHAN_SECONDS = 1\n"
        "def wait(table, options):\n"
        "    try:\n"
        "        print('ready', flush=True)\n"
        "        while True: time.sleep(0.01)\n"  # a signal just before one long sleep waits for it
        "    finally:\n"
        f"        {cleanup}\n"
        "program.run_program(wait)\n"
    )
    return [str(program), "--config", str(table)]


def python(*arguments: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(PROJECT)},
    )
