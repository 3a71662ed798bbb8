"""Artifacts in an object store that occasionally answers 503 and truncates uploads."""

import time
from pathlib import Path

import pytest

from cloze.artifacts import filesystem
from cloze.artifacts.errors import ClozeError, explained
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import Store, commit, finished_file, open_artifact, put_bytes
from tests.object_store import faulty_store


def table(store: Store) -> StageTable:
    bare = StageTable(stage="words", format_version=1, config={}, output="")
    return bare.model_copy(update={"output": store.directory("words", bare.key)})


def test_an_artifact_is_written_and_read_in_spite_of_faults(faulty_url: str) -> None:
    store = Store(faulty_url)
    wanted = table(store)
    contents = {f"file-{number}.txt": bytes([number]) * 1000 for number in range(8)}
    entries = [put_bytes(wanted.output, content, name=name) for name, content in contents.items()]
    commit(wanted, entries)
    found = store.find("words", wanted.key)
    assert found is not None
    assert {name: found.read_bytes(name) for name in contents} == contents
    assert all(Path(found.path(name)).read_bytes() == contents[name] for name in contents)


def test_a_cut_upload_is_no_finished_file(faulty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filesystem, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setenv("FAULTY_EVERY", "1")
    wanted = table(Store(faulty_url))
    with pytest.raises(OSError, match="503"):
        put_bytes(wanted.output, b"0123456789", name="a.txt")
    monkeypatch.setenv("FAULTY_EVERY", "0")
    assert finished_file(wanted.output, "a.txt") is None
    assert Store(faulty_url).find("words", wanted.key) is None
    commit(wanted, [put_bytes(wanted.output, b"0123456789", name="a.txt")])
    assert open_artifact(wanted.output).read_bytes("a.txt") == b"0123456789"


def test_a_fault_is_not_taken_for_absence(faulty_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    filesystem.write_bytes(f"{faulty_url}/a", b"1")
    assert all(filesystem.exists(f"{faulty_url}/a") for _ in range(10))
    monkeypatch.setattr(filesystem, "PATIENCE_SECONDS", 0.5)
    monkeypatch.setenv("FAULTY_EVERY", "1")
    with pytest.raises(OSError, match="503"):
        filesystem.exists(f"{faulty_url}/a")


def test_what_was_just_written_is_found_though_it_is_listed_late(
    faulty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty_store, "LATE_SECONDS", 60.0)
    store = Store(faulty_url)
    wanted = table(store)
    commit(wanted, [put_bytes(wanted.output, b"1", name="a.txt")])
    assert store.find("words", wanted.key) is not None


def failing(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Make every read fail with this error, which is soon reported."""
    monkeypatch.setattr(filesystem, "PATIENCE_SECONDS", 0.5)

    def fail(*_: object, **__: object) -> bytes:
        raise error

    monkeypatch.setattr(faulty_store.FaultyStore, "cat_file", fail)


@pytest.mark.parametrize(
    "error",
    [
        pytest.param(PermissionError("Forbidden"), id="s3fs"),
        pytest.param(OSError("Forbidden: https://storage/a\nno access to it"), id="gcsfs"),
    ],
)
def test_a_refusal_is_named_with_its_path_and_a_remedy(
    faulty_url: str, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    failing(monkeypatch, error)
    with pytest.raises(PermissionError) as caught:
        filesystem.read_bytes(f"{faulty_url}/a")
    said = explained(caught.value)
    assert "/a: the object store denied access (Forbidden" in said
    assert "credentials" in said
    assert "\n" not in said


class ClientConnectorError(OSError):
    """Like aiohttp's error, raised below gcsfs."""

    __module__ = "aiohttp.client_exceptions"


def test_a_store_that_is_not_there_is_said_to_be_the_store(
    faulty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(monkeypatch, ClientConnectorError("Connect call failed"))
    with pytest.raises(ClozeError, match="did not answer for 0 s .ClientConnectorError: Connect"):
        filesystem.read_bytes(f"{faulty_url}/a")


@pytest.mark.parametrize(("seconds", "calls"), [(0.0, 3), (0.5, 1)])
def test_the_time_of_a_librarys_own_retries_counts_as_ours(
    faulty_url: str, monkeypatch: pytest.MonkeyPatch, seconds: float, calls: int
) -> None:
    """Pauses of 0.1 and 0.2 s fit into 0.4 s, but not into what a library's own retries took."""
    made = []

    def fail(*_: object, **__: object) -> bytes:
        made.append(time.monotonic())
        time.sleep(seconds)
        raise OSError("503 Service Unavailable")

    monkeypatch.setattr(filesystem, "PATIENCE_SECONDS", 0.4)
    monkeypatch.setattr(filesystem, "FIRST_PAUSE_SECONDS", 0.1)
    monkeypatch.setattr(faulty_store.FaultyStore, "cat_file", fail)
    with pytest.raises(OSError, match="503"):
        filesystem.read_bytes(f"{faulty_url}/a")
    assert len(made) == calls
