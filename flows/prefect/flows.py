"""The Prefect flows: the whole pipeline and its parts; and serving them.

In:  the configurations of a run and a machine, which the server shows as a form.
Out: the run's record as JSON. A flow also makes the missing artifacts that its stages depend on.
     `serve_flows` executes the flow runs triggered on a server, each in a process of its own that
     imports the flow by module name from any working directory.

Each stage is a task with states, retries, logs, a progress bar and tables. Tasks are called
directly, never submitted, so that cancellation reaches them immediately. Reuse is decided by our
own store, and Prefect's caching is off.
"""

import json
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, ParamSpec, TypeVar, cast
from uuid import UUID

import httpx
from prefect import Flow, Task, flow, task
from prefect.artifacts import (
    create_link_artifact,
    create_progress_artifact,
    create_table_artifact,
    update_progress_artifact,
)
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import FlowRun, State, TaskRun
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogHandler, APILogWorker
from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, temporary_settings
from pydantic import BeforeValidator, JsonValue

from cloze.artifacts.progress import say
from cloze.flows.config import THIS_MACHINE, MachineConfig, RunConfig
from cloze.flows.events import RUN, add_handler, remove_handler, share_done
from cloze.flows.executor import Executor
from cloze.flows.job import is_worth_retrying
from cloze.flows.plan import Plan
from cloze.flows.prefect.head_start import HeadStart
from cloze.flows.prefect.server import SHOWN_WORKSPACE, ServerLost
from cloze.flows.report.figures import ERROR, Figures, figures, read_summary
from cloze.flows.stages import PREPARE
from cloze.flows.workspace import RunRecord

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

Record = dict[str, JsonValue]
"""A run's record as JSON."""

SERVED = "CLOZE_SERVED"
"""Environment variable with the served parameters as JSON, for the server and its flow runs."""

SERVING = "CLOZE_SERVING"
"""Environment variable set in a process that serves flows, and inherited by its flow runs."""

FLUSH_SECONDS = 5.0
"""Time for the last logs and events to reach the server."""

AWAY_SECONDS = 60.0
"""Pause after a failed call, since each call waits for Prefect's retries."""


def _with_served(name: str) -> BeforeValidator:
    """Complete a partial parameter, such as `{"name": "other"}`, with the served configuration."""

    def fill(given: object) -> object:
        served = json.loads(os.environ.get(SERVED, "{}")).get(name)
        return merged(served, given) if served else given

    return BeforeValidator(fill)


def merged(served: JsonValue, given: object) -> object:
    """`given`, with missing keys at any depth taken from `served`; lists are not merged."""
    if not isinstance(served, dict) or not isinstance(given, dict):
        return given
    return {**served, **{key: merged(served.get(key), value) for key, value in given.items()}}


Run = Annotated[RunConfig, _with_served("run")]


Machine = Annotated[MachineConfig, _with_served("machine")]


def announce(flow: "Flow[..., Result]", flow_run: FlowRun, state: "State[Result]") -> None:
    """Hook that prints a flow run's change of state on the terminal of `cloze serve`."""
    if os.environ.get(SERVING):
        changed = (state.name or state.type.value).lower()
        reason = "" if state.is_running() or state.is_completed() else state.message
        say(f"{flow_run.name} ({flow.name}): {f'{changed}: {reason}' if reason else changed}")


def announced(flow: "Flow[Parameters, Result]") -> "Flow[Parameters, Result]":
    """Decorator: `announce` the changes of state of a flow's runs."""
    flow.on_running(announce)
    flow.on_completion(announce)
    flow.on_failure(announce)
    flow.on_cancellation(announce)
    flow.on_crashed(announce)
    return flow


@announced
@flow(name="end-to-end", flow_run_name="{run.name}", persist_result=False)
def end_to_end(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Turn documents into an evaluated encoder with a report."""
    return tracked(Plan(run, machine))


@announced
@flow(name="prepare", flow_run_name="{run.name}", persist_result=False)
def prepare(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Make vocabulary, tokens and examples."""
    return tracked(Plan(run, machine, wanted=PREPARE))


@announced
@flow(name="pretrain", flow_run_name="{run.name}", persist_result=False)
def pretrain(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Pre-train an encoder."""
    return tracked(Plan(run, machine, wanted=("pretrain",)))


@announced
@flow(name="finetune", flow_run_name="{run.name}", persist_result=False)
def finetune(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Fine-tune on every task with every seed."""
    return tracked(Plan(run, machine, wanted=("finetune",)))


@announced
@flow(name="evaluate", flow_run_name="{run.name}", persist_result=False)
def evaluate(run: Run, machine: Machine = THIS_MACHINE) -> Record:
    """Evaluate the encoder and the models fine-tuned from it."""
    return tracked(Plan(run, machine, wanted=("evaluate",)))


def execute_as_flow(plan: Plan, begun: HeadStart | None = None) -> RunRecord:
    """Execute a plan that exists already, as the flow `end-to-end` with the same parameters.

    They are for the server's page: nothing is parsed or planned again. `begun` has already run some
    of its stages.
    """

    @flow(
        name=end_to_end.name,
        flow_run_name="{run.name}",
        persist_result=False,
        validate_parameters=False,
    )
    def planned(run: RunConfig, machine: MachineConfig) -> Record:
        return tracked(plan, begun)

    return RunRecord.model_validate(planned(plan.run, plan.machine))


def tracked(plan: Plan, begun: HeadStart | None = None) -> Record:
    """The body of every flow: runs each stage as a task, and returns the run's record as JSON."""
    if begun is None:
        plan.check()
    run, jobs = plan.run, plan.machine.jobs
    ensure = ensure_stage.with_options(retries=jobs.retries, retry_delay_seconds=jobs.retry_delay)
    executor = begun.executor if begun else Executor(plan)
    with progress_bars(run.name), begun.rest() if begun else executor.running():
        for stage in plan.stages:
            ensure(stage, executor, begun)
    record = executor.record
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
    return record.model_dump(mode="json")


def was_killed(task: "Task[..., None]", run: TaskRun, state: "State[None]") -> bool:
    """Whether Prefect should retry the task."""
    return is_worth_retrying(run.name, state.result(raise_on_failure=False))


@task(
    name="stage",
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retry_condition_fn=was_killed,
)
def ensure_stage(stage: str, executor: Executor, begun: HeadStart | None) -> None:
    """Reuse or make the artifact of one stage, unless it was made before Prefect was ready."""
    # Prefect's handlers alone: the terminal and the run's log have had these events already.
    prefects = [one for one in RUN.handlers if isinstance(one, (APILogHandler, ProgressBars))]
    if not (begun and begun.replay(stage, prefects)):
        executor.ensure(stage)


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
