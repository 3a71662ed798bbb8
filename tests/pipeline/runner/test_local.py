"""The local runner: inline, threads and processes; clear errors; no processes left behind."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import grpc
import psutil
import pytest

from cloze.artifacts.errors import IntegrityError
from cloze.artifacts.progress import Progress
from cloze.artifacts.runtime.children import WorkerKilled
from cloze.artifacts.runtime.temporary import temporary_directory
from cloze.pipeline.config.settings import PipelineMachine
from cloze.pipeline.runner import execution
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import (
    Collection,
    JobFailed,
    WorkQueue,
    gather,
    job_error,
    share_out,
    spread,
)
from tests.waiting import wait_for

UNITS = 8


def wait_for_units(count: int, *, folder: str) -> None:
    wait_for(lambda: len(list(Path(folder).iterdir())) >= count, what=f"{count} units")


def write_unit(unit: int, *, folder: str, queue: WorkQueue, slow: int | None = None) -> int:
    if unit == slow:
        wait_for_units(UNITS - 1, folder=folder)
    Path(folder, str(unit)).write_text(str(os.getpid()))
    queue.report(MB=1.5, documents=10)
    return unit


def check_unit(unit: int, *, folder: str) -> int:
    assert len([path for path in Path(folder).iterdir() if not path.suffix]) == UNITS
    Path(folder, f"{unit}.checked").touch(exist_ok=False)
    return unit


def raise_in_threads(unit: int) -> int:
    def fail(error: Exception) -> None:
        raise error

    for error in (grpc.RpcError("closed"), ValueError("a fault")):
        thread = threading.Thread(target=fail, args=(error,))
        thread.start()
        thread.join()
    return unit


def kill_worker(unit: int) -> int:
    if unit == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return unit


def kill_runner(unit: int) -> int:
    if unit == 3:
        os.kill(os.getppid(), signal.SIGKILL)
    return unit


def raise_integrity(unit: int) -> int:
    if unit == 3:
        raise IntegrityError("train-00003.arrow: damaged; run the stage again")
    return unit


def divide_by_zero(unit: int) -> float:
    return unit / 0


def sleep_long(unit: int) -> int:
    time.sleep(60)
    return unit


def run(function, *, mode: str, stall_timeout: float = 60.0) -> Progress:
    progress = Progress("test", total=UNITS * 1.5, unit="MB")

    def build(queue: WorkQueue) -> Collection[int]:
        bound = partial(function, queue=queue) if function_takes_crew(function) else function
        return spread(range(UNITS), queue).map("Work", bound)

    machine = PipelineMachine(workers=2, worker_mode=mode, stall_timeout=stall_timeout)
    Runner(machine, options=[], output="").run(build, progress)
    return progress


def function_takes_crew(function) -> bool:
    return isinstance(function, partial)


def processes_of_this_session() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.mark.parametrize("mode", ["inline", "threads", "processes"])
def test_every_unit_is_done_and_reported(mode, tmp_path, capfd):
    before = processes_of_this_session()
    progress = run(partial(write_unit, folder=str(tmp_path)), mode=mode)
    assert sorted(path.name for path in tmp_path.iterdir()) == [str(unit) for unit in range(UNITS)]
    assert progress.done == UNITS * 1.5
    assert "12/12 MB" in capfd.readouterr().err
    assert processes_of_this_session() == before


def test_what_threads_raise_is_shown_but_for_closed_streams(capfd):
    run(raise_in_threads, mode="threads")
    shown = capfd.readouterr().err
    assert "ValueError: a fault" in shown
    assert "RpcError" not in shown


def test_processes_share_the_work_and_who_is_slower_takes_less(tmp_path, capfd):
    run(partial(write_unit, folder=str(tmp_path), slow=0), mode="processes")
    assert all(line.startswith("test ") for line in capfd.readouterr().err.splitlines())
    worker_of = {int(path.name): path.read_text() for path in tmp_path.iterdir()}
    assert len(set(worker_of.values())) == 2
    assert list(worker_of.values()).count(worker_of[0]) == 1


@pytest.mark.parametrize("mode", ["inline", "threads", "processes"])
def test_what_all_workers_have_made_is_gathered_and_shared_out_again(mode, tmp_path):
    def build(queue: WorkQueue) -> Collection[int]:
        first = partial(write_unit, folder=str(tmp_path), queue=queue)
        units = gather(spread(range(UNITS), queue).map("First", first), label="All")
        second = partial(check_unit, folder=str(tmp_path))
        return share_out(units, queue, label="Again").map("Second", second)

    machine = PipelineMachine(workers=2, worker_mode=mode)
    progress = Progress("test", total=UNITS * 1.5, unit="MB")
    Runner(machine, options=[], output="").run(build, progress)
    assert progress.done == UNITS * 1.5
    checked = sorted(int(path.stem) for path in tmp_path.glob("*.checked"))
    assert checked == list(range(UNITS))


@pytest.mark.parametrize(
    ("kill", "victim"),
    [(kill_worker, "worker"), (kill_runner, "job's process")],
)
def test_whoever_is_killed_there_is_a_clear_error_no_hang_and_nothing_left(
    kill, victim, capfd, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(execution, "LONGEST_DIRECTORY", 1000)  # pytest's paths are long
    before = processes_of_this_session()
    with pytest.raises(
        WorkerKilled, match=rf"{victim}.* was (ended|killed).*run the same command"
    ) as caught:
        run(kill, mode="processes")
    assert caught.value.exit_code == 137  # so that a flow retries
    assert not list(tmp_path.iterdir())
    assert processes_of_this_session() == before
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize("mode", ["inline", "threads", "processes"])
def test_an_error_of_ours_comes_back_as_itself(mode, capfd):
    with pytest.raises(IntegrityError, match=r"^train-00003.arrow: damaged; run the stage again$"):
        run(raise_integrity, mode=mode)
    assert mode == "inline" or capfd.readouterr().err == ""


@pytest.mark.parametrize("mode", ["inline", "processes"])
def test_an_error_of_the_code_names_itself_on_one_line(mode, capfd):
    with pytest.raises(JobFailed, match="ZeroDivisionError: division by zero") as caught:
        run(divide_by_zero, mode=mode)
    assert "\n" not in str(caught.value)
    assert "in divide_by_zero" in capfd.readouterr().err


def test_a_job_that_finishes_nothing_is_stopped():
    before = processes_of_this_session()
    with pytest.raises(JobFailed, match="finished nothing for 1 s"):
        run(sleep_long, mode="processes", stall_timeout=1.0)
    assert processes_of_this_session() == before


def test_an_error_inside_a_traceback_is_recognised():
    text = (
        "Traceback (most recent call last):\n  File x\n"
        "cloze.artifacts.errors.UsageError: a.txt: empty [while running 'Read-ptransform-3']\n\n"
        "During handling of the above exception:\nTraceback\nRuntimeError: other\n"
    )
    error = job_error("RuntimeError", text)
    assert str(error) == "a.txt: empty"
    assert error.exit_code == 2


def ports() -> set[str]:
    """Ports on which this process and its parent listen."""
    parents = [parent for parent in psutil.Process().parents()[:1] if parent.pid > 1]
    family = [psutil.Process(), *parents]
    sockets = [one for process in family for one in process.net_connections("tcp")]
    return {str(one.laddr) for one in sockets if one.status == psutil.CONN_LISTEN}


def note_ports(unit: int, *, folder: str, known: set[str], queue: WorkQueue) -> int:
    """Record the ports of this worker and its runner."""
    Path(folder, str(unit)).write_text(" ".join(sorted(ports() - known)))
    return unit


@pytest.mark.parametrize("mode", ["threads", "processes"])
def test_workers_are_served_without_any_port_in_a_folder_of_any_name(mode, tmp_path, monkeypatch):
    folder = Path(tempfile.mkdtemp(prefix='it\'s 100% "odd" %41'))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    known = ports()  # ports left open by earlier tests in this process
    run(partial(note_ports, folder=str(tmp_path), known=known), mode=mode)
    assert [path.read_text() for path in tmp_path.iterdir()] == [""] * UNITS
    folder.rmdir()


STALLS = """
import time
from cloze.artifacts.progress import Progress
from cloze.artifacts.runtime.children import WorkerKilled
from cloze.pipeline.config.settings import PipelineMachine
from cloze.pipeline.runner.execution import Runner
from cloze.pipeline.runner.graph import spread

Runner(PipelineMachine(workers=1, stall_timeout=0.1), options=[], output="").run(
    lambda queue: spread([60], queue).map("Sleep", time.sleep),
    Progress("test", total=1, unit="MB"),
)
"""


def test_a_job_of_one_worker_that_finishes_nothing_is_stopped() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STALLS], capture_output=True, text=True, check=False
    )
    assert done.returncode == -signal.SIGTERM
    assert "error: the job has finished nothing for 0 s and was stopped" in done.stderr


@pytest.mark.parametrize(
    ("megabytes", "workers", "has_workers"), [(1.0, 2, False), (100.0, 2, True), (100.0, 1, False)]
)
def test_workers_are_started_only_where_there_is_enough_for_them(
    tmp_path, megabytes: float, workers: int, has_workers: bool
) -> None:
    def build(queue: WorkQueue) -> Collection[int]:
        return spread(range(UNITS), queue).map("Note", partial(note_process, folder=tmp_path))

    runner = Runner(PipelineMachine(workers=workers), options=[], output="")
    runner.run(build, Progress("test", total=1, unit="MB"), megabytes=megabytes)
    here = (tmp_path / str(os.getpid())).exists()
    assert here != has_workers


def note_process(unit: int, *, folder: Path) -> int:
    (folder / str(os.getpid())).touch()
    return unit


def test_the_sockets_of_a_job_are_its_users_alone(tmp_path):
    def build(queue: WorkQueue) -> Collection[int]:
        return spread(range(UNITS), queue).map("Note", partial(note_mode, queue=queue))

    machine = PipelineMachine(workers=2, worker_mode="processes")
    progress = Progress("test", total=1, unit="MB")
    Runner(machine, options=[], output="").run(build, progress)


def note_mode(unit: int, *, queue: WorkQueue) -> int:
    directory = Path(queue.directory)
    assert {"control", "data", "state"} <= {path.name for path in directory.iterdir()}
    assert directory.stat().st_mode & 0o777 == 0o700
    return unit


def test_the_length_of_the_temporary_directory_counts_in_bytes(monkeypatch):
    monkeypatch.setattr(execution, "LONGEST_DIRECTORY", 10)
    for directory, expected in (("/12345678", "/12345678"), ("/üüüü567", "/tmp")):
        monkeypatch.setattr(tempfile, "tempdir", directory)  # 9 bytes; 8 letters in 12 bytes
        assert execution.scratch_parent() == expected


def test_a_temporary_directory_of_the_longest_name_has_room_for_sockets(monkeypatch):
    monkeypatch.setattr(os, "getpid", lambda: 4_194_304)  # Linux has no greater ones
    with tempfile.TemporaryDirectory(dir="/tmp") as short:
        longest = Path(short, "x" * (execution.LONGEST_DIRECTORY - len(f"{short}/") - 1))
        longest.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(longest))
        assert execution.scratch_parent() == str(longest)
        with temporary_directory(str(longest)) as folder, socket.socket(socket.AF_UNIX) as one:
            one.bind(f"{folder}/control")
