"""Programs forked from their supervisor look like started ones from the outside."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cloze.artifacts.runtime.processes import ProcessId, descendants
from cloze.artifacts.stage import StageTable, write_stage_table
from cloze.flows.job import StageFailed, run_job
from cloze.flows.launchers import local
from cloze.flows.launchers.launcher import LOST
from cloze.flows.launchers.local import PRELOADED, TRAINING, LocalJob, LocalLauncher
from cloze.flows.launchers.supervisor import PYTHON
from tests.conftest import PROJECT
from tests.waiting import wait_for

PROGRAM = """
import json, os, signal, sys, time

def look(file):
    own, parent = os.getpid(), os.getppid()
    seen = {
        "main": sys.modules["__main__"].__dict__ is globals(),
        "module": [__name__, __spec__.name, __file__],
        "argv": sys.argv,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "path": sys.path,
        "input": os.path.samestat(os.fstat(0), os.stat(os.devnull)),
        "handles": len(os.listdir("/proc/self/fd")),
        "leaders": [os.getsid(one) == os.getpgid(one) == one for one in (own, parent)],
        "signals": [str(signal.getsignal(one)) for one in sorted(signal.valid_signals())],
    }
    with open(file, "w") as found:
        json.dump(seen, found)

if __name__ == "__main__":
    print("out")
    print("err", file=sys.stderr)
    what, argument = sys.argv[1:3]
    if what == "look":
        look(argument)
    if what == "exit":
        sys.exit(int(argument))
    if what == "raise":
        raise RuntimeError(argument)
    if what == "signal":
        os.kill(os.getpid(), int(argument))
    if what == "sleep":
        time.sleep(float(argument))
"""
"""The module `prepared`, a stand-in for a stage's program."""


@pytest.fixture
def launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[LocalLauncher, LocalLauncher]]:
    """A launcher that starts programs, and one that forks them."""
    (tmp_path / "prepared.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}", "SAID": "so"}
    started, forked = (
        LocalLauncher(grace=1.0, environment=environment, preloaded=preloaded)
        for preloaded in ((), (*PRELOADED, "prepared"))
    )
    yield started, forked
    for launcher in (started, forked):
        for job in tmp_path.glob("*/job.json"):
            launcher.cancel(job.parent)
        launcher.close()
    assert not descendants(os.getpid())


def program(what: str, argument: object) -> list[str]:
    return [*PYTHON, "prepared", what, str(argument)]


def ended(launcher: LocalLauncher, job: Path) -> int:
    wait_for(lambda: launcher.poll(job) is not None, what="the program's end")
    code = launcher.poll(job)
    assert code is not None
    return code


def asleep(launcher: LocalLauncher, job: Path) -> tuple[psutil.Process, psutil.Process]:
    """The supervisor and the program of a sleeping job."""
    log = job / "log"
    log.unlink(missing_ok=True)
    launcher.start(program("sleep", 300), job=job)
    wait_for(lambda: log.exists() and "err" in log.read_text(), what="the program")
    found = LocalJob.read(job)
    assert found
    supervisor = psutil.Process(found.supervisor.pid)
    (child,) = supervisor.children(recursive=True)
    return supervisor, child


def gone(process: psutil.Process) -> bool:
    return not ProcessId.of(process.pid).alive


def test_a_forked_program_sees_what_a_started_one_sees(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    seen = []
    for launcher in launchers:
        file = tmp_path / "seen"
        launcher.start(program("look", file), job=tmp_path / "job")
        assert ended(launcher, tmp_path / "job") == 0
        seen.append(json.loads(file.read_text()))
        file.unlink()
    assert seen[0] == seen[1]
    assert seen[1]["environment"]["SAID"] == "so"


@pytest.fixture
def prepared_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module `prepared` is forked as training is, beside no GPU."""
    monkeypatch.setattr(local, "TRAINED", (TRAINING, "prepared"))
    monkeypatch.setattr(local, "has_gpu", lambda: False)


@pytest.mark.usefixtures("prepared_trains")
def test_a_training_program_is_forked_with_the_environment_of_its_table(
    launchers: tuple[LocalLauncher, LocalLauncher],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    seen, supervisors = list[dict[str, Any]](), []
    for launcher in launchers:
        for threads in (1, 1, 3):
            table, file = tmp_path / f"{threads}.json", tmp_path / "seen"
            machine = StageTable(
                stage="any", format_version=1, config={}, output="", machine={"threads": threads}
            )
            write_stage_table(machine, table)
            argv = [*PYTHON, TRAINING, "prepared", "look", str(file), "--config", str(table)]
            launcher.start(argv, job=tmp_path / "job")
            found = LocalJob.read(tmp_path / "job")
            assert found
            supervisors.append(found.supervisor)
            assert ended(launcher, tmp_path / "job") == 0, (tmp_path / "job" / "log").read_text()
            seen.append(json.loads(file.read_text()))
            assert seen[-1]["environment"]["OMP_NUM_THREADS"] == str(threads)
    assert seen[:3] == seen[3:]
    forking = supervisors[3:]
    assert forking[0] == forking[1] != forking[2]
    assert not forking[0].alive


@pytest.mark.usefixtures("prepared_trains")
def test_training_waits_for_its_next_program_beside_others_but_preparation_does_not(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    table = tmp_path / "table.json"
    write_stage_table(StageTable(stage="any", format_version=1, config={}, output=""), table)
    training = [*PYTHON, TRAINING, "prepared", "exit", "0", "--config", str(table)]
    supervisors = []
    for argv in (program("exit", 0), training, [sys.executable, "-c", ""], training):
        launchers[1].start(argv, job=tmp_path / "job")
        found = LocalJob.read(tmp_path / "job")
        assert found
        supervisors.append(found.supervisor)
        assert ended(launchers[1], tmp_path / "job") == 0
    prepares, trains, other, again = supervisors
    assert len({prepares, trains, other}) == 3
    assert trains == again
    assert [one.alive for one in (prepares, trains, other)] == [False, True, True]


def test_others_see_the_same_of_both(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    seen = []
    for launcher in launchers:
        supervisor, child = asleep(launcher, tmp_path / "job")
        assert supervisor.ppid() == os.getpid()
        assert child.ppid() == supervisor.pid
        seen.append(" ".join(child.cmdline()).rstrip())  # padded
        launcher.cancel(tmp_path / "job")
    assert seen == [" ".join(program("sleep", 300))] * 2


@pytest.mark.parametrize(
    ("what", "argument", "code"),
    [
        ("exit", 0, 0),
        ("exit", 3, 3),
        ("raise", "broken", 1),
        ("signal", 9, -9),
        ("signal", 15, -15),
    ],
)
def test_output_and_exit_code_are_the_same(
    launchers: tuple[LocalLauncher, LocalLauncher],
    tmp_path: Path,
    what: str,
    argument: object,
    code: int,
) -> None:
    logs = []
    for number, launcher in enumerate(launchers):
        job = tmp_path / str(number)
        launcher.start(program(what, argument), job=job)
        assert ended(launcher, job) == code
        assert (job / "exit").read_text() == f"{code}\n"
        lines = (job / "log").read_text().splitlines()
        logs.append([*lines[:2], lines[-1]])
    assert logs[0] == logs[1]


def test_a_signal_to_the_supervisor_ends_both_alike(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    codes = []
    for launcher in launchers:
        supervisor, child = asleep(launcher, tmp_path / "job")
        supervisor.terminate()
        codes.append(ended(launcher, tmp_path / "job"))
        assert gone(child)
    assert codes == [-signal.SIGTERM, -signal.SIGTERM]


def test_a_forked_program_ends_when_its_supervisor_is_killed(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    supervisor, child = asleep(launchers[1], tmp_path / "job")
    supervisor.kill()
    wait_for(lambda: gone(child))
    assert ended(launchers[1], tmp_path / "job") == LOST


def test_programs_run_under_one_supervisor_as_long_as_they_succeed(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    job = tmp_path / "job"
    for launcher in launchers:
        supervisors = []
        for code in (0, 0, 3, 0):
            launcher.start(program("exit", code), job=job)
            found = LocalJob.read(job)
            assert found
            supervisors.append(found.supervisor)
            assert ended(launcher, job) == code
        assert supervisors[0] == supervisors[1] == supervisors[2] != supervisors[3]
        assert not supervisors[0].alive
        assert supervisors[3].alive
        launcher.close()
        assert not supervisors[3].alive


def test_no_other_program_runs_under_a_supervisor_that_has_loaded_these(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    job = tmp_path / "job"
    supervisors = []
    for argv in (program("exit", 0), [sys.executable, "-c", ""], [sys.executable, "-c", "1"]):
        launchers[1].start(argv, job=job)
        found = LocalJob.read(job)
        assert found
        supervisors.append(found.supervisor)
        assert ended(launchers[1], job) == 0
    assert supervisors[0] != supervisors[1] == supervisors[2]
    assert not supervisors[0].alive


def test_a_supervisor_killed_while_it_waits_for_a_job_is_replaced(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    launchers[1].start(program("exit", 0), job=tmp_path / "job")
    assert ended(launchers[1], tmp_path / "job") == 0
    found = LocalJob.read(tmp_path / "job")
    assert found
    os.kill(found.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: not found.supervisor.alive)
    launchers[1].start(program("exit", 0), job=tmp_path / "job")
    assert ended(launchers[1], tmp_path / "job") == 0


def test_a_stopped_supervisor_is_waited_for_no_longer_than_a_silent_program(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    job = tmp_path / "job"
    launchers[1].start(program("exit", 0), job=job)
    assert ended(launchers[1], job) == 0
    found = LocalJob.read(job)
    assert found
    os.kill(found.supervisor.pid, signal.SIGSTOP)  # it will not begin the next one
    with pytest.raises(StageFailed, match=r"no output for .*jobs.stall_timeout") as failed:
        run_job(program("exit", 0), key="k", folder=job, launcher=launchers[1], stall_timeout=1.0)
    assert failed.value.retryable
    assert not found.supervisor.alive
    run_job(program("exit", 0), key="k", folder=job, launcher=launchers[1], stall_timeout=60.0)


@pytest.mark.parametrize("forks", [False, True])
def test_cancelling_a_job_whose_supervisor_is_stopped_ends_both(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path, forks: bool
) -> None:
    supervisor, child = asleep(launchers[forks], tmp_path / "job")
    supervisor.suspend()
    launchers[forks].cancel(tmp_path / "job")
    assert gone(supervisor)
    assert gone(child)


def test_programs_are_started_where_they_cannot_be_forked(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    (tmp_path / "setproctitle.py").write_text("raise ImportError")
    launchers[1].start(program("exit", 3), job=tmp_path / "job")
    assert ended(launchers[1], tmp_path / "job") == 3


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "prepared.py").write_text(PROGRAM)
    owner = f"""
import sys, time
from pathlib import Path
from cloze.flows.launchers.local import LocalLauncher
launcher = LocalLauncher(grace=1.0, preloaded=("prepared",))
for what, argument in (("exit", 0), ("sleep", 300)):
    launcher.start([*{list(PYTHON)}, "prepared", what, str(argument)], job=Path("job"))
    while what == "exit" and launcher.poll(Path("job")) is None:
        time.sleep(0.01)
time.sleep(300)
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", owner],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}"},
    ) as running:
        log = tmp_path / "job" / "log"
        wait_for(lambda: log.exists() and log.read_text().count("err") == 2)
        below = psutil.Process(running.pid).children(recursive=True)
        running.kill()
    assert len(below) == 2  # a supervisor, the program
    wait_for(lambda: all(map(gone, below)))
