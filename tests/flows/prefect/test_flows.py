"""A real Prefect flow on a real temporary server, with tables and progress bars in its UI.

The stages are stand-ins.
"""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.exceptions import ParameterTypeError

from cloze.artifacts.errors import UsageError
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.job import StageFailed
from cloze.flows.plan import Plan
from cloze.flows.prefect import tracking
from cloze.flows.prefect.flows import (
    SERVED,
    SERVING,
    end_to_end,
    evaluate,
    finetune,
    prepare,
    pretrain,
)
from cloze.flows.prefect.server import ServerLost
from cloze.flows.prefect.serving import deployments
from cloze.flows.prefect.tracking import (
    ProgressBars,
    artifact_key,
    execute_as_flow,
    figure_rows,
    reporting_to,
    stage_rows,
)
from cloze.flows.workspace import RunRecord, StageRecord
from cloze.model.config import TrainingMachine
from tests.waiting import PATIENCE, wait_for


def test_the_flow_executes_the_chain_and_the_server_knows(
    server: str,
    inline: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
) -> None:
    with reporting_to(server):
        record = RunRecord.model_validate(end_to_end(run, machine))
    assert record.state == "finished"
    secret = os.environ["PREFECT_API_AUTH_STRING"]
    with SyncPrefectClient(server, auth_string=secret) as client:
        (flow_run,) = client.read_flow_runs()
        tasks = client.read_task_runs()
        wait_for(lambda: any(log.message.startswith("report made") for log in client.read_logs()))
        logs = client.read_logs()
        pages = {page.key: page for page in client.read_artifacts()}
    assert (flow_run.name, flow_run.state_name) == ("try", "Completed")
    assert flow_run.parameters["run"]["name"] == "try"
    assert {task.name for task in tasks} == set(record.stages)
    assert {task.state_name for task in tasks} == {"Completed"}
    assert {f"try-{stage}" for stage in record.stages} | {"try-stages"} == set(pages)
    assert pages["try-tokens"].data == 100.0
    assert any(log.message.startswith("tokens made") for log in logs)
    assert not any("waiting" in log.message for log in logs)


def test_a_plan_that_exists_is_executed_as_the_same_flow_without_parsing_or_planning_again(
    server: str,
    inline: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = Plan(run.model_copy(update={"name": "planned"}), machine)
    monkeypatch.setattr("cloze.flows.config.flat", lambda _: pytest.fail("parsed again"))
    monkeypatch.setattr("cloze.flows.plan.chain", lambda _: pytest.fail("planned again"))
    with reporting_to(server):
        record = execute_as_flow(plan)
    assert (record.name, record.state) == ("planned", "finished")
    secret = os.environ["PREFECT_API_AUTH_STRING"]
    with SyncPrefectClient(server, auth_string=secret) as client:
        (flow_run,) = [found for found in client.read_flow_runs() if found.name == "planned"]
        flow = client.read_flow(flow_run.flow_id)
    assert (flow.name, flow_run.state_name) == ("end-to-end", "Completed")
    assert flow_run.parameters["run"]["corpus"] is not None


def test_a_flow_refuses_what_the_commands_refuse(
    server: str, inline: Callable[..., None], run_table: dict[str, Any], machine: MachineConfig
) -> None:
    muon = RunConfig.model_validate({**run_table, "pretrain": {"optimizer": {"name": "muon"}}})
    partitioned = machine.model_copy(update={"training": TrainingMachine(zero_stage=2)})
    refused = pytest.raises(UsageError, match=r"= muon with training.zero_stage = 2: muon needs")
    with refused, reporting_to(server):
        pretrain(muon, partitioned)


def test_a_killed_stage_is_tried_again_and_a_failed_one_is_not(
    server: str,
    killed_once: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    events: list[tuple[str, str, str]],
) -> None:
    killed_once(tokens={"fail": 1})
    failure = pytest.raises(StageFailed, match="^tokens: the text: is wrong")
    with failure, reporting_to(server):
        prepare(run, machine)
    states = [
        (stage, state) for stage, state, _ in events if state in ("warning", "failed", "made")
    ]
    assert states == [
        ("vocabulary", "failed"),
        ("vocabulary", "warning"),
        ("vocabulary", "made"),
        ("tokens", "failed"),
    ]


def test_a_part_of_the_chain_is_a_flow_that_makes_what_is_missing(
    server: str, inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    made: list[list[str]] = []
    for flow in (prepare, pretrain, finetune, evaluate):
        with reporting_to(server):
            record = RunRecord.model_validate(flow(run, machine))
        assert record.state == "finished"
        made.append([stage for stage, found in record.stages.items() if found.state == "made"])
    assert made == [
        ["vocabulary", "tokens", "examples"],
        ["pretrain"],
        ["labels", "finetune"],
        ["evaluate"],
    ]


def test_the_server_knows_why_a_flow_failed(
    server: str, inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    inline(tokens={"fail": 1})
    doomed = run.model_copy(update={"name": "doomed"})
    with pytest.raises(StageFailed), reporting_to(server):
        prepare(doomed, machine)
    secret = os.environ["PREFECT_API_AUTH_STRING"]
    with SyncPrefectClient(server, auth_string=secret) as client:
        (flow_run,) = [found for found in client.read_flow_runs() if found.name == "doomed"]
    assert flow_run.state_name == "Failed"
    assert "tokens: the text: is wrong" in str(flow_run.state.message)


def test_a_server_that_dies_is_named_and_what_is_finished_is_kept() -> None:
    lost = pytest.raises(ServerLost, match=r"127.0.0.1:9/api no longer answers .*finished stages")
    with lost, reporting_to("http://127.0.0.1:9/api"):
        raise httpx.ConnectError("connection refused")


def test_every_flow_is_deployed_by_its_module_so_that_any_folder_will_do() -> None:
    served = deployments({"run": {"name": "try"}}, name="try")
    assert {one.name for one in served} == {"try"}
    entrypoints = {one.flow_name: one.entrypoint for one in served}
    assert entrypoints == {
        "ablations": "cloze.paper.flow.run_rows",
        **{
            name: f"cloze.flows.prefect.flows.{name.replace('-', '_')}"
            for name in ("end-to-end", "prepare", "pretrain", "finetune", "evaluate")
        },
    }


def test_a_served_run_says_when_it_starts_and_how_it_ends(
    server: str,
    inline: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    def said() -> list[str]:
        return [line for line in capfd.readouterr().err.splitlines() if line.startswith("try (")]

    with reporting_to(server):
        prepare(run, machine)
        assert said() == [], "nothing is served: the command shows the run itself"
        monkeypatch.setenv(SERVING, "1")
        prepare(run, machine)
        assert said() == ["try (prepare): running", "try (prepare): completed"]
        inline(pretrain={"fail": 2})
        with pytest.raises(StageFailed):
            pretrain(run, machine)
    running, failed = said()
    assert running == "try (pretrain): running"
    assert failed.startswith("try (pretrain): failed: ")
    assert "the text: is wrong" in failed


def test_a_trigger_gives_the_fields_it_changes_and_the_served_ones_fill_the_rest(
    run: RunConfig, machine: MachineConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = {"run": run.model_dump(mode="json"), "machine": machine.model_dump(mode="json")}
    changed = {"run": {"name": "other", "pretrain": {"steps": 7}}, "machine": {}}
    monkeypatch.setenv(SERVED, json.dumps(tables))
    found = end_to_end.validate_parameters(changed)
    recipe = run.pretrain.model_copy(update={"steps": 7})
    assert found["run"] == run.model_copy(update={"name": "other", "pretrain": recipe})
    assert found["machine"] == machine
    monkeypatch.delenv(SERVED)
    with pytest.raises(ParameterTypeError):
        end_to_end.validate_parameters(changed)


def test_every_flow_shows_its_configuration_as_a_form() -> None:
    program = """
    import json
    from cloze.flows.prefect.flows import end_to_end, evaluate, finetune, prepare, pretrain
    for flow in (end_to_end, prepare, pretrain, finetune, evaluate):
        schema = flow.parameters.model_dump()
        assert set(schema["properties"]) == {"run", "machine"}, schema["properties"]
        fields = schema["definitions"]["PretrainRunConfig"]["properties"]
        assert fields["steps"]["description"] == "Optimizer steps."
    """
    lines = "\n".join(line[4:] for line in program.splitlines())
    subprocess.run([sys.executable, "-P", "-c", lines], check=True, timeout=PATIENCE)


def test_a_figure_stands_beside_its_error() -> None:
    known = {"package mlm_loss": 3.01234, "tagging f1": 0.71, "tagging f1 ±": 0.0123}
    assert figure_rows(known) == [
        {"figure": "package mlm_loss", "value": "3.012", "±": ""},
        {"figure": "tagging f1", "value": "0.71", "±": "0.012"},
    ]


def test_keys_have_the_form_that_prefect_wants() -> None:
    assert artifact_key("My_Run", "tokens") == "my-run-tokens"


def test_a_stage_is_a_row_with_its_cost() -> None:
    cheap = StageRecord(key="k", digest="d" * 64, state="reused")
    dear = cheap.model_copy(update={"state": "made", "seconds": 75.0, "peak_memory": 3 << 29})
    record = RunRecord(
        name="try",
        state="running",
        config={},
        machine={},
        started_at="2026",
        stages={"tokens": cheap, "pretrain": dear},
    )
    reused, made = stage_rows(record)
    assert (reused["stage"], reused["time"], reused["memory"]) == ("tokens", "", "")
    assert (made["time"], made["memory"], made["digest"]) == ("1:15", "1.50 GiB", "d" * 12)


def test_a_server_that_is_away_is_left_alone_and_the_run_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def away(*_: object, key: str, **__: object) -> None:
        asked.append(key)
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(tracking, "create_progress_artifact", away)
    bars = ProgressBars("try")
    for stage in ("tokens", "examples"):
        event = {"stage": stage, "state": "running", "text": ""}
        bars.emit(logging.makeLogRecord(event))
    assert asked == ["try-tokens"]
