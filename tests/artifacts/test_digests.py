"""Digests: independent of key order, cached until the file changes."""

import errno
import os
import sys
from pathlib import Path

import pytest

from cloze.artifacts import digests
from cloze.artifacts.digests import cached_digest_of_file, digest_of, digest_of_file


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_key_order_does_not_matter_and_values_do() -> None:
    assert digest_of({"a": 1, "b": [2, "ä"]}) == digest_of({"b": [2, "ä"], "a": 1})
    assert digest_of({"a": 1}) != digest_of({"a": 2})


def test_not_a_number_has_no_digest() -> None:
    with pytest.raises(ValueError, match="Out of range"):
        digest_of({"loss": float("nan")})


def test_digest_of_file_is_sha256(tmp_path: Path) -> None:
    (tmp_path / "abc").write_bytes(b"abc")
    expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert digest_of_file(tmp_path / "abc") == expected


def test_an_unchanged_file_is_read_once(tmp_path: Path) -> None:
    path, opened = tmp_path / "shard", list[str]()
    path.write_bytes(b"one")
    # A hook that Python calls for every file it opens; it stays, so it looks at this one alone.
    sys.addaudithook(
        lambda event, given: (
            opened.append(event) if event == "open" and str(given[0]) == str(path) else None
        )
    )
    first = cached_digest_of_file(path)
    assert opened == ["open"]
    assert cached_digest_of_file(path) == first
    assert opened == ["open"]


def test_a_changed_file_of_equal_size_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "shard"
    path.write_bytes(b"one")
    os.utime(path, ns=(1, 1))
    first = cached_digest_of_file(path)
    path.write_bytes(b"two")
    assert cached_digest_of_file(path) != first


def test_the_cache_is_one_bounded_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digests, "RECORDS", 8)
    files = [tmp_path / str(number) for number in range(50)]
    for _ in range(2):
        for file in files:
            file.write_text(file.name)
            assert cached_digest_of_file(file) == digest_of_file(file)
    (table,) = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    assert table.stat().st_size <= 8 * digests.RECORD_BYTES


def test_no_flipped_bit_of_the_cache_is_believed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "RECORDS", 2)
    for name in ("one", "two", "three"):
        (tmp_path / name).write_text(name)
        cached_digest_of_file(tmp_path / name)
    (table,) = (path for path in (tmp_path / "cache").rglob("*") if path.is_file())
    content = table.read_bytes()
    damaged = [content[64:] + content[:64], b"", b"[]", b"\xff" * 128, content[:40]]
    for bit in range(8 * len(content)):
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        damaged.append(bytes(flipped))
    for change in damaged:
        table.write_bytes(change)
        for name in ("one", "two", "three"):
            assert cached_digest_of_file(tmp_path / name) == digest_of_file(tmp_path / name)


def test_without_a_cache_it_is_said_once_and_every_file_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "no folder").touch()
    (tmp_path / "file").write_text("text")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "no folder"))
    for _ in range(3):
        assert cached_digest_of_file(tmp_path / "file") == digest_of_file(tmp_path / "file")
    said = capfd.readouterr().err
    assert said.count("warning: ") == 1
    assert "no folder/cloze: not writable (Not a directory)" in said


def test_a_cache_on_a_full_disk_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(os, "pwrite", full)
    (tmp_path / "file").write_text("text")
    assert cached_digest_of_file(tmp_path / "file") == digest_of_file(tmp_path / "file")
