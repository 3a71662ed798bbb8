"""A job on a remote engine: submitted or found again, then watched to its end or cancelled.

In:  a job (pipeline/runner/graph.py), and the machine file's Beam runner with its options.
Out: the files that the job's workers put into the artifact.

The job is recorded next to the artifact as soon as it is submitted. If the launcher is killed, the
job keeps running; the same command then finds it through the job service and waits for it. That
needs a service that outlives the launcher (`job_endpoint`); with other engines only the job's name
is known.

Beam's `wait_until_finish` gives up after `job_server_timeout`, a minute by default, is silent
meanwhile, and has no limit on how long workers may take to appear, so the state is polled instead.

Dask runs through Beam's own runner for it. It groups into as many partitions as there were before,
and that runner does not support `Impulse`, so a graph starts with one element per partition, all
but the first of which are dropped. Grouped data stay in the workers' memory and spill to their
disks. If a worker dies its results are lost, and Dask recomputes them, from the texts if necessary.
"""

import json
import logging
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cloze.artifacts import filesystem
from cloze.artifacts.errors import ClozeError, UsageError
from cloze.artifacts.progress import Progress, clock, say
from cloze.artifacts.store import WORK
from cloze.pipeline.config.settings import PipelineMachine
from cloze.pipeline.runner.beam import (
    Create,
    Metrics,
    MetricsFilter,
    Pipeline,
    PipelineOptions,
    PipelineResult,
    PipelineState,
    PortableOptions,
    PortableResult,
    TestOptions,
    add_job,
    beam_job_api_pb2,
    beam_job_api_pb2_grpc,
    grpc,
)
from cloze.pipeline.runner.graph import Build, JobFailed, Step, WorkQueue, job_error

PRISM_LOG, LOST = "PrismRunner", "SDK worker disconnected"
"""Beam's logger of Prism's lines, and what these say of a worker that is gone."""

SHOWN_CHARACTERS = 300
"""Of such a line."""

LOST_SECONDS = 15.0
"""Prism usually ends the job at once."""

POLL_SECONDS = 1.0
STATE_EVERY = 60.0
"""Seconds without progress after which a job is logged as still running: a stage that logs nothing
would be taken for hung."""

UNANSWERED_POLLS = 30
"""Consecutive failed polls after which the job service is considered lost."""

LAST_WORDS_SECONDS = 10.0
"""How long to wait for the last messages of a job that has ended."""

PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"

JOB_NAME = "engine_job.json"
SIGN_NAME = "engine_started"
NAMESPACE = "cloze"
PARTS_PER_UNIT = 1000
"""Beam's counters are integers; megabytes are not."""

DASK_RUNNER = "apache_beam.runners.dask.dask_runner.DaskRunner"
"""Beam has no shorter name for it."""

DASK_PARTITIONS = 32
"""The default of `dask_npartitions`: the most that Dask groups in a single step of tasks."""


class EngineQueue(WorkQueue):
    """The work queue of a remote engine's workers: reports become Beam counters."""

    def report(self, **done: float) -> None:
        """Count completed work by unit."""
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
    """Run the job to its end with the Beam runner that the machine file names.

    If an earlier launcher left the job running, wait for that one. The job is cancelled if this
    process is interrupted or terminated, or if no worker starts within `machine.start_timeout`.
    """
    name = DASK_RUNNER if machine.runner == "DaskRunner" else machine.runner
    beam_options = PipelineOptions([f"--runner={name}", *options])
    # An earlier attempt's job, if it is still known to its service; else submit a new one.
    job = EngineJob(machine, beam_options, progress, output)
    result = job.found_again()
    if result is None:
        job.forget()
        is_dask = name == DASK_RUNNER
        partitions = dask_partitions(options) if is_dask else 0
        try:
            pipeline = Pipeline(options=beam_options)
        except ValueError as error:  # no such runner, or contradictory options
            # Beam lists what it found on lines of their own, and only one line is shown
            reason = " ".join(str(error).split())
            raise UsageError(f"{machine.runner}: {reason}") from error
        started = Step("Started", "map", partial(_started, path=job.sign, python=PYTHON))
        steps = build(EngineQueue())
        try:
            if is_dask:
                # one element per partition, of which one goes on (see above)
                first = Step("First", "flat_map", lambda element: [] if element else [None])
                add_job(steps, pipeline, first, started, start=Create(range(partitions)))
                result = submit_to_dask(pipeline)
            else:
                add_job(steps, pipeline, started)
                if job.endpoint and job.endpoint != "embed":
                    seconds = beam_options.view_as(PortableOptions).job_server_timeout
                    say(f"{machine.runner}: asking {job.endpoint}, which has {seconds} s to answer")
                result = pipeline.run()
        except grpc.FutureTimeoutError as error:
            raise JobFailed(
                f"{machine.runner}: no job service answers at {job.endpoint}; "
                "start it, or correct job_endpoint in [pipeline.options]"
            ) from error
        dry = beam_options.view_as(TestOptions).dry_run
        # Nothing runs then: success would leave a stage without output.
        if dry or not getattr(result, "has_job", True):  # Dataflow: no job for a template
            raise JobFailed(f"{machine.runner}: the graph was translated; nothing was submitted")
        job.record(result)
    try:
        state = job.until_finished(result)
    except BaseException as error:
        # an unattended job would keep running and cost money
        if not isinstance(error, ServiceSilent):
            say(f"{machine.runner}: cancelling the job")
            result.cancel()
            job.forget()
        raise
    job.forget()
    if state != PipelineState.DONE:
        raise result.error() if isinstance(result, DaskResult) else job.error(state)


class LostWorker(logging.Handler):
    """Hears from Prism's log that a worker is gone.

    Of a worker that had several bundles, Prism sometimes drops the second error as an "additional
    bundle response" and the first with it, and the job stays RUNNING for ever.
    """

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.heard: float | None = None
        """When, by the monotonic clock."""

    def __enter__(self) -> "LostWorker":
        logging.getLogger(PRISM_LOG).addHandler(self)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger(PRISM_LOG).removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Note the time of the first such line, and pass on all: Python shows what nobody hears."""
        line = record.getMessage()
        say(f"prism: {line.strip().partition(chr(10))[0][:SHOWN_CHARACTERS]}")
        if self.heard is None and LOST in line:
            self.heard = time.monotonic()


class ServiceSilent(JobFailed):
    """The job service no longer answers; the job may still be running."""


@dataclass
class EngineJob:
    """A job on an engine; the artifact's work folder records which one of which service."""

    machine: PipelineMachine
    options: PipelineOptions
    progress: Progress
    output: str
    """The unfinished artifact."""
    messages: list[str] = field(default_factory=list)
    """Errors reported by the job service."""

    @property
    def endpoint(self) -> str | None:
        """Address of the job service; `embed` is one inside this process, which ends with it."""
        found: str | None = self.options.view_as(PortableOptions).job_endpoint
        return found

    @property
    def path(self) -> str:
        """The file that records the job."""
        return filesystem.join(self.output, f"{WORK}/{JOB_NAME}")

    @property
    def sign(self) -> str:
        """The file that the first worker creates."""
        return filesystem.join(self.output, f"{WORK}/{SIGN_NAME}")

    def record(self, result: PipelineResult) -> None:
        """Record the job, unless there is none or it ends with this process."""
        job = _job_id(result)
        if job and self.endpoint != "embed":
            content = {"runner": self.machine.runner, "endpoint": self.endpoint, "job": job}
            filesystem.write_bytes(self.path, json.dumps(content).encode())

    def forget(self) -> None:
        """Remove the record: the job has ended, or a new one replaces it."""
        for name in (JOB_NAME, SIGN_NAME):
            filesystem.remove_below(self.output, f"{WORK}/{name}")

    def found_again(self) -> PipelineResult | None:
        """The job that an earlier launcher submitted, if it is running or has succeeded."""
        if not filesystem.exists(self.path):
            return None
        runner, noted = self.machine.runner, json.loads(filesystem.read_bytes(self.path))
        job, endpoint = noted["job"], noted["endpoint"]
        if not endpoint:
            say(
                f"warning: {noted['runner']}: job {job} of an earlier attempt may still be running "
                "and cannot be waited for from here; cancel it there; submitting a new one"
            )
            return None
        service = beam_job_api_pb2_grpc.JobServiceStub(grpc.insecure_channel(endpoint))
        result = PortableResult(service, job, (), ())
        try:
            state = result.state
        except grpc.RpcError:
            say(f"{runner}: {endpoint} no longer knows job {job}; submitting a new one")
            return None
        # A job that has failed or is ending cannot finish its work.
        if state in (PipelineState.FAILED, PipelineState.CANCELLED, PipelineState.CANCELLING):
            say(f"{runner}: job {job} at {endpoint} is {state}; submitting a new one")
            return None
        say(f"{runner}: job {job} at {endpoint} found again, {state}")
        return result

    def until_finished(self, result: PipelineResult) -> str:
        """Wait for the job; returns its final state."""
        with LostWorker() as lost:
            return self._until_finished(result, lost)

    def _until_finished(self, result: PipelineResult, lost: LostWorker) -> str:
        listener = threading.Thread(target=self._listen, args=(result,), daemon=True)
        listener.start()
        began = spoke = time.monotonic()
        seen: dict[str, float] = {}
        running = False
        failures = 0
        while True:
            # A poll may fail while a service restarts; only many in a row mean that it is gone.
            try:
                state = result.state
                noted = self._advance(result, seen)
                failures = 0
            except grpc.RpcError as error:
                failures += 1
                if failures > UNANSWERED_POLLS:
                    raise ServiceSilent(
                        f"{self._job(result)}: the job service at {self.endpoint} does not "
                        "answer; the job may still be running, run the same command to find it"
                    ) from error
                time.sleep(POLL_SECONDS)
                continue
            if PipelineState.is_terminal(state):
                listener.join(LAST_WORDS_SECONDS)
                return str(state)
            now = time.monotonic()
            if lost.heard is not None and now - lost.heard > LOST_SECONDS:
                raise JobFailed(
                    f"{self._job(result)}: cancelled, as it goes on without a worker ({LOST}); "
                    "finished parts are kept, run the same command to resume"
                )
            # A sign of life: reports, or the file that the first worker creates.
            running = running or bool(seen) or filesystem.exists(self.sign)
            if not running and now - began > self.machine.start_timeout:
                portable = self.options.view_as(PortableOptions)
                kind, where = portable.environment_type, portable.environment_config
                workers = f"environment_type = {kind}, {where}" if kind else "the engine's own"
                raise JobFailed(
                    f"{self._job(result)}: cancelled, because no worker ({workers}) started within "
                    f"{self.machine.start_timeout:.0f} s; start them and check that they can reach "
                    f"{self.output}, or raise pipeline.start_timeout"
                )
            if noted:
                spoke = now
            elif now - spoke > STATE_EVERY:
                spoke = now
                waits = "" if running else ", no worker has started yet"
                say(f"{self._job(result)}: {state} for {clock(now - began)}{waits}")
            time.sleep(POLL_SECONDS)

    def error(self, state: str) -> Exception:
        """The error for a job that ended in another `state` than DONE."""
        if self.messages:
            return job_error("RuntimeError", self.messages[-1])
        return JobFailed(
            f"{self.machine.runner}: the job ended as {state}, see its own log; "
            "finished parts are kept, run the same command to resume"
        )

    def _advance(self, result: PipelineResult, seen: dict[str, float]) -> bool:
        """Advance the progress line by Beam's counters; whether they changed."""
        if isinstance(result, PortableResult):
            result._metrics = None  # it caches the first answer
        wanted = MetricsFilter().with_namespace(NAMESPACE)
        try:
            counters = result.metrics().query(wanted)["counters"]
        except NotImplementedError:  # an engine without counters, such as Dask
            return False
        done = {each.key.metric.name: each.result / PARTS_PER_UNIT for each in counters}
        unit = self.progress.unit
        # Counters are totals; the progress line advances by differences.
        moved = done.get(unit, 0.0) - seen.get(unit, 0.0)
        is_new = done != seen
        seen.update(done)
        if is_new:
            others = (f"{amount:,.0f} {name}" for name, amount in done.items() if name != unit)
            self.progress.advance(moved, ", ".join(others))
        return is_new

    def _listen(self, result: PipelineResult) -> None:
        """Collect the errors that a job service reports."""
        if not isinstance(result, PortableResult):
            return
        request = beam_job_api_pb2.JobMessagesRequest(job_id=result._job_id)
        try:
            for message in result._job_service.GetMessageStream(request):
                response = message.message_response
                if response.importance == beam_job_api_pb2.JobMessage.JOB_MESSAGE_ERROR:
                    self.messages.append(response.message_text)
        except grpc.RpcError:  # polling will notice
            return

    def _job(self, result: PipelineResult) -> str:
        return f"{self.machine.runner}: job {_job_id(result)}".rstrip()


def _job_id(result: PipelineResult) -> str:
    """The engine's name for the job; empty if it has none."""
    if isinstance(result, PortableResult):
        return str(result._job_id)
    found = getattr(result, "job_id", None)  # Dataflow's
    return str(found()) if callable(found) and getattr(result, "has_job", False) else ""


def _started(item: object, *, path: str, python: str) -> object:
    """Record that a worker has started; the item passes through.

    `python`: the version from which the steps were sent, as bytecode that no other can run.
    """
    if python != PYTHON:
        raise UsageError(
            f"the engine's workers have Python {PYTHON}, the command that sent the job has "
            f"{python}; build their image with --build-arg PYTHON={python}, or run the command "
            f"with Python {PYTHON}"
        )
    filesystem.write_bytes(path, b"")
    return item


class DaskResult(PipelineResult):
    """Beam's result of a Dask job is always RUNNING; this one looks at the job's futures."""

    def __init__(self, submitted: Any) -> None:
        super().__init__(PipelineState.RUNNING)  # type: ignore[no-untyped-call]
        self._client: Any = submitted.client
        self._futures: Any = submitted.futures
        # A lost scheduler is told of in one line (`error`), not in tracebacks of its client, whose
        # level Dask has set by now.
        logging.getLogger("distributed.client").setLevel(logging.CRITICAL)

    @property
    def state(self) -> str:
        """The state by Beam's names."""
        states = {
            # in the order of precedence: one failed future fails the job
            "error": PipelineState.FAILED,
            "cancelled": PipelineState.CANCELLED,  # by someone else, or the scheduler is gone
            "lost": PipelineState.CANCELLED,
            "pending": PipelineState.RUNNING,
        }
        found = {future.status for future in self._futures}
        return str(next((states[name] for name in states if name in found), PipelineState.DONE))

    def cancel(self) -> str:
        """Cancel the futures; tasks that have started finish, and their results are discarded."""
        self._client.cancel(self._futures, force=True)
        self._client.close()
        return str(PipelineState.CANCELLED)

    def error(self) -> ClozeError:
        """Why the job failed."""
        for future in self._futures:
            if future.status == "error":
                error = future.exception()
                if isinstance(error, ClozeError):
                    return error
                return job_error(type(error).__name__, str(error))
        return JobFailed(
            "DaskRunner: the scheduler dropped the job, see its log; finished parts are kept, run "
            "the same command to resume"
        )


def dask_partitions(options: Sequence[str]) -> int:
    """The number of partitions that Beam's options for Dask ask for."""
    try:
        from apache_beam.runners.dask.dask_runner import DaskOptions
    except ImportError as error:
        raise UsageError(
            "DaskRunner: Dask is missing; pip install 'cloze-encoder[dask]'"
        ) from error
    asked = PipelineOptions(list(options)).view_as(DaskOptions)
    if not (asked.address or asked.scheduler_file):
        raise UsageError(
            "DaskRunner: no scheduler is named; set dask_client_address in [pipeline.options]"
        )
    if asked.partition_size:
        raise UsageError("dask_partition_size is not supported; set dask_npartitions instead")
    return int(asked.npartitions or DASK_PARTITIONS)


def submit_to_dask(pipeline: Pipeline) -> DaskResult:
    """Submit the whole graph to the scheduler."""
    try:
        return DaskResult(pipeline.run())
    except OSError as error:  # what Dask raises if there is no scheduler
        raise JobFailed(
            f"DaskRunner: {error}; start the scheduler, or correct dask_client_address in "
            "[pipeline.options]"
        ) from error
