"""A flow that follows a run is complete on Prefect's page; no server is started for nothing."""

import logging
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import pytest
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.runtime.processes import descendants
from cloze.execution import run as command
from cloze.flows import job
from cloze.flows.config import MachineConfig, RunConfig
from cloze.flows.executor import execute
from cloze.flows.job import JobResult, StageFailed
from cloze.flows.plan import Plan
from cloze.flows.prefect import database
from cloze.flows.prefect.following import Followed
from cloze.flows.prefect.server import SERVER, Server
from cloze.flows.prefect.tracking import execute_as_flow, reporting_to
from cloze.flows.workspace import RunRecord, read_record
from tests.conftest import PROJECT
from tests.flows.standin_chain import RUN
from tests.waiting import PATIENCE, wait_for


@pytest.fixture
def named(run: RunConfig, machine: MachineConfig) -> Callable[[str], Plan]:
    """The plan of the run, under a name of its own on the server that all tests share."""
    return lambda name: Plan(run.model_copy(update={"name": name}), machine)


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
    server: str, inline: Callable[..., None], named: Callable[[str], Plan], stages: int
) -> None:
    began, followed = time.time(), Followed(named(f"after-{stages}"))
    run = followed.plan.run
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
    server: str, inline: Callable[..., None], named: Callable[[str], Plan]
) -> None:
    inline(tokens={"fail": 1})
    followed = Followed(named("early-failure"))
    with (
        Flow(followed, server, after=99) as following,
        pytest.raises(StageFailed, match="the text: is wrong"),
    ):
        followed.execute()
    assert following.error is followed.failure
    assert read_record(followed.plan.space, "early-failure").state == "failed"
    with asking(server, followed.plan.run) as (_, flow):
        assert flow.state_name == "Failed"
        assert "tokens: the text: is wrong" in str(flow.state.message)


def test_a_stage_that_was_killed_and_tried_again_is_on_the_page_as_such(
    server: str,
    killed_once: Callable[..., None],
    named: Callable[[str], Plan],
    events: list[tuple[str, str, str]],
) -> None:
    killed_once()
    followed = Followed(named("early-kill"))
    with Flow(followed, server):
        record = followed.execute()
    assert record.state == "finished"
    assert [text for _, state, text in events if state == "warning" and "again" in text] != []
    with asking(server, followed.plan.run) as (client, flow):
        tasks = [task for task in client.read_task_runs() if task.flow_run_id == flow.id]
    assert flow.state_name == "Completed"
    assert {task.name: task.run_count for task in tasks if task.run_count != 1} == {"vocabulary": 2}


def test_an_interrupted_run_is_recorded_and_its_flow_ends(
    server: str,
    inline: Callable[..., None],
    named: Callable[[str], Plan],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    followed = Followed(named("interrupted"))
    monkeypatch.setattr("cloze.flows.job.run_job", interrupt)
    with Flow(followed, server), pytest.raises(KeyboardInterrupt):
        followed.execute()
    assert read_record(followed.plan.space, "interrupted").state == "interrupted"
    with asking(server, followed.plan.run) as (_, flow):
        assert flow.state_name == "Crashed"


def test_each_of_several_runs_is_a_flow_of_its_own(
    server: str, inline: Callable[..., None], named: Callable[[str], Plan]
) -> None:
    plans = [named(name) for name in ("seed-0", "seed-1")]
    records = command._followed_by_prefect(plans, Server(server))
    assert [record.name for record in records] == ["seed-0", "seed-1"]
    assert records[1].started_at >= (records[0].finished_at or "")
    for one, found in zip(plans, records, strict=True):
        with asking(server, one.run) as (client, flow):
            tasks = [task for task in client.read_task_runs() if task.flow_run_id == flow.id]
        assert flow.state_name == "Completed"
        assert {task.name for task in tasks} == set(found.stages)


class Unwell(Server):
    """A server that never starts."""

    def ready(self) -> bool:
        raise ClozeError("the Prefect server did not start")


def test_a_run_whose_own_server_does_not_start_goes_on_and_says_so(
    inline: Callable[..., None], named: Callable[[str], Plan], capsys: pytest.CaptureFixture[str]
) -> None:
    (record,) = command._followed_by_prefect([named("unwell")], Unwell("http://nowhere/api"))
    assert record.state == "finished"
    said = "warning: Prefect's page is incomplete: the Prefect server did not start\n"
    assert capsys.readouterr().err.count(said) == 1


def server_of(process: int) -> int:
    """The process of the Prefect server that `process` has started; 0 if there is none."""
    found = (
        child
        for child in descendants(process)
        if SERVER.encode() in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
    )
    return next(found, 0)


def flow_runs(home: Path) -> int:
    """How many flow runs a server knows, by its database."""
    with (
        suppress(sqlite3.OperationalError),  # there is none yet, or no table
        closing(sqlite3.connect(f"file:{home / database.NAME}?mode=ro", uri=True)) as opened,
    ):
        return int(opened.execute("select count(*) from flow_run").fetchone()[0])
    return 0


def test_a_run_whose_server_was_stopped_while_the_flow_ran_ends_and_says_so(
    server: str,
    inline: Callable[..., None],
    named: Callable[[str], Plan],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    running, follow, run_job = server_of(os.getpid()), Followed.follow, job.run_job
    halted = threading.Event()

    def stopping(followed: Followed, handlers: Iterable[logging.Handler]) -> None:
        monkeypatch.setattr(Followed, "follow", follow)  # once: it goes on below
        os.kill(running, signal.SIGSTOP)
        halted.set()
        follow(followed, handlers)

    def after_that(*given: Any, **more: Any) -> JobResult:
        assert halted.wait(PATIENCE)
        return run_job(*given, **more)

    monkeypatch.setattr(Followed, "follow", stopping)
    monkeypatch.setattr(job, "run_job", after_that)
    monkeypatch.setattr(command, "STALLED_SECONDS", 2.0)
    plan = named("stopped")
    try:
        (record,) = command._followed_by_prefect([plan], Server(server))
    finally:
        os.kill(running, signal.SIGCONT)
    assert record.state == "finished"
    said = "warning: Prefect's page is incomplete: its server has not answered for 2 s\n"
    assert capsys.readouterr().err.count(said) == 1
    # Once it goes on, so does the flow, and nothing more is said.
    (thread,) = (one for one in threading.enumerate() if one.name == "prefect")
    thread.join(PATIENCE)
    with asking(server, plan.run) as (_, flow):
        assert flow.state_name == "Completed"
    assert "warning" not in capsys.readouterr().err


@pytest.mark.slow
def test_a_command_whose_server_was_stopped_ends_with_its_report(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("The document.\n")
    (tmp_path / "run.toml").write_text(RUN.format(texts=tmp_path / "text.txt"))
    environment = {name: text for name, text in os.environ.items() if "PREFECT" not in name}
    # Long enough for the server to start, and for the flow to begin.
    environment |= {"PYTHONPATH": str(PROJECT), "STANDIN": '{"pretrain": {"sleep": 45}}'}
    words = ["run", str(tmp_path / "run.toml"), "--workspace", str(tmp_path / "runs")]
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "tests.flows.standin_cloze", *words],
        cwd=PROJECT,
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        running = wait_for(lambda: server_of(process.pid), what="the server")
        wait_for(lambda: flow_runs(tmp_path / "runs" / "prefect"), what="the flow")
        os.kill(running, signal.SIGSTOP)
        began = time.monotonic()
        _, said = process.communicate(timeout=PATIENCE)
    finally:
        process.kill()
    # 45 s of its last stages, the time without an answer, and what ends the server: no more.
    assert time.monotonic() - began < 45 + command.STALLED_SECONDS + 60
    assert process.returncode == 0
    assert said.count("warning: Prefect's page is incomplete") == 1
    wait_for(lambda: not Path(f"/proc/{running}").exists(), seconds=30, what="the server's end")


@dataclass(frozen=True)
class Configured:
    """What the command's options give: a run and a machine."""

    run: RunConfig
    machine: MachineConfig
    json: bool = False

    def read(self, config: Path) -> tuple[RunConfig, MachineConfig]:
        return self.run, self.machine


class Started(Exception):
    """A server would have been started."""


@pytest.mark.parametrize(
    ("api", "said"),
    [
        ("", "serve try: starting a server, which will be at http://127.0.0.1:4321\n"),
        ("http://far/api", "serve try: asking the server at http://far/api\n"),
    ],
)
def test_serve_says_what_it_does_and_where_before_any_server_answers(
    run: RunConfig,
    machine: MachineConfig,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    api: str,
    said: str,
) -> None:
    def start(*_: object, **__: object) -> None:
        raise Started

    monkeypatch.setenv("PREFECT_API_URL", api)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # which the command sets, for its runs
    monkeypatch.setattr(command, "prefect_server", start)
    with pytest.raises(Started):
        command.serve(Path("any.toml"), port=4321, target=Configured(run, machine))
    assert capsys.readouterr().err == said


def test_no_server_is_started_where_nothing_is_to_be_run(
    inline: Callable[..., None],
    run: RunConfig,
    machine: MachineConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    assert execute(Plan(run, machine)).state == "finished"
    answer = command.run(tmp_path / "any.toml", target=Configured(run, machine))
    assert {found["state"] for found in answer.data["stages"].values()} == {"reused"}
    assert not (Path(machine.workspace) / "prefect").exists()
