"""Runs, artifacts and models by name."""

from pathlib import Path

import pytest

from artifacts.errors import UsageError
from cloze.lookup import model_directory, named_artifact
from flows.workspace import RunRecord, workspace, write_record


def test_a_runs_folder_is_no_model_and_the_error_gives_its_name(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    others = workspace(str(tmp_path / "others"))
    with pytest.raises(UsageError, match=rf"use the run's name, demo, .*{folder.parent} if"):
        model_directory(f"{folder}/", others)


def test_a_directory_that_is_no_run_is_used_directly(tmp_path: Path) -> None:
    assert model_directory(str(tmp_path), workspace(str(tmp_path / "runs"))) == str(tmp_path)


def test_a_run_named_where_an_artifact_is_wanted_lists_its_artifacts(tmp_path: Path) -> None:
    space = workspace(str(tmp_path))
    (tmp_path / "demo").mkdir()
    record = RunRecord(name="demo", state="running", config={}, machine={}, started_at="")
    write_record(record, space)
    with pytest.raises(UsageError, match="demo: this is a run; name one of its artifacts"):
        named_artifact("demo", space)
