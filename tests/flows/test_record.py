"""The record of a run, and what is found by a run's name."""

from pathlib import Path

import pytest

from artifacts.errors import UsageError
from flows.record import (
    RunRecord,
    StageRecord,
    find_record,
    list_runs,
    read_record,
    run_artifact,
    write_record,
)
from flows.workspace import Workspace, workspace


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return workspace(str(tmp_path))


def record(name: str = "demo", **facts: object) -> RunRecord:
    values = {"name": name, "state": "running", "config": {}, "machine": {}, "started_at": "now"}
    return RunRecord.model_validate({**values, **facts})


def test_what_is_written_is_read_again(space: Workspace) -> None:
    stage = StageRecord(key="k", digest="d", directory="x", state="made", seconds=1.5)
    written = record(stages={"tokens": stage})
    write_record(written, space)
    assert read_record(space, "demo") == written
    assert list_runs(space) == ["demo"]


def test_other_folders_of_the_workspace_are_no_runs(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert list_runs(space) == []
    assert find_record(space, "artifacts") is None


def test_an_unknown_run_is_refused_with_those_there_are(space: Workspace) -> None:
    write_record(record("one"), space)
    write_record(record("two"), space)
    with pytest.raises(UsageError, match=r"three: no run of this name in .*; runs there: one, two"):
        read_record(space, "three")


def test_a_damaged_record_is_no_traceback(space: Workspace, tmp_path: Path) -> None:
    write_record(record(), space)
    (tmp_path / "demo" / "run.json").write_text("{")
    with pytest.raises(UsageError, match="not a run's record"):
        read_record(space, "demo")


def test_a_stage_that_is_not_finished_is_named_with_those_that_are(space: Workspace) -> None:
    stage = StageRecord(key="k", digest="d", directory="x", state="made")
    write_record(record(stages={"tokens": stage}, state="failed"), space)
    with pytest.raises(UsageError, match=r"no finished stage pretrain \(failed; finished: tokens"):
        run_artifact(space, "demo", stage="pretrain")


def test_a_record_of_an_earlier_version_is_read(space: Workspace, tmp_path: Path) -> None:
    write_record(record(), space)
    file = tmp_path / "demo" / "run.json"
    file.write_text(file.read_text().replace('"failure"', '"flow_run": "id",\n "failure"'))
    assert read_record(space, "demo") == record()
