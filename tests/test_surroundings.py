"""The command in surroundings that nobody planned for: it works, or says in one line why not."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cloze.conftest import CONFIG
from tests.conftest import PROJECT, SMOKE, GoldenRun, cloze
from tests.running import RunFolder

CLOZE = (sys.executable, "-P", "-m", "cloze")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a configuration and some text."""
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "one.txt").write_text("The first document.\n")
    (tmp_path / "try.toml").write_text(CONFIG)
    return tmp_path


def shell(script: str, folder: Path, **environment: str) -> "subprocess.CompletedProcess[str]":
    """`script`, in which "$@" is the command, called in `folder`."""
    return subprocess.run(
        ["sh", "-c", script, "sh", *CLOZE],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(PROJECT), **environment},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_quotes_in_tmpdir_no_home_no_locale_and_a_workspace_in_another_script_change_nothing(
    folder: Path,
) -> None:
    odd = folder / 'it\'s "odd"'
    odd.mkdir()
    done = shell(
        '"$@" vocabulary try.toml --workspace größe --json',
        folder,
        TMPDIR=str(odd),
        HOME="/dev/null",
        XDG_CACHE_HOME="/dev/null/cache",
        LC_ALL="C",
    )
    assert done.returncode == 0, done.stderr
    assert Path(json.loads(done.stdout)["vocabulary"]["directory"]).exists()
    assert "nothing is cached there" in done.stderr


@pytest.mark.parametrize(
    ("name", "environment"),
    [
        ("größe", {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}),
        (os.fsdecode(b"gr\xf6\xdfe"), {"PYTHONUTF8": "1"}),
    ],
    ids=["UTF-8 where names are ASCII", "Latin-1 where names are UTF-8"],
)
def test_a_name_in_another_encoding_than_the_surroundings_is_refused_in_one_line(
    folder: Path, name: str, environment: dict[str, str]
) -> None:
    odd = folder / name
    odd.mkdir()
    script = '"$@" vocabulary ../try.toml --workspace "$NAME"; cd "$NAME"; "$@" runs'
    done = shell(script, folder / "texts", NAME=f"../{name}", **environment)
    lines = done.stderr.splitlines()
    assert [line.startswith("error: ") for line in lines] == [True, True]
    for line in lines:
        assert "the encoding of file names here; rename it, or set PYTHONUTF8=1" in line
    assert done.returncode == 2
    assert not any(odd.iterdir())


def test_a_run_goes_on_when_nobody_reads_its_standard_error(folder: Path) -> None:
    done = shell('"$@" vocabulary try.toml --workspace closed 2>&-', folder)
    assert (done.returncode, done.stderr) == (0, "")
    left = shell('{ "$@" vocabulary try.toml --workspace left; echo $? >code; } 2>&1 | :', folder)
    assert left.returncode == 0
    assert (folder / "code").read_text() == "0\n"


def test_a_deleted_working_directory_is_named(folder: Path) -> None:
    done = shell('mkdir gone && cd gone && rmdir ../gone && "$@" runs', folder)
    assert done.stderr == "error: the working directory has been deleted; cd to another one\n"
    assert done.returncode == 1


def test_a_disk_that_is_full_when_the_record_is_written_is_named_once(folder: Path) -> None:
    # Nor could the measurement of coverage write, which would say so on a line of its own.
    done = shell('unset COVERAGE_PROCESS_CONFIG; ulimit -f 1; "$@" vocabulary try.toml', folder)
    (line,) = done.stderr.splitlines()
    assert "run.json: no room to write (File too large;" in line
    assert done.returncode == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with too little room for a run."""
    small = tmp_path / "small"
    small.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=1500k", "tmpfs", str(small)]
    if os.getuid() != 0 or subprocess.run(mounted, capture_output=True, check=False).returncode:
        pytest.skip("wants root, and the right to mount a tmpfs")
    yield small
    subprocess.run(["umount", "--lazy", str(small)], check=True)


@pytest.mark.slow
def test_a_full_disk_is_the_reason_a_run_gives_and_with_room_it_goes_on_to_the_same_digests(
    small_disk: Path, golden: GoldenRun
) -> None:
    workspace = small_disk / "runs"
    prepare = ("prepare", *SMOKE, "--workspace", str(workspace))
    full = cloze(*prepare)
    errors = [line for line in full.stderr.splitlines() if line.startswith("error")]
    assert len(errors) == 1, full.stderr
    assert "no room to write (No space left on device; " in errors[0]
    assert "make room: finished parts are kept, run the same command to resume" in errors[0]
    assert "killed" not in full.stderr
    assert full.returncode == 1
    assert json.loads((workspace / "smoke" / "run.json").read_text())["state"] == "failed"
    subprocess.run(["mount", "-o", "remount,size=200m", str(small_disk)], check=True)
    done = cloze(*prepare)
    assert done.returncode == 0, done.stderr
    found = RunFolder(workspace).digests()
    assert found == {stage: golden.digests()[stage] for stage in found}
    assert {"vocabulary", "tokens", "examples"} <= found.keys()


@pytest.mark.slow
def test_without_room_for_prefects_database_a_run_says_so(small_disk: Path) -> None:
    (small_disk / "other").write_bytes(b"a" * 1_200_000)
    done = cloze("run", *SMOKE, "--workspace", str(small_disk / "runs"))
    (line,) = done.stderr.splitlines()
    assert "no space for the Prefect server's database (0 MB free); free some" in line
    assert done.returncode == 1


def test_ctrl_c_before_anything_is_imported_is_one_line(folder: Path) -> None:
    (folder / "cyclopts.py").write_text("raise KeyboardInterrupt")
    done = shell('"$@" runs', folder, PYTHONPATH=f"{folder}:{PROJECT}")
    assert done.stderr == "interrupted before anything was started\n"
    assert done.returncode == 130


def test_too_little_address_space_is_refused_and_nothing_hangs(folder: Path) -> None:
    done = shell('ulimit -v 1200000; "$@" vocabulary try.toml', folder)
    (line,) = done.stderr.splitlines()
    assert "ulimit -v allows 1.2 GB of address space" in line
    assert done.returncode == 2
    assert not (folder / "runs").exists()
