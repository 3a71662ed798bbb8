"""A flow that follows a run is complete on Prefect's page; no server is started for nothing."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Self

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from cloze.artifacts.errors import ClozeError
from cloze.execution import run as command
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.job import StageFailed
from cloze.flows.plan import Plan
from cloze.flows.prefect.following import Followed
from cloze.flows.prefect.server import Server
from cloze.flows.prefect.tracking import execute_as_flow, reporting_to
from cloze.flows.workspace import RunRecord, read_record, workspace
from tests.waiting import wait_for


class Flow(threading.Thread):
    """A flow that follows a run from when so many of its stages have been made, or it has ended."""

    def __init__(self, run: Followed, server: str, *, after: int = 0) -> None:
        super().__init__()
        self.run_followed, self.server, self.after = run, server, after
        self.ended = threading.Event()
        """Set once the run has ended."""
        self.began = 0.0
        self.error: BaseException | None = None
        self.record: RunRecord | None = None

    def run(self) -> None:
        folder = Path(self.run_followed.plan.machine.workspace)
        wait_for(
            lambda: self.ended.is_set() or len([*folder.glob("*/*/manifest.json")]) >= self.after
        )
        self.began = time.time()
        try:
            with reporting_to(self.server):
                self.record = execute_as_flow(self.run_followed.plan, self.run_followed)
        except BaseException as error:
            self.error = error

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.join()


@contextmanager
def asking(server: str, run: RunConfig) -> Iterator[tuple[SyncPrefectClient, FlowRun]]:
    """A client of the server, and the flow run of this name."""
    secret = os.environ["PREFECT_API_AUTH_STRING"]
    with SyncPrefectClient(server, auth_string=secret) as client:
        (flow,) = [found for found in client.read_flow_runs() if found.name == run.name]
        yield client, flow


@pytest.mark.parametrize("stages", [0, 2, 99])
def test_the_page_is_complete_whenever_prefect_is_ready(
    server: str, inline: Callable[..., None], run: RunConfig, machine: MachineConfig, stages: int
) -> None:
    run = run.model_copy(update={"name": f"after-{stages}"})
    began, followed = time.time(), Followed(Plan(run, machine))
    with Flow(followed, server, after=stages) as following:
        record = followed.execute()
        ended = time.time()
    assert record.state == "finished"
    assert following.record == record
    assert {found.state for found in record.stages.values()} == {"made"}
    with asking(server, run) as (client, flow):

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
    # The logs have the times of the events, not of when the flow heard of them.
    times = [at.timestamp() for at in made.values()]
    assert began - 1 < min(times) <= max(times) < ended + 1
    early = [at for at in times if at < following.began]
    assert len(early) >= min(stages, len(record.stages))


def test_a_stage_that_fails_fails_its_flow(
    server: str, inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    inline(tokens={"fail": 1})
    run = run.model_copy(update={"name": "early-failure"})
    followed = Followed(Plan(run, machine))
    with (
        Flow(followed, server, after=99) as following,
        pytest.raises(StageFailed, match="the text: is wrong"),
    ):
        followed.execute()
    assert following.error is followed.failure
    assert read_record(workspace(machine.workspace), run.name).state == "failed"
    with asking(server, run) as (_, flow):
        assert flow.state_name == "Failed"
        assert "tokens: the text: is wrong" in str(flow.state.message)


def test_a_stage_that_was_killed_and_tried_again_is_on_the_page_as_such(
    server: str,
    standins: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    tmp_path: Path,
    events: list[tuple[str, str, str]],
) -> None:
    standins(vocabulary={"kill": str(tmp_path / "killed")})
    run = run.model_copy(update={"name": "early-kill"})
    followed = Followed(Plan(run, machine))
    with Flow(followed, server):
        record = followed.execute()
    assert record.state == "finished"
    assert [text for _, state, text in events if state == "warning" and "again" in text] != []
    with asking(server, run) as (client, flow):
        tasks = [task for task in client.read_task_runs() if task.flow_run_id == flow.id]
    assert flow.state_name == "Completed"
    assert {task.name: task.run_count for task in tasks if task.run_count != 1} == {"vocabulary": 2}


def test_an_interrupted_run_is_recorded_and_its_flow_ends(
    server: str,
    inline: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    run = run.model_copy(update={"name": "interrupted"})
    followed = Followed(Plan(run, machine))
    monkeypatch.setattr("cloze.flows.job.run_job", interrupt)
    with Flow(followed, server), pytest.raises(KeyboardInterrupt):
        followed.execute()
    assert read_record(workspace(machine.workspace), run.name).state == "interrupted"
    with asking(server, run) as (_, flow):
        assert flow.state_name == "Crashed"


def test_each_of_several_runs_is_a_flow_of_its_own(
    server: str, inline: Callable[..., None], run: RunConfig, machine: MachineConfig
) -> None:
    runs = [run.model_copy(update={"name": name}) for name in ("seed-0", "seed-1")]
    records = command._followed_by_prefect([Plan(one, machine) for one in runs], Server(server))
    assert [record.name for record in records] == ["seed-0", "seed-1"]
    assert records[1].started_at >= (records[0].finished_at or "")
    for one, found in zip(runs, records, strict=True):
        with asking(server, one) as (client, flow):
            tasks = [task for task in client.read_task_runs() if task.flow_run_id == flow.id]
        assert flow.state_name == "Completed"
        assert {task.name for task in tasks} == set(found.stages)


class Unwell(Server):
    """A server that never starts."""

    def ready(self) -> bool:
        raise ClozeError("the Prefect server did not start")


def test_a_run_whose_own_server_does_not_start_goes_on_and_says_so(
    inline: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (record,) = command._followed_by_prefect([Plan(run, machine)], Unwell("http://nowhere/api"))
    assert record.state == "finished"
    said = "warning: Prefect's page is incomplete: the Prefect server did not start\n"
    assert capsys.readouterr().err.count(said) == 1


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
