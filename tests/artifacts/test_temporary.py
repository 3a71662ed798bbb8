"""Temporary files and folders: gone afterwards, and at the next start if their owner was killed."""

import fcntl
import hashlib
import os
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from cloze.artifacts import filesystem
from cloze.artifacts.runtime import temporary
from cloze.artifacts.runtime.temporary import clear_left, temporary_directory, temporary_file
from cloze.flows.workspace import writable_workspace

NOBODY = 999_999_999
"""The id of no process."""


def left_by_a_killed_process(parent: Path, *, host: str = "", pid: int = NOBODY) -> Path:
    """A temporary folder with a file, as a killed process of `host` (this one) leaves it."""
    digest = hashlib.sha256((host or socket.gethostname()).encode()).hexdigest()[:6]
    left = parent / f"cloze-{digest}-{pid}-abc"
    left.mkdir()
    (left / "reports").touch()
    return left


@contextmanager
def another_process(work: Callable[[ExitStack], object]) -> Iterator[Callable[[], None]]:
    """A fork that does `work` and then waits; calling what is yielded sends it SIGKILL."""
    done, tell = os.pipe()
    pid = os.fork()
    if not pid:
        with ExitStack() as stack:
            work(stack)
            os.write(tell, b"done")
            signal.pause()
        os._exit(1)
    os.close(tell)
    killed = []

    def kill() -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        killed.append(pid)

    try:
        assert os.read(done, 4) == b"done"
        yield kill
    finally:
        os.close(done)
        if not killed:
            kill()


def enter(place: Path, stack: ExitStack) -> None:
    """Begin to use a temporary file, and a folder with content, in `place`."""
    stack.enter_context(filesystem.temporary_beside(str(place / "result.json")))
    Path(stack.enter_context(temporary_directory(str(place))), "reports").touch()


def test_what_a_killed_process_left_is_cleared_when_the_next_begins_and_not_before(
    tmp_path: Path,
) -> None:
    with another_process(lambda stack: enter(tmp_path, stack)) as kill:
        used = sorted(tmp_path.iterdir())
        assert [path.name.split("-")[0] for path in used] == [".tmp", "cloze"]
        clear_left(str(tmp_path))
        assert sorted(tmp_path.iterdir()) == used, "they belong to a process that lives"
        kill()
        assert sorted(tmp_path.iterdir()) == used
        filesystem.write_bytes(str(tmp_path / "result.json"), b"{}")
        assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_process_id_that_another_one_has_meanwhile_keeps_nothing(tmp_path: Path) -> None:
    """In a container that starts again, processes have the ids that the killed ones had."""
    left = left_by_a_killed_process(tmp_path, pid=os.getpid())
    clear_left(str(tmp_path))
    assert not left.exists()


def test_what_other_hosts_and_other_programs_made_stays(tmp_path: Path) -> None:
    left_by_a_killed_process(tmp_path, host="another-host")
    (tmp_path / ".tmp-0").touch()
    (tmp_path / "cloze-job-x").mkdir()
    before = sorted(tmp_path.rglob("*"))
    clear_left(str(tmp_path))
    assert sorted(tmp_path.rglob("*")) == before


def test_a_link_named_like_a_leftover_leads_to_no_removal(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    left = left_by_a_killed_process(tmp_path)
    (left / "reports").unlink()
    left.rmdir()
    left.symlink_to(precious)
    clear_left(str(tmp_path))
    assert (precious / "file").exists()


@pytest.mark.parametrize("pid", [NOBODY, os.getpid()], ids=["nobody", "somebody"])
def test_on_a_disk_without_locks_the_process_id_decides(
    pid: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_locks(handle: int, operation: int) -> None:
        raise OSError("no locks available")

    monkeypatch.setattr(fcntl, "flock", no_locks)
    left = left_by_a_killed_process(tmp_path, pid=pid)
    with temporary_directory(str(tmp_path)) as ours:
        assert Path(ours).exists()
    assert left.exists() == (pid != NOBODY)


def test_what_is_taken_for_a_leftover_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, made = os.mkdir, list[str]()

    def raced(path: str, mode: int) -> None:
        make(path, mode)
        made.append(path)
        if len(made) == 1:
            clear_left(str(tmp_path))

    monkeypatch.setattr(os, "mkdir", raced)
    with temporary_directory(str(tmp_path)) as ours:
        assert made[1:] == [ours]
        assert [*tmp_path.iterdir()] == [Path(ours)]
    assert [*tmp_path.iterdir()] == []


def test_a_fork_that_ends_takes_nothing_away(tmp_path: Path) -> None:
    with temporary_directory(str(tmp_path)) as ours, temporary_file(str(tmp_path)) as file:
        pid = os.fork()
        if not pid:
            with ExitStack() as stack:
                stack.enter_context(temporary_directory(str(tmp_path)))
            os._exit(0)
        os.waitpid(pid, 0)
        clear_left(str(tmp_path))
        assert sorted(tmp_path.iterdir()) == sorted([Path(ours), Path(file)])


def test_without_any_usable_temporary_folder_there_is_nothing_to_clear(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", list[str])  # each is full
    clear_left()


def test_folders_are_their_users_alone_and_files_are_the_teams(tmp_path: Path) -> None:
    mask = os.umask(0o002)
    try:
        with (
            temporary_directory(str(tmp_path)) as folder,
            temporary_file(str(tmp_path)) as file,
            temporary_file(str(tmp_path), mode=0o600) as secret,
        ):
            modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (folder, file, secret)]
    finally:
        os.umask(mask)
    assert modes == [0o700, 0o664, 0o600]


def test_a_command_that_needs_no_temporary_folder_clears_tmpdir_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated run may find made by another what its killed attempt was making."""
    for name in ("tmp", "runs"):
        (tmp_path / name).mkdir()
        left_by_a_killed_process(tmp_path / name)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    monkeypatch.setattr(temporary, "_begun", set())
    writable_workspace(str(tmp_path / "runs"))
    assert [*tmp_path.rglob("*/*")] == []


LIBRARY = """
import atexit, os, shutil, subprocess, sys, tempfile
from cloze.artifacts.runtime.temporary import temporaries_of_libraries
with temporaries_of_libraries():
    tempfile.mkdtemp(prefix="forgotten")
    service = tempfile.mkdtemp(prefix="service")
    atexit.register(lambda: (shutil.rmtree(service), print("stopped")))
    subprocess.run(["mktemp"], check=True, stdout=subprocess.DEVNULL)
assert tempfile.gettempdir() == os.environ["TMPDIR"] == sys.argv[1]
(ours,) = os.listdir(sys.argv[1])
assert ours.startswith("cloze-") and len(os.listdir(os.path.join(sys.argv[1], ours))) == 3
"""


def test_what_libraries_make_goes_when_the_process_exits_after_they_have_cleared_up(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-c", LIBRARY, str(tmp_path)],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        check=False,
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (0, "stopped\n"), done.stderr
    assert not [*tmp_path.iterdir()]
