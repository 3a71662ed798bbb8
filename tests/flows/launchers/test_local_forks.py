"""Programs forked from a warm process look like started ones from the outside."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from cloze.artifacts.runtime.processes import ProcessId, descendants
from cloze.flows.launchers import local
from cloze.flows.launchers.launcher import LOST
from cloze.flows.launchers.local import MODULES, PYTHON, LocalJob, LocalLauncher, WarmProcess
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
    what, argument = sys.argv[1:]
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
def forks(monkeypatch: pytest.MonkeyPatch) -> Iterator[WarmProcess]:
    monkeypatch.setattr(local, "MODULES", (*MODULES, "prepared"))
    process = WarmProcess()
    yield process
    process.close()
    assert not descendants(os.getpid())


@pytest.fixture
def launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forks: WarmProcess
) -> Iterator[tuple[LocalLauncher, LocalLauncher]]:
    """A launcher that starts programs, and one that forks them."""
    (tmp_path / "prepared.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    environment = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}", "SAID": "so"}
    started, forked = (
        LocalLauncher(grace=1.0, environment=environment, warm=process) for process in (None, forks)
    )
    yield started, forked
    for launcher in (started, forked):
        for job in tmp_path.glob("*/job.json"):
            launcher.cancel(job.parent)


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


def warm_process() -> psutil.Process:
    """The only child of this process."""
    (found,) = (
        one for one in psutil.Process().children() if "cloze.flows.launchers.local" in one.cmdline()
    )
    return found


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


def test_others_see_the_same_of_both(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    seen = []
    for launcher in launchers:
        both = asleep(launcher, tmp_path / "job")
        assert both[0].ppid() == os.getpid()
        seen.append([" ".join(one.cmdline()).rstrip() for one in both])  # padded
        launcher.cancel(tmp_path / "job")
    assert seen[0] == seen[1]
    assert seen[1][1] == " ".join(program("sleep", 300))


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


def test_all_programs_come_from_one_warm_process_until_the_environment_changes(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    warm_ones = []
    for said in ("so", "so", "otherwise"):
        launchers[1].environment = {**launchers[1].environment, "SAID": said}
        launchers[1].start(program("look", tmp_path / "seen"), job=tmp_path / "job")
        warm_ones.append(warm_process())
        assert ended(launchers[1], tmp_path / "job") == 0
        assert json.loads((tmp_path / "seen").read_text())["environment"]["SAID"] == said
    assert warm_ones[0] == warm_ones[1] != warm_ones[2]
    assert gone(warm_ones[0])


def test_a_warm_process_that_is_killed_takes_nothing_with_it_and_is_replaced(
    launchers: tuple[LocalLauncher, LocalLauncher], tmp_path: Path
) -> None:
    _, child = asleep(launchers[1], tmp_path / "first")
    warm_process().kill()
    launchers[1].start(program("exit", 3), job=tmp_path / "second")  # started normally
    assert ended(launchers[1], tmp_path / "second") == 3
    launchers[1].start(program("exit", 4), job=tmp_path / "third")
    assert not gone(warm_process())
    assert ended(launchers[1], tmp_path / "third") == 4
    assert not gone(child)
    launchers[1].cancel(tmp_path / "first")


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
from cloze.flows.launchers import local
local.MODULES = ("prepared",)
launcher = local.LocalLauncher(grace=1.0, warm=local.WarmProcess())
launcher.start({program("sleep", 300)}, job=Path("job"))
time.sleep(300)
"""
    with subprocess.Popen(
        [sys.executable, "-P", "-c", owner],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{PROJECT}"},
    ) as running:
        log = tmp_path / "job" / "log"
        wait_for(lambda: log.exists() and "err" in log.read_text())
        below = psutil.Process(running.pid).children(recursive=True)
        running.kill()
    assert len(below) == 3  # the warm process, a supervisor, the program
    wait_for(lambda: all(map(gone, below)))
