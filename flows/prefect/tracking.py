"""A run in Prefect: its stages as tasks, with states, retries, logs, a progress bar and tables.

In:  a plan, and the address of a server.
Out: the run's record as JSON; a flow run of the plan on the server's pages.

Tasks are called directly, never submitted, so that cancellation reaches them immediately. Reuse is
decided by our own store, and Prefect's caching is off.
"""

import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import cast
from uuid import UUID

import httpx
from prefect import Task, flow, task
from prefect.artifacts import (
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogHandler, APILogWorker
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from pydantic import JsonValue

from cloze.flows.events import RUN, add_handler, remove_handler, share_done
from cloze.flows.executor import Executor
from cloze.flows.job import StageFailed, is_worth_retrying
from cloze.flows.plan import Plan
from cloze.flows.prefect.following import Followed
from cloze.flows.prefect.server import SHOWN_WORKSPACE, ServerLost
from cloze.flows.report.figures import ERROR, Figures, figures, read_summary
from cloze.flows.workspace import RunRecord

Record = dict[str, JsonValue]
"""A run's record as JSON."""

END_TO_END = "end-to-end"
"""The name of the flow of whole runs."""

FLUSH_SECONDS = 5.0
"""Time for the last logs and events to reach the server."""

AWAY_SECONDS = 60.0
"""Pause after a failed call, since each call waits for Prefect's retries."""


def execute_as_flow(plan: Plan, followed: Followed | None = None) -> RunRecord:
    """Execute a plan that exists already, as the flow `end-to-end` with the same parameters.

    They are for the server's page: nothing is parsed or planned again. With `followed`, another
    thread executes it, and the flow repeats its events.
    """

    # Parameters of any type: Prefect would make a form of ours, which takes as long as its import.
    @flow(
        name=END_TO_END,
        flow_run_name="{run[name]}",
        persist_result=False,
        validate_parameters=False,
    )
    def planned(run: object, machine: object) -> Record:
        return _following(followed) if followed else tracked(plan)

    run, machine = (one.model_dump(mode="json") for one in (plan.run, plan.machine))
    return RunRecord.model_validate(planned(run, machine))


def tracked(plan: Plan) -> Record:
    """The body of every flow: runs each stage as a task, and returns the run's record as JSON."""
    plan.check()
    run, jobs = plan.run, plan.machine.jobs
    ensure = ensure_stage.with_options(retries=jobs.retries, retry_delay_seconds=jobs.retry_delay)
    executor = Executor(plan)
    with progress_bars(run.name), executor.running():
        for stage in plan.stages:
            ensure(stage, executor)
    _publish(executor.record, plan)
    return executor.record.model_dump(mode="json")


def _following(followed: Followed) -> Record:
    """The same for a run in another thread, each of whose stages has a task that follows it."""
    plan = followed.plan
    jobs, bars = plan.machine.jobs, ProgressBars(plan.run.name)
    follow = follow_stage.with_options(retries=jobs.retries, retry_delay_seconds=jobs.retry_delay)
    for stage in plan.stages:
        follow(stage, followed, bars)
    record = followed.record()
    _publish(record, plan)
    return record.model_dump(mode="json")


def _publish(record: RunRecord, plan: Plan) -> None:
    """Show the tables of a finished run, and the way to its report."""
    run = plan.run
    create_table_artifact(
        stage_rows(record),
        key=artifact_key(run.name, "stages"),
        description=f"Stages of run `{run.name}`, {record.state}; `cloze show {run.name}`",
    )
    space = plan.space
    summary = read_summary(space, run.name)
    if summary and "report" in record.stages:
        # Only a server with pages shows reports, and only those of its workspace.
        if os.environ.get(SHOWN_WORKSPACE) == space.root:
            page = os.environ["PREFECT_API_URL"].removesuffix("/api")
            create_link_artifact(
                f"{page}/reports/{run.name}",
                link_text=f"Report of {run.name}",
                key=artifact_key(run.name, "page"),  # `report` is the key of that stage's bar
                description="The browser asks for user and password once: the parts before and "
                "after the colon of the secret that opened this page",
            )
        create_table_artifact(
            figure_rows(figures(summary)),
            key=artifact_key(run.name, "figures"),
            description=f"Results of run `{run.name}`; its report.html explains them",
        )


def was_killed(task: "Task[..., None]", run: TaskRun, state: "State[None]") -> bool:
    """Whether Prefect should retry the task."""
    return is_worth_retrying(run.name, state.result(raise_on_failure=False))


def is_tried_again(task: "Task[..., None]", run: TaskRun, state: "State[None]") -> bool:
    """Whether the executor, which has said so itself, tries the stage again."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, StageFailed) and error.retryable


@task(
    name="stage",
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retry_condition_fn=was_killed,
)
def ensure_stage(stage: str, executor: Executor) -> None:
    """Reuse or make the artifact of one stage."""
    executor.ensure(stage)


@task(
    name="stage",
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retry_condition_fn=is_tried_again,
)
def follow_stage(stage: str, followed: Followed, bars: "ProgressBars") -> None:
    """Show one stage that another thread runs, or has run."""
    # Prefect's handlers alone: the terminal and the run's log have had these events already.
    logs = [one for one in RUN.handlers if isinstance(one, APILogHandler)]
    followed.follow([*logs, bars])


@contextmanager
def reporting_to(server: str) -> Iterator[None]:
    """Report flows called inside to the API at `server`, and flush their logs on exit.

    Raises `ServerLost` if the server stops answering.
    """
    # Prefect reads the environment only once, when it is imported.
    secret = os.environ.get("PREFECT_API_AUTH_STRING")
    with temporary_settings(updates={PREFECT_API_URL: server, PREFECT_API_AUTH_STRING: secret}):
        try:
            yield
        except httpx.TransportError as error:
            raise ServerLost(
                f"the Prefect server at {server} no longer answers ({type(error).__name__}); "
                "finished stages are kept for the next attempt"
            ) from error
        finally:
            # Logs and events are sent by threads in the background, which end with the process.
            for worker in (APILogWorker, EventsWorker):
                worker.drain_all(timeout=FLUSH_SECONDS)


@contextmanager
def progress_bars(run: str) -> Iterator[None]:
    """Show a progress bar for every stage that runs inside."""
    handler = ProgressBars(run)
    add_handler(handler, progress=False)
    try:
        yield
    finally:
        remove_handler(handler)


class ProgressBars(logging.Handler):
    """Turns events into progress artifacts; requires a running flow."""

    def __init__(self, run: str) -> None:
        super().__init__()
        self.run = run
        self._bars: dict[str, UUID] = {}
        self._quiet_until = 0.0

    def emit(self, record: logging.LogRecord) -> None:
        """Create or update a stage's bar; an unreachable server does not stop the run."""
        if time.monotonic() < self._quiet_until:
            return
        stage, state, text = (str(vars(record)[name]) for name in ("stage", "state", "text"))
        try:
            if state == "running":
                key = artifact_key(self.run, stage)
                bar = create_progress_artifact(0.0, key=key, description=stage)
                self._bars[stage] = cast(UUID, bar)  # a coroutine only inside an event loop
            elif stage in self._bars and state in ("progress", "made"):
                share = 1.0 if state == "made" else share_done(text)
                update_progress_artifact(self._bars[stage], 100.0 * share, description=text)
        except httpx.HTTPError as error:
            logging.getLogger(__name__).debug("progress not updated: %s", error)
            self._quiet_until = time.monotonic() + AWAY_SECONDS


def stage_rows(record: RunRecord) -> list[dict[str, str]]:
    """One row for each stage."""
    return [
        {
            "stage": stage,
            "state": found.state,
            "time": found.cost[0],
            "memory": found.cost[1],
            "digest": found.digest[:12],
            "artifact": f"{stage}/{found.key[:12]}",
        }
        for stage, found in record.stages.items()
    ]


def figure_rows(known: Figures) -> list[dict[str, str]]:
    """One row for each figure, the headline first, with standard errors beside the means."""
    return [
        {
            "figure": name,
            "value": f"{value:.4g}",
            "±": f"{known[name + ERROR]:.2g}" if name + ERROR in known else "",
        }
        for name, value in known.items()
        if not name.endswith(ERROR)
    ]


def artifact_key(run: str, name: str) -> str:
    """A key in Prefect's format: lower-case letters, digits and dashes."""
    return f"{run}-{name}".lower().replace("_", "-")
