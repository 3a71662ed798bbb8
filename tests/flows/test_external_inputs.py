"""Digests of external inputs."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import fsspec
import pytest

from cloze.artifacts.digests import digest_of
from cloze.artifacts.errors import UsageError
from cloze.artifacts.stage import StageTable
from cloze.artifacts.store import commit, put_json
from cloze.flows.external_inputs import (
    Digests,
    ExternalInput,
    digest_of_files,
    digest_of_model,
    digest_of_packages,
    read_model_config,
)
from tests.object_store.faulty_store import FaultyStore


def digest(path: object) -> str:
    return digest_of_files(str(path), place="corpus.sources.0.path")


def test_a_file_alone_and_in_a_folder_are_the_same_data(texts: Path) -> None:
    (texts / "two.txt").unlink()
    assert digest(texts) == digest(texts / "one.txt") == digest(texts / "*.txt")


def test_a_repeated_file_counts_twice(texts: Path) -> None:
    before = digest(texts)
    (texts / "again.txt").write_bytes((texts / "one.txt").read_bytes())
    assert digest(texts) != before


def test_hidden_files_do_not_count(texts: Path) -> None:
    before = digest(texts)
    (texts / ".DS_Store").write_text("nothing")
    (texts / ".git").mkdir()
    (texts / ".git" / "HEAD").write_text("nothing")
    assert digest(texts) == before


def test_a_file_touched_but_not_changed_is_the_same(texts: Path) -> None:
    before = digest(texts)
    time.sleep(0.01)
    (texts / "one.txt").touch()
    assert digest(texts) == before


def test_files_behind_a_url_have_the_digest_of_their_content(texts: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/outside/x.txt", (texts / "one.txt").read_bytes())
    memory.pipe_file("/outside/y.txt", (texts / "two.txt").read_bytes())
    assert digest("memory://outside") == digest(texts)


def test_a_store_that_fails_now_and_then_gives_the_same_digest(
    texts: Path, faulty_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts.rename(tmp_path / "store")
    monkeypatch.setenv("FAULTY_EVERY", "0")
    answers = itertools.count()

    def info(store: FaultyStore, path: str, **_: Any) -> dict[str, Any]:
        if next(answers) % 2 == 0:
            raise OSError("503 Service Unavailable")
        return store._info(path)

    monkeypatch.setattr(FaultyStore, "info", info)
    assert digest(faulty_url) == digest(tmp_path / "store")
    assert next(answers) == 4  # each of two files was asked for twice


def test_a_stores_own_checksum_is_used_instead_of_reading_the_file(
    texts: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/known/x.txt", b"12345")
    info = type(memory).info

    def with_checksum(store: Any, path: str, **options: Any) -> dict[str, Any]:
        return {**info(store, path, **options), "ETag": "abc"}

    monkeypatch.setattr(type(memory), "info", with_checksum)
    monkeypatch.setattr(type(memory), "open", lambda *_, **__: pytest.fail("was read"))
    assert digest("memory://known") == digest_of(["ETag:abc:5"])


@pytest.mark.parametrize("path", ["missing", "empty", "*.none"])
def test_a_place_without_files_is_refused_by_the_name_of_its_field(
    tmp_path: Path, path: str
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UsageError, match=r"^corpus.sources.0.path: .*no files here"):
        digest(tmp_path / path)


def test_files_that_are_all_empty_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(UsageError, match="1 file, empty"):
        digest(tmp_path)


def test_packages_count_by_name_and_version_in_any_order() -> None:
    one = digest_of_packages(("rich", "fsspec"), place="p")
    assert one == digest_of_packages(("fsspec", "Rich"), place="p")
    assert one != digest_of_packages(("fsspec",), place="p")


def test_a_package_that_is_not_installed_is_refused_with_the_remedy() -> None:
    with pytest.raises(UsageError, match="^p: no-such-thing is not installed here; pip install"):
        digest_of_packages(("no-such-thing",), place="p")


def model_folder(folder: Path) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text('{"hidden_size": 8}')
    (folder / "model.safetensors").write_bytes(b"weights")
    return folder


def test_a_models_folder_counts_by_its_files(tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "model")
    before = digest_of_model(str(folder), place="init")
    assert digest_of_model(str(folder.rename(tmp_path / "moved")), place="init") == before
    (tmp_path / "moved" / "model.safetensors").write_bytes(b"others")
    assert digest_of_model(str(tmp_path / "moved"), place="init") != before


def test_a_model_that_is_an_artifact_counts_by_the_artifacts_digest(tmp_path: Path) -> None:
    output = str(tmp_path / "artifact")
    table = StageTable(stage="import", format_version=1, config={}, output=output)
    artifact = commit(table, [put_json(output, {"hidden_size": 8}, name="config.json")])
    assert digest_of_model(output, place="init") == artifact.digest
    as_model, as_artifact = (
        ExternalInput(models={"init": output}),
        ExternalInput(artifacts={"init": output}),
    )
    assert Digests().of_input(as_model) == Digests().of_input(as_artifact)
    assert json.loads(read_model_config(output)) == {"hidden_size": 8}


def test_a_folder_without_a_model_is_refused(texts: Path) -> None:
    with pytest.raises(
        UsageError, match=r"^init: .*texts: no model found; expected a Cloze artifact"
    ):
        digest_of_model(str(texts), place="init")


def test_files_are_a_multiset_whatever_their_names_and_their_order(texts: Path) -> None:
    before = digest(texts)
    (texts / "one.txt").rename(texts / "zero.txt")  # now behind two.txt
    assert digest(texts) == before
    (texts / "zero.txt").rename(texts / "between")
    (texts / "two.txt").rename(texts / "zero.txt")
    (texts / "between").rename(texts / "two.txt")  # each has the other's name
    assert digest(texts) == before
