"""The plan of a run: its reasons, and that what it shows is what is executed."""

import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.errors import ClozeError, UsageError
from cloze.command import exit_code
from cloze.flows import config as flows_config
from cloze.flows import external_inputs, stages
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.external_inputs import Digests
from cloze.flows.plan import Plan, PlannedStage, differences
from cloze.flows.stages import keyed_config
from cloze.flows.workspace import read_record

Planned = dict[str, PlannedStage]


@pytest.fixture
def planned(
    inline: Callable[..., None], run: RunConfig, run_table: dict[str, Any], machine: MachineConfig
) -> Callable[..., Planned]:
    """The plan of the run with changed tables, after the unchanged one was executed."""
    execute(Plan(run, machine))

    def plan_with(**tables: Any) -> Planned:
        changed = RunConfig.model_validate({**run_table, **tables})
        return {step.stage: step for step in Plan(changed, machine).steps}

    return plan_with


def to_run(planned: Planned) -> list[str]:
    return [name for name, stage in planned.items() if stage.action == "run"]


def test_before_anything_is_made_everything_would_run(
    run: RunConfig, machine: MachineConfig, tmp_path: Path
) -> None:
    stages = Plan(run, machine).steps
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
    execute(Plan(RunConfig.model_validate(near), machine, wanted=("examples",)))
    changed = planned(examples={"copies": 4, "short_seq_prob": 0.2})
    assert changed["examples"].reasons == ("examples.copies: 3 → 4",)


def test_differences_show_what_came_and_what_went() -> None:
    assert differences({"a": 1, "b": 2}, {"b": 2, "c": "x"}) == ("a: 1 → absent", 'c: absent → "x"')


def test_a_task_that_came_is_one_difference_and_not_one_for_each_of_its_settings() -> None:
    old = {"tasks.0.name": "a", "tasks.0.epochs": 3, "grid.rates.0": 0.1, "seed": 1}
    new = {"tasks.0.name": "a", "tasks.0.epochs": 4, "seed": 1, "tasks.0.labels.0": "x"}
    came = {"tasks.1.name": "b", "tasks.1.epochs": 3, "tasks.1.span.stride": 128}
    assert differences(old, {**new, **came}) == (
        "tasks.0.epochs: 3 → 4",
        "grid.rates.0: 0.1 → absent",
        'tasks.0.labels.0: absent → "x"',
        "tasks.1: absent → 3 settings",
    )
    assert differences({"grid": None}, {"grid.rates.0": 0.1, "grid.rates.1": 0.2}) == (
        "grid: null → absent",
        "grid.rates: absent → 2 settings",
    )


def labelled(run_table: dict[str, Any], file: Path) -> RunConfig:
    """The run with a task of the user's own."""
    file.write_text("sentence\tlabel\nfine\t1\n")
    task = {"name": "mood", "kind": "classification", "train": str(file)}
    return RunConfig.model_validate({**run_table, "labels": None, "finetune": {"tasks": [task]}})


def test_the_keys_that_are_planned_are_those_that_are_executed(
    inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    plan = Plan(run, machine)
    assert plan.to_run == tuple(plan.stages)
    planned = {
        name: plan.table(stage).key for name, stage in plan.stages.items() if plan.is_ready(stage)
    }
    record = execute(plan)
    assert planned == {name: record.stages[name].key for name in ("vocabulary", "labels")}
    again = Plan(run, machine)
    assert again.to_run == ()
    assert {step.stage: step.digest for step in again.steps} == {
        name: found.digest for name, found in record.stages.items()
    }


def test_a_document_changed_after_planning_is_refused_before_a_stage_reads_it(
    inline: Callable[..., None], run: RunConfig, machine: MachineConfig, texts: Path
) -> None:
    plan = Plan(run, machine)
    (texts / "one.txt").write_text("Another first document.\n")
    with pytest.raises(ClozeError, match=r"^corpus.sources.0.path: .*changed since this run was"):
        execute(plan)
    assert not list(Path(machine.workspace).glob("artifacts/*/*/manifest.json"))
    assert execute(Plan(run, machine)).state == "finished"


def test_a_task_changed_while_earlier_stages_ran_is_refused_and_these_are_kept(
    inline: Callable[..., None],
    run_table: dict[str, Any],
    machine: MachineConfig,
    tmp_path: Path,
) -> None:
    run = labelled(run_table, tmp_path / "train.tsv")
    plan = Plan(run, machine)
    (tmp_path / "train.tsv").write_text("sentence\tlabel\nbad\t0\n")
    with pytest.raises(ClozeError, match=r"^finetune.tasks.0.train: .*run the same command"):
        execute(plan)
    record = read_record(plan.space, "try")
    assert record.state == "failed"
    assert list(record.stages) == ["vocabulary", "tokens", "examples", "pretrain"]
    states = {name: found.state for name, found in execute(Plan(run, machine)).stages.items()}
    assert (states["pretrain"], states["finetune"]) == ("reused", "made")


def test_a_document_touched_or_moved_in_place_after_planning_is_the_same(
    inline: Callable[..., None], run: RunConfig, machine: MachineConfig, texts: Path
) -> None:
    plan = Plan(run, machine)
    os.utime(texts / "one.txt", (0, 0))
    (texts / "two.txt").rename(texts / "three.txt")
    assert execute(plan).state == "finished"


def test_a_missing_file_of_a_later_stage_is_refused_when_planning(
    run_table: dict[str, Any], machine: MachineConfig, tmp_path: Path
) -> None:
    run = labelled(run_table, tmp_path / "train.tsv")
    (tmp_path / "train.tsv").unlink()
    with pytest.raises(UsageError, match=r"^finetune.tasks.0.train: .*no files here"):
        Plan(run, machine)


def test_runs_that_share_digests_are_given_the_same_data(
    run: RunConfig, machine: MachineConfig, texts: Path
) -> None:
    digests = Digests()
    plans = [Plan(run, machine, digests=digests) for _ in range(2)]
    (texts / "one.txt").write_text("Another first document.\n")
    plans.append(Plan(run, machine, digests=digests))
    first = [plan.table(plan.stages["vocabulary"]).key for plan in plans]
    assert len({*first}) == 1


def test_a_run_is_parsed_chained_and_digested_once(
    inline: Callable[..., None],
    texts: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Counted where every parsing, planning and digesting passes."""
    made: Counter[str] = Counter()

    def count(name: str, module: str, of: Callable[..., Any]) -> None:
        def counted(*arguments: Any, **options: Any) -> Any:
            made[name.format(*arguments)] += 1
            return of(*arguments, **options)

        monkeypatch.setattr(module, counted)

    count("parsed", "cloze.flows.config.flat", flows_config.flat)
    count("chained", "cloze.flows.plan.chain", stages.chain)
    count(
        "{0}",
        "cloze.flows.external_inputs.cached_digest_of_file",
        external_inputs.cached_digest_of_file,
    )
    monkeypatch.chdir(tmp_path)
    (tmp_path / "try.toml").write_text(
        'name = "try"\ncorpus.sources = [{reader = "text", path = "texts"}]\n'
    )
    assert exit_code(["run", "try.toml", "--without-prefect"]) == 0
    files = {str(texts / "one.txt"): 1, str(texts / "two.txt"): 1}
    assert made == {"parsed": 2, "chained": 1, **files}  # a run and a machine


@pytest.mark.parametrize("here", ["fp32", "bf16"])
def test_auto_is_the_precision_of_what_trains_whatever_this_machine_has(
    run: RunConfig, machine: MachineConfig, here: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flows_config, "has_gpu", lambda: False)
    monkeypatch.setattr(flows_config, "cpu_precision", lambda: (here, "a reason"))

    def trained(**tables: Any) -> dict[str, tuple[str, str]]:
        table = {**machine.model_dump(), **tables}
        plan = Plan(run, MachineConfig.model_validate(table))
        assert keyed_config(plan.stages["pretrain"])["pretrain"]["precision"] == (  # type: ignore[index,call-overload]
            plan.run.pretrain.precision
        )
        return {step.stage: (step.device, step.precision) for step in plan.steps}

    on_gpus = {"device": "cuda"}
    for found in (trained(training=on_gpus), trained(jobs={"launcher": "slurm"})):
        assert found["pretrain"] == found["finetune"] == ("cuda", "bf16")
        assert (found["evaluate"], found["tokens"]) == (("cuda", "fp32"), ("cpu", ""))
    kubernetes = {"launcher": "kubernetes", "stages": ["pretrain"]}
    found = trained(jobs=kubernetes)
    assert (found["pretrain"], found["finetune"]) == (("cuda", "bf16"), ("cpu", here))
    assert trained()["pretrain"] == trained(training={"device": "cpu"})["pretrain"] == ("cpu", here)


def test_auto_is_refused_for_a_clusters_processors_which_nobody_here_can_see(
    run: RunConfig, machine: MachineConfig
) -> None:
    table = {**machine.model_dump(), "training": {"device": "cpu"}, "jobs": {"launcher": "slurm"}}
    elsewhere = MachineConfig.model_validate(table)
    with pytest.raises(UsageError, match=r'^pretrain\.precision = "auto" .* on slurm: .*"fp32"$'):
        Plan(run, elsewhere)
    chosen = {
        stage: getattr(run, stage).model_copy(update={"precision": "fp32"})
        for stage in ("pretrain", "finetune")
    }
    assert Plan(run.model_copy(update=chosen), elsewhere).run.pretrain.precision == "fp32"
