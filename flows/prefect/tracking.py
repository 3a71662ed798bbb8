"""What Prefect adds to a run: every stage is a task with a state, retries, logs and a progress bar.

In:  the function that ensures a stage (flows/run.py).
Out: the same outcome.

Tasks are called directly, never submitted: so a cancellation reaches them at once. Whether anything
is done at all is decided by our own store; Prefect's caching is off.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from prefect import Flow, task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas.objects import State, TaskRun
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.tasks import Task

from flows.config import JobsConfig, MachineConfig, RunConfig
from flows.ensure import Outcome
from flows.figures import figures, read_summary
from flows.prefect.artifact_pages import progress_bars, show_figures, show_table
from flows.prefect.server import ServerLost
from flows.record import RunRecord
from flows.run import Step, work, worth_retrying
from flows.workspace import workspace

FLUSH_SECONDS = 5.0
"""So long the last logs and events may take to reach the server."""


def worked_off(
    run: RunConfig, machine: MachineConfig, *, wanted: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The body of every flow: the chain with each stage as a task; the run's record as JSON."""
    with progress_bars(run.name):
        record = work(run, machine, wanted=wanted, step=_as_task(machine.jobs))
    show_table(record)
    space = workspace(machine.workspace)
    summary = read_summary(space, run.name) if "report" in record.stages else None
    if summary:
        show_figures(run.name, figures(summary))
    return record.model_dump(mode="json")


@contextmanager
def reported(server: str) -> Iterator[None]:
    """Flows called inside report to the API at `server`, which has heard everything afterwards.

    Raises ServerLost if it dies meanwhile.
    """
    with temporary_settings(updates={PREFECT_API_URL: server}):
        try:
            yield
        except httpx.TransportError as error:
            raise ServerLost(
                f"the Prefect server at {server} answers no more ({type(error).__name__}); "
                "finished stages are kept for the next attempt"
            ) from error
        finally:
            for worker in (APILogWorker, EventsWorker):
                worker.drain_all(timeout=FLUSH_SECONDS)


def watched(
    flow: Flow[..., Any], run: RunConfig, machine: MachineConfig, *, server: str
) -> RunRecord:
    """Call `flow` in this process, watched by the server with the API at `server`."""
    with reported(server):
        return RunRecord.model_validate(flow(run, machine))


def was_killed(task: Task[..., Any], run: TaskRun, state: State[Any]) -> bool:
    """Whether Prefect tries again."""
    return worth_retrying(run.name, state.result(raise_on_failure=False))


@task(
    name="stage",
    task_run_name="{stage}",
    cache_policy=NO_CACHE,
    persist_result=False,
    retry_condition_fn=was_killed,
)
def ensured(stage: str, function: Callable[[], Outcome]) -> Outcome:
    """Ensure one stage."""
    return function()


def _as_task(jobs: JobsConfig) -> Step:
    return ensured.with_options(retries=jobs.retries, retry_delay_seconds=jobs.retry_delay)
