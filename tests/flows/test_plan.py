"""The plan of a run, with reasons."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.plan import PlannedStage, differences, plan
from cloze.flows.workspace import workspace

Planned = dict[str, PlannedStage]


@pytest.fixture
def planned(
    inline: Callable[..., None], run: RunConfig, run_table: dict[str, Any], machine: MachineConfig
) -> Callable[..., Planned]:
    """The plan of the run with changed tables, after the unchanged one was executed."""
    execute(run, machine)

    def plan_with(**tables: Any) -> Planned:
        changed = RunConfig.model_validate({**run_table, **tables})
        stages = plan(changed, workspace=workspace(machine.workspace))
        return {stage.stage: stage for stage in stages}

    return plan_with


def to_run(planned: Planned) -> list[str]:
    return [name for name, stage in planned.items() if stage.action == "run"]


def test_before_anything_is_made_everything_would_run(run: RunConfig, tmp_path: Path) -> None:
    stages = plan(run, workspace=workspace(str(tmp_path / "runs")))
    assert {stage.action for stage in stages} == {"run"}
    assert stages[0].reasons == ("no earlier artifact of this stage",)
    assert stages[1].reasons == ("new vocabulary",)
    assert not (tmp_path / "runs").exists()


def test_after_a_run_everything_is_reused(planned: Callable[..., Planned]) -> None:
    assert to_run(planned()) == []
    assert all(stage.digest and not stage.reasons for stage in planned().values())


def test_a_changed_field_is_named_with_both_values(planned: Callable[..., Planned]) -> None:
    changed = planned(examples={"copies": 3})
    assert to_run(changed) == ["examples", "pretrain", "finetune", "evaluate", "report"]
    assert changed["examples"].reasons == ("examples.copies: 10 → 3",)
    assert changed["pretrain"].reasons == ("new examples",)


def test_only_what_depends_on_fine_tuning_runs_when_it_alone_changes(
    planned: Callable[..., Planned],
) -> None:
    tasks = [{"name": "parts", "kind": "tagging", "epochs": 1}]
    changed = planned(finetune={"tasks": tasks})
    assert to_run(changed) == ["finetune", "evaluate", "report"]
    assert changed["finetune"].reasons == ("finetune.tasks.0.epochs: 3 → 1",)


def test_own_changes_are_named_beside_those_of_inputs(planned: Callable[..., Planned]) -> None:
    changed = planned(examples={"copies": 3}, pretrain={"steps": 7})
    assert changed["pretrain"].reasons == ("new examples", "pretrain.steps: 1000000 → 7")


def test_a_changed_document_is_named_as_the_input_it_belongs_to(
    planned: Callable[..., Planned], texts: Path
) -> None:
    (texts / "one.txt").write_text("Another first document.\n")
    (reason,) = planned()["vocabulary"].reasons
    assert reason.startswith("input corpus: ")


def test_damage_is_the_reason_where_there_is_damage(
    planned: Callable[..., Planned], machine: MachineConfig
) -> None:
    folder = Path(planned()["tokens"].directory)
    next(folder.glob("content.*.json")).unlink()
    (reason,) = planned()["tokens"].reasons
    assert reason.endswith("content.json is missing")


def test_the_nearest_of_several_artifacts_is_compared(
    planned: Callable[..., Planned], run_table: dict[str, Any], machine: MachineConfig
) -> None:
    near = {**run_table, "examples": {"copies": 3, "short_seq_prob": 0.2}}
    execute(RunConfig.model_validate(near), machine, wanted=("examples",))
    changed = planned(examples={"copies": 4, "short_seq_prob": 0.2})
    assert changed["examples"].reasons == ("examples.copies: 3 → 4",)


def test_differences_show_what_came_and_what_went() -> None:
    assert differences({"a": 1, "b": 2}, {"b": 2, "c": "x"}) == ("a: 1 → absent", 'c: absent → "x"')
