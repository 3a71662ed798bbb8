"""The locations of artifacts, runs and logs."""

from pathlib import Path

import fsspec
import pytest

from artifacts.errors import UsageError
from flows.workspace import workspace, writable_workspace


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
