"""The store on a full disk, with two writers, a wrong clock, and modified files."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cloze.artifacts.errors import DiskFull, IntegrityError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Artifact, Store, commit, finished_file, open_artifact, put_bytes
from tests.conftest import PROJECT

MEGABYTE = 1 << 20
CONTENT = b"0123456789" * 100


def table(root: Path) -> StageTable:
    bare = StageTable(stage="words", format_version=1, config={}, output="")
    output = Store(str(root)).directory("words", bare.key)
    return bare.model_copy(update={"output": output})


def finish(root: Path, *, files: int = 1) -> Artifact:
    wanted = table(root)
    entries = [put_bytes(wanted.output, CONTENT, name=f"{n}.txt") for n in range(files)]
    return commit(wanted, entries)


def stored(artifact: Artifact, name: str) -> Path:
    return Path(artifact.directory) / artifact.manifest.file(name).stored_name


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 3 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(folder)]
    if subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("wants the right to mount a tmpfs")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_is_named_and_leaves_nothing_half_done(small_disk: Path) -> None:
    wanted = table(small_disk)
    first = put_bytes(wanted.output, bytes(2 * MEGABYTE), name="a.bin")
    with pytest.raises(DiskFull, match=rf"{small_disk}.*no room to write .* MB free.*make room"):
        put_bytes(wanted.output, bytes(2 * MEGABYTE), name="b.bin")
    assert finished_file(wanted.output, "a.bin") == first
    assert finished_file(wanted.output, "b.bin") is None
    assert Store(str(small_disk)).find("words", wanted.key) is None
    assert not list(Path(wanted.output).rglob(".tmp-*"))
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    second = put_bytes(wanted.output, bytes(2 * MEGABYTE), name="b.bin")
    assert len(commit(wanted, [first, second]).manifest.files) == 2


def test_without_room_for_the_manifest_there_is_no_artifact(tmp_path: Path) -> None:
    wanted = table(tmp_path)
    entry = put_bytes(wanted.output, CONTENT, name="a.txt")
    pid = os.fork()
    if not pid:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
        try:
            commit(wanted, [entry])
        except DiskFull:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert Store(str(tmp_path)).find("words", wanted.key) is None
    assert commit(wanted, [entry]).read_bytes("a.txt") == CONTENT


WRITER = """
import sys
from pathlib import Path
from tests.artifacts.test_store_faults import finish
for _ in range(20):
    finish(Path(sys.argv[1]), files=3)
"""


def test_two_processes_that_write_one_artifact_never_show_half_of_it(tmp_path: Path) -> None:
    finish(tmp_path, files=3)
    argv = [sys.executable, "-c", WRITER, str(tmp_path)]
    with subprocess.Popen(argv, cwd=PROJECT) as one, subprocess.Popen(argv, cwd=PROJECT) as two:
        looks = 0
        while one.poll() is None or two.poll() is None:
            found = open_artifact(table(tmp_path).output)
            assert [found.read_bytes(entry.name) for entry in found.manifest.files] == [CONTENT] * 3
            looks += 1
    assert (one.returncode, two.returncode) == (0, 0)
    assert looks > 0


@pytest.mark.parametrize("clock", [0, 4_000_000_000], ids=["1970", "2096"])
def test_no_clock_changes_what_is_found(tmp_path: Path, clock: int) -> None:
    artifact = finish(tmp_path, files=2)
    for path in [*Path(artifact.directory).rglob("*"), Path(artifact.directory)]:
        os.utime(path, (clock, clock))
    found = Store(str(tmp_path)).find("words", artifact.manifest.key)
    assert found is not None
    assert found.digest == artifact.digest
    assert found.read_bytes("1.txt") == CONTENT
    assert finished_file(artifact.directory, "1.txt") == artifact.manifest.file("1.txt")


def test_a_file_changed_behind_a_finished_stage_is_refused_though_its_times_are_the_old_ones(
    tmp_path: Path,
) -> None:
    artifact = finish(tmp_path)
    path = stored(artifact, "0.txt")
    assert artifact.read_bytes("0.txt") == CONTENT  # its digest is now cached
    times = os.stat(path)
    path.write_bytes(CONTENT[::-1])
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(IntegrityError, match="damaged or changed"):
        open_artifact(artifact.directory).read_bytes("0.txt")
