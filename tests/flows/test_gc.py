"""What no run names any more."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.config import MachineConfig, RunConfig
from flows.gc import remove_rubbish, rubbish
from flows.lineage import ancestors
from flows.run import work
from flows.workspace import Workspace, workspace


@pytest.fixture
def space(inline: Callable[..., None], run: RunConfig, machine: MachineConfig) -> Workspace:
    work(run, machine)
    return workspace(machine.workspace)


def stages(space: Workspace) -> list[str]:
    return [Path(item.path).parent.name for item in rubbish(space)]


def test_what_a_run_names_is_no_rubbish(space: Workspace) -> None:
    assert rubbish(space) == []


def test_what_an_earlier_configuration_made_is(
    space: Workspace, run_table: dict[str, Any], machine: MachineConfig
) -> None:
    work(RunConfig.model_validate({**run_table, "examples": {"copies": 2}}), machine)
    assert stages(space) == ["evaluate", "examples", "finetune", "pretrain", "report"]
    remove_rubbish(rubbish(space))
    assert rubbish(space) == []
    again = work(RunConfig.model_validate({**run_table, "examples": {"copies": 2}}), machine)
    assert {stage.state for stage in again.stages.values()} == {"reused"}


def test_another_run_keeps_what_it_names(
    space: Workspace, run_table: dict[str, Any], machine: MachineConfig
) -> None:
    changed = {**run_table, "name": "other", "examples": {"copies": 2}}
    work(RunConfig.model_validate(changed), machine)
    assert rubbish(space) == []


def test_unfinished_work_of_a_run_is_kept_and_of_nobody_is_not(space: Workspace) -> None:
    directory = next((space.local / "artifacts" / "tokens").iterdir())
    (directory / "manifest.json").unlink()
    assert rubbish(space) == []
    nobody = space.local / "artifacts" / "tokens" / ("f" * 64)
    nobody.mkdir()
    (nobody / "part.arrow").write_text("12345")
    (found,) = rubbish(space)
    assert (found.path, found.size) == (str(nobody), 5)
    assert found.reason == "unfinished artifact of tokens that no run names"


def test_what_is_left_over_in_a_finished_artifact_goes_alone(space: Workspace) -> None:
    directory = next((space.local / "artifacts" / "tokens").iterdir())
    before = sorted(directory.rglob("*"))
    (directory / "checkpoints").mkdir()
    (directory / "checkpoints" / "step.safetensors").write_text("12345")
    (found,) = rubbish(space)
    assert found.path == str(directory / "checkpoints")
    remove_rubbish([found])
    assert sorted(directory.rglob("*")) == before


def test_ancestors_are_found_by_their_digests(space: Workspace, run: RunConfig) -> None:
    directory = next((space.local / "artifacts" / "pretrain").iterdir())
    found = ancestors(space.store.find("pretrain", directory.name), store=space.store)
    assert list(found) == ["pretrain", "examples", "tokens", "vocabulary"]
