"""What people call things."""

from pathlib import Path

import pytest

from artifacts.errors import UsageError
from cloze.lookup import model_directory, named_artifact
from flows.record import RunRecord, write_record
from flows.workspace import workspace


def test_the_folder_of_a_run_is_no_model_and_its_name_is_said(tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "demo"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    others = workspace(str(tmp_path / "others"))
    with pytest.raises(UsageError, match=rf"call the run by its name, demo, .*{folder.parent} if"):
        model_directory(f"{folder}/", others)


def test_a_directory_that_is_no_run_is_taken_as_it_is(tmp_path: Path) -> None:
    assert model_directory(str(tmp_path), workspace(str(tmp_path / "runs"))) == str(tmp_path)


def test_a_run_named_where_an_artifact_is_wanted_lists_its_artifacts(tmp_path: Path) -> None:
    space = workspace(str(tmp_path))
    (tmp_path / "demo").mkdir()
    record = RunRecord(name="demo", state="running", config={}, machine={}, started_at="")
    write_record(record, space)
    with pytest.raises(UsageError, match="demo: a run; name one of its artifacts: it has none yet"):
        named_artifact("demo", space)
