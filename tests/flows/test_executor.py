"""Executing a chain of stand-ins without Prefect."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from cloze.artifacts.errors import UsageError
from cloze.artifacts.runtime.processes import descendants
from cloze.artifacts.stage import read_stage_table
from cloze.flows.config import MachineConfig, ReportConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.inventory import garbage
from cloze.flows.job import StageFailed
from cloze.flows.plan import Plan
from cloze.flows.workspace import RunRecord, list_runs, read_record, run_artifact, workspace

ALL = ["vocabulary", "tokens", "examples", "pretrain", "labels", "finetune", "evaluate", "report"]


def states(record: RunRecord) -> dict[str, str]:
    return {stage: found.state for stage, found in record.stages.items()}


def digests(record: RunRecord) -> dict[str, str]:
    return {stage: found.digest for stage, found in record.stages.items()}


Executed = Callable[..., RunRecord]


@pytest.fixture
def executed(run_table: dict[str, Any], machine: MachineConfig) -> Executed:
    """Executes the run, or what is wanted of it, with other values of some settings."""

    def again(
        *, wanted: Sequence[str] = (), options: Sequence[str] = (), **settings: Any
    ) -> RunRecord:
        run = RunConfig.model_validate({**run_table, **settings})
        return execute(Plan(run, machine, wanted=wanted), options=options)

    return again


def output_of(events: list[tuple[str, str, str]]) -> list[tuple[str, str]]:
    """What the programs of the stages have printed."""
    return [(stage, text) for stage, state, text in events if state == "output"]


def folder(machine: MachineConfig) -> Path:
    return Path(machine.workspace) / "try"


def test_a_run_leaves_a_record_its_tables_its_logs_and_the_report(
    standins: Callable[..., None], executed: Executed, machine: MachineConfig
) -> None:
    record = executed()
    assert states(record) == dict.fromkeys(ALL, "made")
    assert record == read_record(workspace(machine.workspace), "try")
    assert record.state == "finished"
    assert record.peak_memory is not None
    for stage in ALL:
        assert read_stage_table(folder(machine) / "stages" / f"{stage}.json").stage == stage
        assert "finished in" in (folder(machine) / "jobs" / stage / "log").read_text()
    assert {"report.html", "summary.json"} <= {path.name for path in folder(machine).iterdir()}


def test_a_second_run_reuses_everything_and_remembers_what_it_cost(
    inline: Callable[..., None], executed: Executed
) -> None:
    first, second = executed(), executed()
    assert states(second) == dict.fromkeys(ALL, "reused")
    assert digests(second) == digests(first)
    assert second.stages["tokens"].seconds == first.stages["tokens"].seconds


def test_a_run_of_the_same_name_and_other_settings_keeps_the_earlier_one(
    inline: Callable[..., None],
    executed: Executed,
    run: RunConfig,
    machine: MachineConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    space = workspace(machine.workspace)
    first = executed()
    page = (folder(machine) / "report.html").read_bytes()
    second = execute(Plan(run.model_copy(update={"seed": 7}), machine))
    assert "run try had other settings (seed); it is kept as try.1" in capsys.readouterr().err
    kept = read_record(space, "try.1")
    assert digests(kept) == digests(first) != digests(second)
    assert (folder(machine).parent / "try.1" / "report.html").read_bytes() == page
    assert not [item for item in garbage(space) if "no run refers to" in item.reason]
    executed()
    assert list_runs(space) == ["try", "try.1", "try.2"]


def test_a_run_repeated_or_with_another_headline_replaces_its_record(
    inline: Callable[..., None], executed: Executed, run: RunConfig, machine: MachineConfig
) -> None:
    executed()
    executed()
    execute(Plan(run.model_copy(update={"report": ReportConfig(title="Another")}), machine))
    assert list_runs(workspace(machine.workspace)) == ["try"]


def test_a_stage_that_fails_ends_the_run_and_the_next_one_goes_on_there(
    inline: Callable[..., None], executed: Executed, machine: MachineConfig
) -> None:
    inline(examples={"fail": 2})
    with pytest.raises(StageFailed, match="^examples: the text: is wrong") as failure:
        executed()
    assert failure.value.exit_code == 2
    record = read_record(workspace(machine.workspace), "try")
    assert (record.state, list(record.stages)) == ("failed", ["vocabulary", "tokens"])
    assert record.failure == str(failure.value)
    inline()
    again = executed()
    assert [stage for stage, state in states(again).items() if state == "made"] == ALL[2:]


def test_a_killed_stage_is_tried_again_and_a_failed_one_is_not(
    killed_once: Callable[..., None],
    executed: Executed,
    events: list[tuple[str, str, str]],
) -> None:
    killed_once(tokens={"fail": 1})
    with pytest.raises(StageFailed, match="^tokens: the text: is wrong"):
        executed()
    warned = [(stage, text) for stage, state, text in events if state == "warning"]
    ((stage, text),) = warned
    assert stage == "vocabulary"
    assert "killed by signal 9" in text
    assert text.endswith("; trying again")


def test_a_killed_stage_is_tried_no_oftener_than_asked_for(
    killed_once: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    once = machine.model_copy(update={"jobs": machine.jobs.model_copy(update={"retries": 0})})
    killed_once()
    with pytest.raises(StageFailed, match="killed by signal 9"):
        execute(Plan(run, once))


def test_only_what_is_wanted_is_made_and_the_record_keeps_the_rest(
    inline: Callable[..., None], executed: Executed
) -> None:
    assert list(executed(wanted=("tokens",)).stages) == ["vocabulary", "tokens"]
    executed()
    assert list(executed(wanted=("tokens",)).stages) == ALL


def test_stages_of_another_configuration_are_not_kept(
    inline: Callable[..., None], executed: Executed
) -> None:
    executed()
    record = executed(wanted=("tokens",), vocabulary={"size": 100})
    assert list(record.stages) == [
        "vocabulary",
        "tokens",
        "labels",
    ]  # labels do not depend on tokens


def test_engine_options_reach_every_stage_that_beam_runs(
    inline: Callable[..., None], executed: Executed, events: list[tuple[str, str, str]]
) -> None:
    executed(wanted=("tokens",), options=("--runner=Some",))
    output = output_of(events)
    given = "options ['--runner=Some']"
    assert output == [("vocabulary", given), ("tokens", given)]


def test_options_for_the_launcher_of_ranks_reach_training_alone(
    inline: Callable[..., None], executed: Executed, events: list[tuple[str, str, str]]
) -> None:
    executed(wanted=("pretrain",), options=("--hostfile=hosts",))
    output = output_of(events)
    stages = ("vocabulary", "tokens", "examples")
    given = "options ['--hostfile=hosts']"
    assert output == [*((stage, "options []") for stage in stages), ("pretrain", given)]


def test_two_runs_share_what_they_have_in_common(
    inline: Callable[..., None], executed: Executed
) -> None:
    executed(wanted=("examples",))
    record = executed(wanted=("examples",), name="other", examples={"copies": 2})
    assert states(record) == {"vocabulary": "reused", "tokens": "reused", "examples": "made"}


def test_a_run_that_is_given_anothers_encoder_reuses_what_was_fine_tuned_from_it(
    inline: Callable[..., None],
    executed: Executed,
    run: RunConfig,
    run_table: dict[str, Any],
    machine: MachineConfig,
) -> None:
    executed()
    encoder = run_artifact(workspace(machine.workspace), run.name, stage="pretrain").directory
    finetune = {**run_table["finetune"], "encoder": encoder}
    record = executed(name="other", corpus=None, finetune=finetune)
    assert states(record) == {
        **{"labels": "reused", "finetune": "reused"},
        **{"evaluate": "made", "report": "made"},
    }


def test_a_workspace_that_cannot_be_written_is_refused(run: RunConfig, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    machine = MachineConfig(workspace=str(tmp_path / "file" / "runs"))
    with pytest.raises(UsageError, match=r"workspace .*/file/runs: cannot be written"):
        execute(Plan(run, machine))


def test_a_workspace_behind_a_url_gives_the_same_digests(
    inline: Callable[..., None],
    executed: Executed,
    run: RunConfig,
    machine: MachineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    remote = machine.model_copy(update={"workspace": f"memory://{tmp_path.name}"})
    assert digests(execute(Plan(run, remote))) == digests(executed())


def test_nothing_is_left_running(standins: Callable[..., None], executed: Executed) -> None:
    standins(tokens={"orphan": True})
    executed(wanted=("tokens",))
    assert not list(descendants(os.getpid()))


def test_the_report_is_told_where_the_record_lies(
    inline: Callable[..., None], executed: Executed, run: RunConfig, machine: MachineConfig
) -> None:
    executed()
    table = json.loads((folder(machine) / "stages" / "report.json").read_text())
    assert table["machine"] == {"record": str(folder(machine) / "run.json")}


def test_the_record_adds_up_the_attempts_at_a_stage(
    standins: Callable[..., None], executed: Executed
) -> None:
    standins(vocabulary={"sleep": 1.5, "fail": 1})
    with pytest.raises(StageFailed):
        executed(wanted=("vocabulary",))
    standins()
    record = executed(wanted=("vocabulary",))
    assert record.stages["vocabulary"].seconds > 1.5
    assert record.seconds < record.stages["vocabulary"].seconds
