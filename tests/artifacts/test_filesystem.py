"""Files appear completely or not at all."""

import errno
import os
import resource
from pathlib import Path

import pytest

from cloze.artifacts import filesystem
from cloze.artifacts.errors import DiskFull, UsageError
from cloze.artifacts.filesystem import find_files, partial_file


@pytest.mark.parametrize("root", ["local", "memory://filesystem-test"])
def test_the_verbs_agree_on_every_file_system(tmp_path: Path, root: str) -> None:
    directory = str(tmp_path) if root == "local" else root
    path = filesystem.join(directory, "a/b.bin")
    assert filesystem.size_of(path) is None and not filesystem.exists(path)
    filesystem.write_bytes(path, b"one")
    source = tmp_path / "source.bin"
    source.write_bytes(b"two!")
    filesystem.put_file(str(source), filesystem.join(directory, "a/c.bin"))
    assert not source.exists()
    assert filesystem.read_bytes(path) == b"one"
    assert filesystem.list_names(filesystem.join(directory, "a")) == ["b.bin", "c.bin"]
    filesystem.fetch_file(filesystem.join(directory, "a/c.bin"), str(tmp_path / "fetched"))
    assert (tmp_path / "fetched").read_bytes() == b"two!"
    filesystem.remove(filesystem.join(directory, "a"))
    assert filesystem.list_names(filesystem.join(directory, "a")) == []


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, r"no room to write \(No space left on device; [\d,]+ MB free\)"),
        (errno.EDQUOT, r"no room to write \(Disk quota exceeded; [\d,]+ MB free on the whole disk"),
    ],
    ids=["full disk", "quota"],
)
def test_a_failed_write_leaves_the_old_file_and_no_litter(
    number: int, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    path.write_bytes(b"old")

    def full(handle: int) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(DiskFull, match=said):
        filesystem.write_bytes(str(path), b"new")
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["manifest.json"]


def test_a_limit_on_the_length_of_files_is_told_from_a_full_disk(tmp_path: Path) -> None:
    path = tmp_path / "long.bin"
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, before[1]))
    try:
        with pytest.raises(DiskFull, match=r"File too large.*raise the limit on the length of fil"):
            filesystem.write_bytes(str(path), bytes(20_000))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert os.listdir(tmp_path) == []


def test_who_may_read_a_file_is_what_the_umask_says(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        filesystem.write_bytes(str(tmp_path / "shared.json"), b"{}")
    finally:
        os.umask(before)
    assert (tmp_path / "shared.json").stat().st_mode & 0o777 == 0o640


def test_nothing_lies_inside_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert not filesystem.exists(str(tmp_path / "file" / "inside"))
    filesystem.remove(str(tmp_path / "file" / "inside"))


@pytest.mark.parametrize("what", ["folder", "file"])
def test_what_may_not_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    path = tmp_path / "private"
    path.mkdir() if what == "folder" else path.write_text("text")

    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)  # tests may run as root, who can read everything
    monkeypatch.setattr("fsspec.implementations.local.LocalFileSystem.open", refuse)
    read = filesystem.find_files if what == "folder" else filesystem.open_to_read
    with pytest.raises(UsageError, match=r"private: not readable \(Permission denied\)"):
        read(str(path))


def test_an_output_that_was_left_partial_is_made_again_and_nothing_is_left(tmp_path: Path) -> None:
    path = tmp_path / "vectors.npy"
    (tmp_path / ".vectors.npy.partial").write_text("of a killed command, longer than the new one")
    with partial_file(str(path)) as temporary, open(temporary, "w") as file:
        file.write("new")
        with (
            pytest.raises(UsageError, match="another command is writing it"),
            partial_file(str(path)),
        ):
            raise AssertionError("both write")
    assert path.read_text() == "new"
    for failure in (KeyboardInterrupt, OSError(errno.ENOSPC, "full")):
        expected = DiskFull if isinstance(failure, OSError) else KeyboardInterrupt
        with pytest.raises(expected), partial_file(str(path)) as temporary:
            Path(temporary).write_text("more")
            raise failure
    assert [file.name for file in tmp_path.iterdir()] == ["vectors.npy"]
    assert path.read_text() == "new"


def test_no_output_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("precious")
    (tmp_path / ".out.npy.partial").symlink_to(tmp_path / "precious")
    with pytest.raises(OSError, match="symbolic"), partial_file(str(tmp_path / "out.npy")):
        raise AssertionError("opened")
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_folder_that_links_lead_to_in_a_billion_ways_is_refused(tmp_path: Path) -> None:
    for depth in range(30):
        (tmp_path / str(depth)).mkdir()
        for name in ("a", "b"):
            (tmp_path / str(depth) / name).symlink_to(tmp_path / str(depth + 1))
    (tmp_path / "30").mkdir()
    (tmp_path / "30" / "text").write_text("text")
    with pytest.raises(UsageError, match="reached by more than 100 links"):
        find_files(str(tmp_path / "0"))


def test_a_file_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")).write_text("text")
    with pytest.raises(UsageError, match=r"caf\\udce9.txt: its name is not valid utf-8"):
        find_files(str(tmp_path))
    (tmp_path / "cafe.txt").write_text("text")
    kept = find_files(str(tmp_path), exclude=["caf\ufffd.txt"])
    assert [Path(file.path).name for file in kept] == ["cafe.txt"]


def test_no_file_takes_the_place_of_a_device_a_pipe_or_a_stream(tmp_path: Path) -> None:
    """As root, it would even be that of /dev/stdout, for every program of the machine."""
    pipe, stream, plain = (tmp_path / name for name in ("pipe", "stream", "plain"))
    os.mkfifo(pipe)
    plain.write_text("before")
    with plain.open("a") as open_file:
        stream.symlink_to(f"/proc/self/fd/{open_file.fileno()}")
        for path in (pipe, stream):
            with pytest.raises(UsageError, match="a device, pipe or stream, expected the name"):
                filesystem.write_bytes(str(path), b"after")
            with (
                pytest.raises(UsageError, match="a device, pipe or stream, expected the name"),
                filesystem.partial_file(str(path)),
            ):
                pytest.fail("nothing is computed for it")
    assert pipe.is_fifo()
    assert stream.is_symlink()
    assert plain.read_text() == "before"
    assert {*tmp_path.iterdir()} == {pipe, stream, plain}
    (tmp_path / "link").symlink_to(plain)
    filesystem.write_bytes(str(tmp_path / "link"), b"after")
    assert ((tmp_path / "link").read_text(), plain.read_text()) == ("after", "before")
