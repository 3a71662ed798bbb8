"""Real programs on this machine: they end when cancelled, and leave no processes behind."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.artifacts.runtime.processes import ProcessId, descendants
from cloze.flows.launchers.launcher import LOST
from cloze.flows.launchers.local import LocalJob, LocalLauncher
from tests.waiting import wait_for

LEAVES_ONE_BEHIND = """
import pathlib, subprocess, time
child = subprocess.Popen(["sleep", "300"], start_new_session=True)
pathlib.Path("left").write_text(str(child.pid))
{rest}
"""
DEAF = """
import pathlib, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path("left").write_text(str(__import__("os").getpid()))
time.sleep(300)
"""


def python(source: str) -> list[str]:
    return [sys.executable, "-P", "-c", textwrap.dedent(source)]


def gone(pid: int) -> bool:
    return not ProcessId.of(pid).alive


@pytest.fixture
def launcher(tmp_path: Path, job: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalLauncher]:
    monkeypatch.chdir(tmp_path)
    launcher = LocalLauncher(grace=1.0)
    yield launcher
    launcher.cancel(job)
    launcher.close()


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path / "job"


def left_behind(tmp_path: Path) -> int:
    left = tmp_path / "left"
    wait_for(lambda: left.exists() and left.read_text())
    return int(left.read_text())


@pytest.mark.parametrize("code", [0, 3])
def test_a_program_leaves_its_output_and_its_exit_code(
    launcher: LocalLauncher, job: Path, code: int
) -> None:
    source = f"import sys; print('out'); print('err', file=sys.stderr); sys.exit({code})"
    launcher.start(python(source), job=job)
    wait_for(lambda: launcher.poll(job) is not None)
    assert launcher.poll(job) == code
    assert sorted((job / "log").read_text().split()) == ["err", "out"]


def test_a_program_killed_from_outside_is_known_by_its_signal(
    launcher: LocalLauncher, job: Path
) -> None:
    launcher.start(python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)"), job=job)
    wait_for(lambda: launcher.poll(job) is not None)
    assert launcher.poll(job) == -signal.SIGKILL


def test_what_a_finished_program_leaves_behind_is_ended(
    launcher: LocalLauncher, job: Path, tmp_path: Path
) -> None:
    launcher.start(python(LEAVES_ONE_BEHIND.format(rest="")), job=job)
    wait_for(lambda: launcher.poll(job) is not None)
    assert launcher.poll(job) == 0
    assert gone(left_behind(tmp_path))


@pytest.mark.parametrize("source", [LEAVES_ONE_BEHIND.format(rest="time.sleep(300)"), DEAF])
def test_cancelling_leaves_no_process_even_if_one_does_not_listen(
    launcher: LocalLauncher, job: Path, tmp_path: Path, source: str
) -> None:
    launcher.start(python(source), job=job)
    left = left_behind(tmp_path)
    started = time.monotonic()
    launcher.cancel(job)
    assert time.monotonic() - started < launcher.grace + 60.0  # the program sleeps for 300
    assert gone(left)
    assert not list(descendants(os.getpid()))


def test_a_program_ends_when_its_owner_is_killed(tmp_path: Path, job: Path) -> None:
    owner = f"""
    import sys, time
    from pathlib import Path
    from cloze.flows.launchers.local import LocalLauncher
    source = {LEAVES_ONE_BEHIND.format(rest="time.sleep(300)")!r}
    LocalLauncher(grace=1.0).start([sys.executable, "-c", source], job=Path({str(job)!r}))
    time.sleep(300)
    """
    with subprocess.Popen(python(owner), cwd=tmp_path) as running:
        left = left_behind(tmp_path)
        found = LocalJob.read(job)
        running.kill()
    assert found
    wait_for(lambda: gone(left) and not found.supervisor.alive)


def test_a_program_ends_when_its_supervisor_is_killed(
    launcher: LocalLauncher, job: Path, tmp_path: Path
) -> None:
    launcher.start(
        python("""
        import os, pathlib, time
        pathlib.Path("left").write_text(str(os.getpid()))
        time.sleep(300)
        """),
        job=job,
    )
    left = left_behind(tmp_path)
    found = LocalJob.read(job)
    assert found
    os.kill(found.supervisor.pid, signal.SIGKILL)
    wait_for(lambda: gone(left))
    wait_for(lambda: launcher.poll(job) is not None)
    assert launcher.poll(job) == LOST


def test_another_process_can_find_and_cancel_a_job(
    launcher: LocalLauncher, job: Path, tmp_path: Path
) -> None:
    launcher.start(python(LEAVES_ONE_BEHIND.format(rest="time.sleep(300)")), job=job)
    left = left_behind(tmp_path)
    stranger = LocalLauncher(grace=1.0)
    assert stranger.poll(job) is None
    stranger.cancel(job)
    assert gone(left)


def test_a_module_of_the_users_own_does_not_win_over_ours(
    launcher: LocalLauncher, job: Path, tmp_path: Path
) -> None:
    for folder in ("model", "pipeline", "flows"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "__init__.py").write_text("raise SystemExit('the wrong one')")
    source = """
    import subprocess, sys
    import cloze.model.config, cloze.pipeline.config.settings, cloze.flows.config
    sys.exit(subprocess.run([sys.executable, "-m", "cloze.model.config"]).returncode)
    """
    launcher.start(python(source), job=job)
    wait_for(lambda: launcher.poll(job) is not None)
    assert (launcher.poll(job), (job / "log").read_text()) == (0, "")


def test_without_room_for_the_exit_code_a_failure_is_no_kill(
    launcher: LocalLauncher, job: Path
) -> None:
    (job / ".exit").mkdir(parents=True)  # so that it cannot be written, as on a full disk
    launcher.start(python("raise SystemExit(3)"), job=job)
    assert wait_for(lambda: launcher.poll(job), what="its end") == 3
    assert not (job / "exit").exists()
