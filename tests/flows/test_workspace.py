"""The locations of artifacts, runs and logs; the record of a run, and looking it up by name."""

from collections.abc import Callable
from pathlib import Path
from socket import gethostname

import fsspec
import pytest

from cloze.artifacts.errors import IntegrityError, UsageError
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.locks import locked
from cloze.flows.plan import Plan
from cloze.flows.workspace import (
    RunRecord,
    StageRecord,
    Workspace,
    find_record,
    list_runs,
    read_record,
    run_artifact,
    workspace,
    writable_workspace,
    write_record,
)


@pytest.fixture
def space(tmp_path: Path) -> Workspace:
    return workspace(str(tmp_path))


def record(name: str = "demo", **facts: object) -> RunRecord:
    values = {"name": name, "state": "finished", "config": {}, "machine": {}, "started_at": "now"}
    return RunRecord.model_validate({**values, **facts})


def test_what_is_written_is_read_again(space: Workspace) -> None:
    stage = StageRecord(key="k", digest="d", state="made", seconds=1.5)
    written = record(stages={"tokens": stage})
    write_record(written, space)
    assert read_record(space, "demo") == written
    assert list_runs(space) == ["demo"]


def test_a_killed_run_of_an_object_store_is_interrupted_where_it_was_started() -> None:
    store = workspace("memory://killed/runs")
    write_record(record("here", state="running", host=gethostname()), store)
    write_record(record("elsewhere", state="running", host="another"), store)
    assert read_record(store, "here").state == "interrupted"
    assert read_record(store, "elsewhere").state == "running"


def test_other_folders_of_the_workspace_are_no_runs(space: Workspace, tmp_path: Path) -> None:
    (tmp_path / "artifacts").mkdir()
    (tmp_path / "notes.txt").write_text("")
    assert list_runs(space) == []
    assert find_record(space, "artifacts") is None


def test_an_unknown_run_is_refused_with_those_there_are(space: Workspace) -> None:
    write_record(record("one"), space)
    write_record(record("two"), space)
    for elsewhere in ("one/../two", "../runs/one", f"../{space.local.name}/one", "one/"):
        assert find_record(space, elsewhere) is None
    with pytest.raises(
        UsageError, match=r"three: no run of this name in .*; existing runs: one, two"
    ):
        read_record(space, "three")
    with pytest.raises(UsageError, match=r"^an empty name: no run of this name in "):
        read_record(space, "")


def test_a_damaged_record_is_no_traceback(space: Workspace, tmp_path: Path) -> None:
    write_record(record(), space)
    (tmp_path / "demo" / "run.json").write_text("{")
    with pytest.raises(UsageError, match="not a run's record"):
        read_record(space, "demo")


def test_a_stage_that_is_not_finished_is_named_with_those_that_are(space: Workspace) -> None:
    stage = StageRecord(key="k", digest="d", state="made")
    write_record(record(stages={"tokens": stage}, state="failed"), space)
    with pytest.raises(UsageError, match=r"no finished stage pretrain \(failed; finished: tokens"):
        run_artifact(space, "demo", stage="pretrain")


def test_a_record_of_an_earlier_version_is_read(space: Workspace, tmp_path: Path) -> None:
    write_record(record(), space)
    file = tmp_path / "demo" / "run.json"
    file.write_text(file.read_text().replace('"failure"', '"flow_run": "id",\n "failure"'))
    assert read_record(space, "demo") == record()


def test_what_lies_in_the_workspace_is_written_relative_to_it(
    space: Workspace, tmp_path: Path
) -> None:
    encoder = f"{space.root}/artifacts/pretrain/k"
    beside = f"{space.root}-other/model"
    written = record(config={"pretrain": {"init": encoder}, "finetune": {"encoder": beside}})
    write_record(written, space)
    assert read_record(space, "demo") == written
    told = (tmp_path / "demo" / "run.json").read_text()
    assert '"{workspace}/artifacts/pretrain/k"' in told
    assert encoder not in told
    assert beside in told, "a model elsewhere does not move along"


def test_a_run_that_does_not_hold_the_lock_is_interrupted(space: Workspace, tmp_path: Path) -> None:
    write_record(record(state="running"), space)
    assert read_record(space, "demo").state == "interrupted"
    with locked(tmp_path, run="demo"):
        assert read_record(space, "demo").state == "running"
    with locked(tmp_path, run="other"):
        assert read_record(space, "demo").state == "interrupted"


def test_an_artifact_other_than_the_one_a_run_names_is_refused(
    inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    execute(Plan(run, machine))
    space = workspace(machine.workspace)
    found = read_record(space, run.name)
    entry = found.stages["tokens"].model_copy(update={"digest": "0" * 64})
    write_record(found.model_copy(update={"stages": {"tokens": entry}}), space)
    with pytest.raises(IntegrityError, match=r"but run.json of run try has 000000000000"):
        run_artifact(space, run.name, stage="tokens")


def test_a_local_workspace_holds_everything_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space = workspace("runs")
    assert space.root == str(tmp_path / "runs")
    assert space.store.directory("tokens", "k") == f"{tmp_path}/runs/artifacts/tokens/k"
    assert space.run_folder("demo") == f"{tmp_path}/runs/demo"
    assert space.job_folder("demo", "tokens") == tmp_path / "runs" / "demo" / "jobs" / "tokens"
    assert not (tmp_path / "runs").exists()


def test_the_logs_of_a_workspace_behind_a_url_lie_on_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    one, other = workspace("memory://one"), workspace("memory://other")
    assert one.root == "memory://one"
    assert one.local.is_relative_to(tmp_path / "cloze")
    assert one.local != other.local


def test_a_workspace_is_made_where_it_can_be_written(tmp_path: Path) -> None:
    space = writable_workspace(str(tmp_path / "a" / "b"))
    assert space.local.is_dir()
    assert list(space.local.iterdir()) == []


def test_a_workspace_behind_a_url_is_tried_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    writable_workspace("memory://tried")
    assert fsspec.filesystem("memory").find("/tried") == []


def test_where_nothing_can_be_written_the_reason_is_given(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"cannot be written \((Not a directory|File exists)\)"):
        writable_workspace(str(tmp_path / "file" / "runs"))
