"""The store: an artifact is complete and verified, or it does not exist."""

import fcntl
import json
import os
import random
import re
import tempfile
from pathlib import Path

import pytest

from cloze.artifacts import filesystem
from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.artifacts.manifest import MANIFEST_NAME, FileEntry
from cloze.artifacts.runtime import temporary
from cloze.artifacts.stage import InputRef, StageTable
from cloze.artifacts.store import (
    Artifact,
    Store,
    commit,
    copies_directory,
    finished_file,
    open_artifact,
    put_bytes,
    put_json,
    scratch_directory,
)
from tests.artifacts.test_temporary import left_by_a_killed_process


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def table_at(output: str, **changes: object) -> StageTable:
    fields = {"stage": "tokens", "format_version": 1, "config": {"seed": 1}, "output": output}
    return StageTable.model_validate({**fields, **changes})


def finish(output: str, content: bytes = b"0123456789" * 100) -> Artifact:
    table = table_at(output)
    files = [
        put_bytes(output, content, name="train-00000.arrow", rows=10),
        put_json(output, {"a": 1}, name="facts.json"),
    ]
    return commit(table, files, statistics={"documents": 3}, execution={"seconds": 1.5})


def stored(artifact: Artifact, name: str) -> Path:
    return Path(artifact.directory) / artifact.manifest.file(name).stored_name


@pytest.mark.parametrize("damage", [b"", b"9123456789", None], ids=["empty", "flipped", "cut"])
def test_a_damaged_copy_of_a_remote_file_is_downloaded_again(
    tmp_path: Path, damage: bytes | None
) -> None:
    finish("memory://store/tokens/k")
    first = Path(open_artifact("memory://store/tokens/k").path("train-00000.arrow"))
    content = first.read_bytes()
    first.write_bytes(content[:500] if damage is None else damage + content[len(damage) or 1000 :])
    assert first.read_bytes() != content
    killed = left_by_a_killed_process(first.parent)
    temporary._begun.clear()  # as in another process
    again = open_artifact("memory://store/tokens/k").path("train-00000.arrow")
    assert again == str(first)
    assert first.read_bytes() == content
    assert not killed.exists()
    filesystem.remove("memory://store")


def test_a_copy_of_a_remote_artifact_has_the_time_of_its_last_use() -> None:
    finish("memory://store/tokens/k")
    artifact = open_artifact("memory://store/tokens/k")
    artifact.path("train-00000.arrow")
    copy = copies_directory() / artifact.manifest.key
    os.utime(copy, (0, 0))
    before = copy.stat().st_mtime
    artifact.path("train-00000.arrow")
    assert (before, copy.stat().st_mtime > 0) == (0, True)
    filesystem.remove("memory://store")


def test_a_remote_file_that_is_damaged_itself_is_refused() -> None:
    artifact = finish("memory://store/tokens/k")
    name = artifact.manifest.file("train-00000.arrow").stored_name
    filesystem.write_bytes(f"memory://store/tokens/k/{name}", b"9" * 1000)
    with pytest.raises(IntegrityError, match="was damaged or changed"):
        open_artifact("memory://store/tokens/k").path("train-00000.arrow")
    filesystem.remove("memory://store")


def test_the_key_says_what_and_not_where() -> None:
    here = table_at("/here", inputs={"corpus": InputRef(digest="d", path="/a")})
    there = table_at("/there", inputs={"corpus": InputRef(digest="d", path="/b")}, machine={"w": 2})
    assert here.key == there.key
    assert here.key != table_at("/here", inputs={"corpus": InputRef(digest="e")}).key
    assert (
        here.key != table_at("/here", inputs={"corpus": InputRef(digest="d")}, format_version=2).key
    )
    assert here.key != table_at("/here", inputs={"text": InputRef(digest="d")}).key


def test_a_directory_without_manifest_does_not_exist(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    put_bytes(store.directory("tokens", "k"), b"x", name="a.arrow")
    assert store.find("tokens", "k") is None
    with pytest.raises(IntegrityError, match="not a finished artifact"):
        open_artifact(store.directory("tokens", "k"))


def test_a_finished_artifact_reads_back(tmp_path: Path) -> None:
    artifact = finish(str(tmp_path / "a"))
    assert Path(artifact.path("train-00000.arrow")).read_bytes() == b"0123456789" * 100
    assert artifact.read_json("facts.json") == {"a": 1}
    assert open_artifact(artifact.directory).digest == artifact.digest


def test_the_digest_depends_on_content_alone(tmp_path: Path) -> None:
    one, two = finish(str(tmp_path / "a")), finish(str(tmp_path / "b"))
    assert one.digest == two.digest
    assert one.digest != finish(str(tmp_path / "c"), b"other").digest


def test_records_are_verified_but_are_no_part_of_the_digest(tmp_path: Path) -> None:
    output = str(tmp_path / "a")
    files = [put_bytes(output, b"x", name="a.arrow")]
    log = put_bytes(output, b"took 3 s", name="metrics.jsonl")
    with_log = commit(table_at(output), files, records=[log])
    assert with_log.digest == commit(table_at(output), files).digest


def test_an_interrupted_attempt_resumes_from_finished_files(tmp_path: Path) -> None:
    directory = str(tmp_path / "a")
    entry = put_bytes(directory, b"bucket", name="train-00001.arrow", rows=1, statistics={"t": 5})
    assert finished_file(directory, "train-00001.arrow") == entry
    assert finished_file(directory, "train-00002.arrow") is None
    (tmp_path / "a" / entry.stored_name).write_bytes(b"buck")
    assert finished_file(directory, "train-00001.arrow") is None


@pytest.mark.parametrize(("before_this_start", "kept"), [(True, False), (False, True)])
def test_what_was_put_before_the_machine_started_is_read_again(
    tmp_path: Path, before_this_start: bool, kept: bool
) -> None:
    entry = put_bytes(str(tmp_path), b"0123456789", name="train-00001.arrow")
    (tmp_path / entry.stored_name).write_bytes(bytes(10))  # as after a power cut
    if before_this_start:
        os.utime(tmp_path / "finished" / f"{entry.name}.json", (1, 1))
    assert (finished_file(str(tmp_path), entry.name) is not None) == kept


def test_all_files_are_flushed_before_the_manifest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed = []
    fsync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda handle: (flushed.append(os.fstat(handle).st_ino), fsync(handle))
    )
    artifact = finish(str(tmp_path))
    files = {os.stat(stored(artifact, entry.name)).st_ino for entry in artifact.manifest.files}
    manifest = os.stat(tmp_path / MANIFEST_NAME).st_ino
    assert files < set(flushed[: flushed.index(manifest)])


def test_two_writers_of_one_artifact_do_each_other_no_harm(tmp_path: Path) -> None:
    first, second = finish(str(tmp_path / "a"), b"mine"), finish(str(tmp_path / "a"), b"yours")
    assert Path(second.path("train-00000.arrow")).read_bytes() == b"yours"
    assert Path(first.path("train-00000.arrow")).read_bytes() == b"mine"


@pytest.mark.parametrize("cut", [0, 1, 500, 992, 999])
def test_a_cut_file_is_refused_when_the_artifact_is_opened(tmp_path: Path, cut: int) -> None:
    artifact = finish(str(tmp_path / "a"))
    path = stored(artifact, "train-00000.arrow")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(IntegrityError, match=f"{cut} bytes, the manifest says 1000"):
        open_artifact(artifact.directory)


def test_every_flipped_bit_is_refused_when_the_file_is_opened(tmp_path: Path) -> None:
    artifact = finish(str(tmp_path / "a"))
    path = stored(artifact, "train-00000.arrow")
    whole = path.read_bytes()
    chance = random.Random(1)
    for _ in range(50):
        damaged = bytearray(whole)
        damaged[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with pytest.raises(IntegrityError, match="sha256"):
            artifact.path("train-00000.arrow")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    artifact = finish(str(tmp_path / "a"))
    stored(artifact, "facts.json").unlink()
    with pytest.raises(IntegrityError, match=r"facts\.[0-9a-f]{12}\.json: missing"):
        open_artifact(artifact.directory)


def test_a_swapped_file_is_refused(tmp_path: Path) -> None:
    artifact = finish(str(tmp_path / "a"))
    other = finish(str(tmp_path / "b"), b"9876543210" * 100)
    stored(artifact, "train-00000.arrow").write_bytes(
        stored(other, "train-00000.arrow").read_bytes()
    )
    with pytest.raises(IntegrityError, match="damaged or changed"):
        open_artifact(artifact.directory).path("train-00000.arrow")


def test_alien_files_beside_the_manifest_are_ignored(tmp_path: Path) -> None:
    artifact = finish(str(tmp_path / "a"))
    (tmp_path / "a" / "train-00009.arrow").write_bytes(b"stale")
    names = [entry.name for entry in open_artifact(artifact.directory).manifest.files]
    assert names == ["facts.json", "train-00000.arrow"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[: len(text) // 2], "not JSON"),
        (lambda text: "[]", "manifest version None"),
        (lambda text: text.replace("facts.json", "../facts.json"), "points outside the artifact"),
        (lambda text: text.replace("facts.json", "/etc/passwd"), "points outside the artifact"),
        (lambda text: text.replace('"key"', '"keg"'), "unknown key keg, did you mean key"),
        (lambda text: re.sub('"sha256": "[^"]*"', '"sha256": "/precious"', text), "files.0.sha256"),
        (lambda text: text.replace('"tokens"', '"../tokens"'), "stage: String should match"),
        (lambda text: re.sub('"key": "[^"]*"', '"key": "../a"', text), "key: String should match"),
    ],
    ids=["cut", "list", "parent", "absolute", "unknown-field", "path-as-digest", "stage", "key"],
)
def test_a_wrong_manifest_is_refused_with_its_own_message(tmp_path: Path, change, message) -> None:
    artifact = finish(str(tmp_path / "a"))
    path = tmp_path / "a" / MANIFEST_NAME
    path.write_text(change(path.read_text()))
    with pytest.raises(IntegrityError, match=message):
        open_artifact(artifact.directory)


def test_a_newer_manifest_is_no_damage_that_anyone_may_remove(tmp_path: Path) -> None:
    artifact = finish(str(tmp_path / "a"))
    path = tmp_path / "a" / MANIFEST_NAME
    path.write_text(path.read_text().replace('"manifest_version": 1', '"manifest_version": 99'))
    with pytest.raises(UsageError, match="99.*install a matching Cloze"):
        open_artifact(artifact.directory)


def test_the_manifest_is_readable_json_with_versions(tmp_path: Path) -> None:
    finish(str(tmp_path / "a"))
    manifest = json.loads((tmp_path / "a" / MANIFEST_NAME).read_text())
    assert {"python", "processor", "pyarrow"} <= manifest["versions"].keys()
    assert re.fullmatch(r"0\.1\.0(\+[0-9a-f]{7,}(\.dirty)?)?", manifest["versions"]["cloze"])
    assert manifest["execution"]["seconds"] == 1.5


def test_a_workspace_behind_a_url_holds_the_same_artifact(tmp_path: Path) -> None:
    remote, local = finish("memory://store/tokens/k"), finish(str(tmp_path / "a"))
    assert remote.digest == local.digest
    fetched = open_artifact("memory://store/tokens/k")
    assert Path(fetched.path("train-00000.arrow")).read_bytes() == b"0123456789" * 100
    filesystem.remove("memory://store")
    assert filesystem.list_names("memory://store/tokens") == []


def test_file_entries_keep_their_suffix_on_disk() -> None:
    entry = FileEntry(name="task/train.jsonl", size=1, sha256="abcdef0123456789" * 4)
    assert entry.stored_name == "task/train.abcdef012345.jsonl"


@pytest.mark.parametrize(
    "change", [{"config": {"a": 2}}, {"inputs": {"corpus": "0" * 64}}, {"format_version": 99}]
)
def test_a_manifest_whose_parts_do_not_give_its_key_is_refused(
    tmp_path: Path, change: dict[str, object]
) -> None:
    artifact = finish(str(tmp_path / "out"))
    file = tmp_path / "out" / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(IntegrityError, match="it was changed; delete it and run the stage again"):
        open_artifact(artifact.directory)


def test_the_artifact_of_another_key_is_refused(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    finish(store.directory("tokens", "f" * 64))
    with pytest.raises(IntegrityError, match="its manifest is that of"):
        store.find("tokens", "f" * 64)


@pytest.mark.parametrize("output", ["file", "memory"])
def test_what_a_killed_process_left_is_removed_and_what_another_container_uses_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, output: str
) -> None:
    """Containers may have the same host name, and their processes are not seen here."""
    tmp_path = tmp_path / "scratch"
    tmp_path.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    place = str(tmp_path) if output == "file" else "memory://store/tokens/a"
    theirs = left_by_a_killed_process(tmp_path)
    handle = os.open(theirs, os.O_RDONLY)
    fcntl.flock(handle, fcntl.LOCK_EX)
    with scratch_directory(place) as ours:
        assert Path(ours).parent == tmp_path
        assert theirs.exists()
    os.close(handle)  # it is killed
    with scratch_directory(place) as ours:
        assert list(tmp_path.iterdir()) == [Path(ours)]
    assert list(tmp_path.iterdir()) == []
