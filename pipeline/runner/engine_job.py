"""A job on an engine elsewhere: submitted, or found again; watched to its end, or cancelled.

In:  a job (pipeline/runner/graph.py), and the machine file's Beam runner with its options.
Out: the job's products, which its workers put into the artifact.

The job is recorded beside the artifact before anything waits for it. A launcher that was killed
leaves it running; the same command asks the job service for it and goes on waiting. That needs a
service that outlives the launcher (`job_endpoint`): of other engines only the job's name is known.

Beam's own `wait_until_finish` gives up after `job_server_timeout`, a minute by default, says
nothing meanwhile, and cannot be told how long workers may take to appear. So the state is polled.
"""

import json
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from artifacts import filesystem
from artifacts.errors import UsageError
from artifacts.progress import Progress, clock, say
from artifacts.store import WORK
from pipeline.config.stage_tables import PipelineMachine
from pipeline.runner.beam import (
    Metrics,
    MetricsFilter,
    Pipeline,
    PipelineOptions,
    PipelineResult,
    PipelineState,
    PortableOptions,
    PortableResult,
    TestOptions,
    beam_job_api_pb2,
    beam_job_api_pb2_grpc,
    grpc,
)
from pipeline.runner.beam_graph import add_job
from pipeline.runner.dask_job import DASK_RUNNER, DaskResult, begin_on_dask, submit_to_dask
from pipeline.runner.graph import Build, Step
from pipeline.runner.job_errors import JobFailed, job_error
from pipeline.runner.work_queue import WorkQueue

POLL_SECONDS = 1.0
STATE_EVERY = 60.0
"""Seconds after which a job without progress is logged as still running: a silent stage would count
as hung."""

UNANSWERED_POLLS = 30
"""Consecutive polls that may fail before the job service counts as lost."""

LAST_WORDS_SECONDS = 10.0
"""How long to wait for a job's last messages after its end."""

NAMESPACE = "cloze"
PARTS_PER_UNIT = 1000
"""Beam's counters are whole numbers; those of megabytes are not."""


class EngineQueue(WorkQueue):
    """The work queue of an engine's workers: reports become Beam counters."""

    def report(self, **done: float) -> None:
        """Add what is done, by the names of the units."""
        for unit, amount in done.items():
            Metrics.counter(NAMESPACE, unit).inc(round(amount * PARTS_PER_UNIT))


def run_on_engine(
    build: Build,
    *,
    machine: PipelineMachine,
    options: Sequence[str],
    progress: Progress,
    output: str,
) -> None:
    """Have the Beam runner that the machine file names run the job to its end.

    A job that an earlier launcher has left running is waited for. The job is cancelled if this
    process is interrupted or terminated, and if no worker begins within `machine.start_timeout`.
    """
    name = DASK_RUNNER if machine.runner == "DaskRunner" else machine.runner
    beam_options = PipelineOptions([f"--runner={name}", *options])
    record = JobRecord(output, machine.runner, beam_options.view_as(PortableOptions).job_endpoint)
    result = record.found_again()
    if result is None:
        record.forget()
        dask = begin_on_dask(options) if name == DASK_RUNNER else None
        try:
            pipeline = Pipeline(options=beam_options)
        except ValueError as error:  # no such runner, or contradictory options
            raise UsageError(f"{machine.runner}: {error}") from error
        started = Step("Started", "map", partial(_started, path=record.sign))
        before = [started] if output else []
        try:
            if dask:
                start, first = dask
                add_job(build(EngineQueue()), pipeline, first, *before, start=start)
                result = submit_to_dask(pipeline)
            else:
                add_job(build(EngineQueue()), pipeline, *before)
                result = pipeline.run()
        except grpc.FutureTimeoutError as error:
            raise JobFailed(
                f"{machine.runner}: no job service answers at {record.endpoint}; "
                "start it, or correct job_endpoint in [pipeline.options]"
            ) from error
        dry = beam_options.view_as(TestOptions).dry_run
        if dry or not getattr(result, "has_job", True):  # Dataflow's: the latter for a template
            raise JobFailed(f"{machine.runner}: the graph was translated; nothing was submitted")
        record.write(result)
    watch = _Watch(machine, beam_options, progress, record)
    try:
        state = watch.until_finished(result)
    except BaseException as error:
        # the job would run on, unattended, and cost money
        if not isinstance(error, ServiceSilent):
            say(f"{machine.runner}: cancelling the job")
            result.cancel()
            record.forget()
        raise
    record.forget()
    if state != PipelineState.DONE:
        raise result.error() if isinstance(result, DaskResult) else watch.error(state)


class ServiceSilent(JobFailed):
    """The job service no longer answers; the job may still be running."""


@dataclass(frozen=True)
class JobRecord:
    """Which job of which service works on an artifact, in the artifact's work folder."""

    output: str
    """The unfinished artifact; nothing is recorded if it is empty."""
    runner: str
    """As the machine file names it."""
    endpoint: str | None
    """Of the job service; `embed` is in this very process and ends with it."""

    @property
    def path(self) -> str:
        """The file that names the job."""
        return filesystem.join(self.output, f"{WORK}/engine_job.json")

    @property
    def sign(self) -> str:
        """The file that the first worker makes."""
        return filesystem.join(self.output, f"{WORK}/engine_started")

    def write(self, result: PipelineResult) -> None:
        """Record the job, unless it ends with this process or there is none."""
        job = _job_id(result)
        if self.output and job and self.endpoint != "embed":
            content = {"runner": self.runner, "endpoint": self.endpoint, "job": job}
            filesystem.write_bytes(self.path, json.dumps(content).encode())

    def forget(self) -> None:
        """Forget the job: it has ended, or another one replaces it."""
        if self.output:
            filesystem.remove(self.path)
            filesystem.remove(self.sign)

    def found_again(self) -> PipelineResult | None:
        """The job that an earlier launcher has submitted, if it runs or has done its work."""
        if not self.output or not filesystem.exists(self.path):
            return None
        noted = json.loads(filesystem.read_bytes(self.path))
        job, endpoint = noted["job"], noted["endpoint"]
        if not endpoint:
            say(
                f"warning: {noted['runner']}: job {job} of an earlier attempt may still run and "
                "cannot be waited for from here; cancel it there, a new one is submitted"
            )
            return None
        service = beam_job_api_pb2_grpc.JobServiceStub(grpc.insecure_channel(endpoint))
        result = PortableResult(service, job, (), ())
        try:
            state = result.state
        except grpc.RpcError:
            say(f"{self.runner}: {endpoint} no longer knows job {job}; a new one is submitted")
            return None
        if state in (PipelineState.FAILED, PipelineState.CANCELLED, PipelineState.CANCELLING):
            say(f"{self.runner}: job {job} at {endpoint} is {state}; a new one is submitted")
            return None
        say(f"{self.runner}: job {job} at {endpoint} was found again, {state}")
        return result


@dataclass
class _Watch:
    """Follows a job until it ends."""

    machine: PipelineMachine
    options: PipelineOptions
    progress: Progress
    record: JobRecord
    messages: list[str] = field(default_factory=list)
    """Errors that the job service has reported."""
    listener: threading.Thread | None = None
    """The thread that collects them."""

    def until_finished(self, result: PipelineResult) -> str:
        """The state in which the job ended."""
        if isinstance(result, PortableResult):
            self.listener = threading.Thread(target=self._listen, args=(result,), daemon=True)
            self.listener.start()
        began = spoke = time.monotonic()
        seen: dict[str, float] = {}
        running = not self.record.output
        failures = 0
        while True:
            try:
                state = result.state
                noted = self._advance(result, seen)
                failures = 0
            except grpc.RpcError as error:
                failures += 1
                if failures > UNANSWERED_POLLS:
                    raise ServiceSilent(
                        f"{self._job(result)}: the job service at {self.record.endpoint} does not "
                        "answer; the job may run on, the same command looks for it again"
                    ) from error
                time.sleep(POLL_SECONDS)
                continue
            if PipelineState.is_terminal(state):
                if self.listener:
                    self.listener.join(LAST_WORDS_SECONDS)
                return str(state)
            now = time.monotonic()
            running = running or bool(seen) or filesystem.exists(self.record.sign)
            if not running and now - began > self.machine.start_timeout:
                raise self._without_workers(result)
            if noted:
                spoke = now
            elif now - spoke > STATE_EVERY:
                spoke = now
                waits = "" if running else ", no worker has begun yet"
                say(f"{self._job(result)}: {state} for {clock(now - began)}{waits}")
            time.sleep(POLL_SECONDS)

    def error(self, state: str) -> Exception:
        """The error for a job that ended without finishing its work."""
        if self.messages:
            return job_error("RuntimeError", self.messages[-1])
        return JobFailed(
            f"{self.machine.runner}: the job ended as {state}; its own log says why; "
            "finished parts are kept, the same command goes on"
        )

    def _advance(self, result: PipelineResult, seen: dict[str, float]) -> bool:
        """Advance the progress line by Beam's counters; whether they have changed."""
        if isinstance(result, PortableResult):
            result._metrics = None  # otherwise it would only be fetched once
        wanted = MetricsFilter().with_namespace(NAMESPACE)
        try:
            counters = result.metrics().query(wanted)["counters"]
        except NotImplementedError:  # an engine without metrics
            return False
        done = {each.key.metric.name: each.result / PARTS_PER_UNIT for each in counters}
        unit = self.progress.unit
        moved = done.get(unit, 0.0) - seen.get(unit, 0.0)
        is_new = done != seen
        seen.update(done)
        if is_new:
            others = (f"{amount:,.0f} {name}" for name, amount in done.items() if name != unit)
            self.progress.advance(moved, ", ".join(others))
        return is_new

    def _listen(self, result: PortableResult) -> None:
        """Collect the errors that the service reports."""
        request = beam_job_api_pb2.JobMessagesRequest(job_id=result._job_id)
        try:
            for message in result._job_service.GetMessageStream(request):
                told = message.message_response
                if told.importance == beam_job_api_pb2.JobMessage.JOB_MESSAGE_ERROR:
                    self.messages.append(told.message_text)
        except grpc.RpcError:  # the polls will notice
            return

    def _without_workers(self, result: PipelineResult) -> JobFailed:
        portable = self.options.view_as(PortableOptions)
        kind, where = portable.environment_type, portable.environment_config
        workers = f"environment_type = {kind}, {where}" if kind else "the engine's own"
        return JobFailed(
            f"{self._job(result)}: no worker has begun within "
            f"{self.machine.start_timeout:.0f} s, so it was cancelled; it waited for workers "
            f"({workers}): start them and see that they reach {self.record.output}, or raise "
            "pipeline.start_timeout"
        )

    def _job(self, result: PipelineResult) -> str:
        return f"{self.machine.runner}: job {_job_id(result)}".rstrip()


def _job_id(result: PipelineResult) -> str:
    """The engine's name of the job; empty if it gives none."""
    if isinstance(result, PortableResult):
        return str(result._job_id)
    found = getattr(result, "job_id", None)  # Dataflow's
    return str(found()) if callable(found) and getattr(result, "has_job", False) else ""


def _started(item: object, *, path: str) -> object:
    """Record that a worker has begun; the item passes through."""
    filesystem.write_bytes(path, b"")
    return item
