"""Stages that ran before Prefect was ready are complete on its page; no server for nothing."""

import os
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import Log

from cloze.execution import run as command
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.job import StageFailed
from cloze.flows.plan import Plan
from cloze.flows.prefect.head_start import HeadStart
from cloze.flows.prefect.server import prefect_server
from cloze.flows.prefect.tracking import execute_as_flow, reporting_to
from cloze.flows.workspace import read_record, workspace, writable_workspace
from tests.waiting import wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A temporary server, shared by the tests of this file."""
    for name in ("PREFECT_API_URL", "PREFECT_HOME"):
        os.environ.pop(name, None)
    space = writable_workspace(str(tmp_path_factory.mktemp("server")))
    with prefect_server(space, run="flows") as url:
        yield url


def after(stages: int) -> Callable[[], bool]:
    """Prefect is ready after so many stages."""
    answers = iter([False] * stages)
    return lambda: next(answers, True)


@pytest.mark.parametrize("stages", [0, 2, 99])
def test_the_page_is_complete_whenever_prefect_is_ready(
    server: str, inline: Callable[..., None], run: RunConfig, machine: MachineConfig, stages: int
) -> None:
    run = run.model_copy(update={"name": f"after-{stages}"})
    began = time.time()
    with HeadStart(Plan(run, machine)) as begun:
        begun.run_until(after(stages))
        ready = time.time()
        with reporting_to(server):
            record = execute_as_flow(begun.executor.plan, begun)
    assert record.state == "finished"
    assert {found.state for found in record.stages.values()} == {"made"}
    secret = os.environ["PREFECT_API_AUTH_STRING"]
    with SyncPrefectClient(server, auth_string=secret) as client:
        (flow,) = [found for found in client.read_flow_runs() if found.name == run.name]

        def of_flow(log: Log) -> bool:
            return log.flow_run_id == flow.id

        def logs() -> dict[str, datetime]:
            found = [log for log in client.read_logs() if log.flow_run_id == flow.id]
            return {
                log.message.split()[0]: log.timestamp for log in found if " made " in log.message
            }

        wait_for(lambda: logs().keys() == record.stages.keys(), what="every stage's log")
        made = logs()

        def completed() -> list[str]:
            tasks = [task for task in client.read_task_runs() if task.flow_run_id == flow.id]
            return sorted(task.name for task in tasks if task.state_name == "Completed")

        wait_for(lambda: completed() == sorted(record.stages), what="every task")
        pages = {page.key for page in client.read_artifacts()}
    assert flow.state_name == "Completed"
    assert {f"{run.name}-{stage}" for stage in (*record.stages, "stages")} <= pages
    early = [stage for stage, at in made.items() if at < datetime.fromtimestamp(ready, UTC)]
    assert len(early) == min(stages, len(record.stages))
    assert min(made.values()) > datetime.fromtimestamp(began - 1, UTC)


def test_a_stage_that_failed_before_prefect_was_ready_fails_its_flow(
    server: str, inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    inline(tokens={"fail": 1})
    run = run.model_copy(update={"name": "early-failure"})
    with (
        pytest.raises(StageFailed, match="the text: is wrong"),
        HeadStart(Plan(run, machine)) as begun,
    ):
        begun.run_until(lambda: False)
        with reporting_to(server):
            execute_as_flow(begun.executor.plan, begun)
    assert read_record(workspace(machine.workspace), run.name).state == "failed"
    secret = os.environ["PREFECT_API_AUTH_STRING"]
    with SyncPrefectClient(server, auth_string=secret) as client:
        (flow,) = [found for found in client.read_flow_runs() if found.name == run.name]
    assert flow.state_name == "Failed"
    assert "tokens: the text: is wrong" in str(flow.state.message)


def test_a_stage_killed_before_prefect_was_ready_is_tried_again(
    server: str,
    standins: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    tmp_path: Path,
) -> None:
    standins(vocabulary={"kill": str(tmp_path / "killed")})
    run = run.model_copy(update={"name": "early-kill"})
    with HeadStart(Plan(run, machine)) as begun:
        begun.run_until(lambda: False)
        with reporting_to(server):
            record = execute_as_flow(begun.executor.plan, begun)
    assert record.state == "finished"


def test_an_interrupted_head_start_is_recorded(
    inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    def interrupt() -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), HeadStart(Plan(run, machine)) as begun:
        begun.run_until(interrupt)
    assert read_record(workspace(machine.workspace), run.name).state == "interrupted"


def test_no_server_is_started_where_nothing_is_to_be_run(
    inline: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert execute(Plan(run, machine)).state == "finished"

    class Wanted:
        json = False

        def read(self, config: Path) -> tuple[RunConfig, MachineConfig]:
            return run, machine

    answer = command.run(tmp_path / "any.toml", target=Wanted())
    assert {found["state"] for found in answer.data["stages"].values()} == {"reused"}
    assert not (Path(machine.workspace) / "prefect").exists()
