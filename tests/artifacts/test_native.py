"""Compiled functions: cached whole, made again when damaged, done without where there are none."""

import os
import shutil
import signal
from ctypes import c_float, c_int, c_int64, c_void_p
from pathlib import Path

import pytest

from cloze.artifacts.runtime import native
from cloze.artifacts.runtime.native import compiled

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A C file, with a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    file = tmp_path / "twice.c"
    file.write_text("int twice(int number) { return 2 * number; }")
    return file


def gcc(folder: Path, script: str) -> None:
    (folder / "gcc").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "gcc").chmod(0o755)


@pytest.mark.parametrize("damage", ["empty", "half", "bit", "foreign", "text", "unreadable"])
def test_a_damaged_library_is_compiled_again(source: Path, tmp_path: Path, damage: str) -> None:
    found = native.shared_library(source, flags=("-O3",))
    assert isinstance(found, Path)
    content = found.read_bytes()
    changed = {
        "empty": b"",
        "half": content[: len(content) // 2],
        "bit": bytes([*content[:5000], content[5000] ^ 4, *content[5001:]]),
        "foreign": Path(shutil.which("gcc") or "").read_bytes(),
        "text": b"not a library",
        "unreadable": b"",
    }[damage]
    found.unlink()  # and not written into: it may be in use
    found.write_bytes(changed)
    if damage == "unreadable":
        found.chmod(0)
    again = compiled(source)
    assert again is not None
    assert again.twice(21) == 42
    assert found.read_bytes() == content


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("exit 1", "gcc failed"),
        ("printf '\\377\\376' >&2; exit 1", "gcc failed"),
        ('while [ "$1" != -o ]; do shift; done; echo junk > "$2"', "gcc wrote no shared library"),
        ('while [ "$1" != -o ]; do shift; done; printf "\\177ELFjunk" > "$2"', "is not usable"),
        ("exit 0", "gcc failed"),
    ],
    ids=["fails", "not-utf-8", "junk", "looks-like-one", "writes-nothing"],
)
def test_with_a_broken_compiler_the_slower_form_is_used(
    source: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    script: str,
    reason: str,
) -> None:
    gcc(tmp_path, script)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert compiled(source) is None
    said = capfd.readouterr().err
    assert reason in said
    assert "using a slower implementation" in said
    assert len(said.splitlines()) == 1


def test_a_library_without_the_function_is_not_used(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    header = source.with_suffix(".h")
    header.write_text("int twice(int number);\nint thrice(int number);\n")
    assert compiled(header, source) is None
    assert "using a slower implementation" in capfd.readouterr().err
    library = compiled(header, source, optional=("thrice",))
    assert library is not None
    assert library.twice(21) == 42


def test_a_library_is_made_of_several_files_and_made_again_when_one_changes(
    source: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    header, other = source.with_suffix(".h"), source.with_name("thrice.c")
    header.write_text("#define FACTOR 3\nint twice(int number);\nint thrice(int number);\n")
    other.write_text('#include "twice.h"\nint thrice(int number) { return FACTOR * number; }')
    library = compiled(header, source, other)
    assert library is not None
    assert (library.twice(7), library.thrice(7)) == (14, 21)
    header.write_text(header.read_text().replace("FACTOR 3", "FACTOR 4"))
    changed = compiled(header, source, other)
    assert changed is not None
    assert changed.thrice(7) == 28


def test_types_are_those_that_the_c_declares(source: Path) -> None:
    source.write_text(
        """
/* void in_a_comment(int number); */
static int hidden(int number) { return number; }
typedef int64_t idx;
void fill(idx count, const float *from,
          double *const *to, float factor);
int64_t *place(int64_t row, int is_last) { return hidden(is_last) ? 0 : 0; }
int nothing(void);
"""
    )
    assert native.signatures(source) == {
        "fill": (None, [c_int64, c_void_p, c_void_p, c_float]),
        "place": (c_void_p, [c_int64, c_int]),
        "nothing": (c_int, []),
    }


def test_a_type_that_python_cannot_pass_is_refused(source: Path) -> None:
    source.write_text("void scale(double factor) {}")
    with pytest.raises(TypeError, match="scale: type double cannot be passed; use idx, int64_t"):
        native.signatures(source)


def test_a_library_that_may_not_be_mapped_is_not_used(
    source: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """As on a disk that is mounted noexec."""

    def refuse(path: str) -> None:
        raise OSError(f"{path}: failed to map segment from shared object")

    monkeypatch.setattr("ctypes.CDLL", refuse)
    assert compiled(source) is None
    assert "failed to map segment" in capfd.readouterr().err


def test_without_a_folder_for_the_cache_the_slower_form_is_used(
    source: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cache" / "cloze").mkdir(parents=True)
    (tmp_path / "cache" / "cloze" / "kernels").write_text("a file where the folder would be")
    assert compiled(source) is None
    assert "using a slower implementation" in capfd.readouterr().err


def test_what_a_killed_compilation_left_is_cleared_though_another_has_made_the_library(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The compiler's own temporary files are with ours."""
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    gcc(tmp_path, 'touch "$TMPDIR/cc2SGIub.s"; kill -9 $PPID')
    pid = os.fork()
    if not pid:
        monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
        native.shared_library(source, flags=("-O3",))
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    assert not [*(tmp_path / "tmp").iterdir()]
    kernels = tmp_path / "cache" / "cloze" / "kernels"
    (left,) = kernels.iterdir()
    left.rename(tmp_path / "left")
    found = native.shared_library(source, flags=("-O3",))
    (tmp_path / "left").rename(left)
    assert native.shared_library(source, flags=("-O3",)) == found
    assert [*kernels.iterdir()] == [found]
