"""Beam's FnApiRunner on this machine: in this process, with threads, or with forked workers.

In:  a function that fills a pipeline.
Out: nothing, or the reason why the job ended early. No process outlives the call.

Beam's runner can hang when a worker dies, and it cannot be stopped from outside. So it runs in a
forked child, with all workers below it; the launcher stays free of Beam's threads, watches, and
ends the whole family whatever happens. When the launcher is killed, the family dies with it
(artifacts/processes.py).
"""

import io
import json
import logging
import os
import select
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from artifacts.errors import ClozeError
from artifacts.processes import die_with_parent, end, family
from artifacts.progress import say
from pipeline.config import PipelineMachine
from pipeline.runner.beam import (
    JobServiceHandle,
    Pipeline,
    PipelineOptions,
    PipelineState,
    beam_provision_api_pb2,
    environments,
    fn_runner,
)
from pipeline.runner.errors import JobFailed, WorkerKilled, job_error, own_error
from pipeline.runner.prefork import PreforkedWorkers
from pipeline.runner.sockets import serve_in, worker_processes, worker_threads
from pipeline.runner.work_queue import ReportReader, polling

Fill = Callable[[Pipeline], None]
POLL_SECONDS = 0.25
LONGEST_LOG = 20_000
QUIET_AND_UNCHECKED = ("--default_sdk_harness_log_level=WARNING", "--no_pipeline_type_check")
"""Our graphs' types are checked statically; Beam parses its options anew for each check."""


def run_inline(fill: Fill, *, options: Sequence[str], reader: ReportReader) -> None:
    """Run in this very process, one bundle after another: for tests, debuggers and small inputs."""
    environment = environments.EmbeddedPythonEnvironment.default()
    with polling(reader):
        try:
            _run_pipeline(fill, environment, flags=list(options))
        except JobFailed as failure:
            say("".join(traceback.format_exception(failure.__cause__)))
            raise


def run_supervised(
    fill: Fill,
    *,
    machine: PipelineMachine,
    options: Sequence[str],
    reader: ReportReader,
    scratch: str,
) -> None:
    """Run with threads or processes below a forked child, watched from here.

    What they write to standard error goes to a file in `scratch`, which is shown at the end,
    but not if the job ends with an error of our own: it says on one line what tracebacks hide.
    Their temporary files are in `scratch`, too, since a killed process leaves some.
    """
    log = os.path.join(scratch, "log")
    open(log, "wb").close()
    try:
        _supervise(fill, machine=machine, options=options, reader=reader, log=log)
    except WorkerKilled:
        raise
    except JobFailed:
        _show(log)
        raise
    _show(log)


def _supervise(
    fill: Fill,
    *,
    machine: PipelineMachine,
    options: Sequence[str],
    reader: ReportReader,
    log: str,
) -> None:
    flags = [*options, f"--direct_num_workers={machine.workers}"]
    events, events_out = os.pipe()
    launcher = os.getpid()
    head = os.fork()
    if not head:
        die_with_parent(launcher)
        os.close(events)
        _log_to(log)
        tempfile.tempdir = os.path.dirname(log)
        _run_and_exit(fill, machine=machine, flags=flags, events=events_out)
    os.close(events_out)
    try:
        _watch(head, events, reader=reader, stall_timeout=machine.stall_timeout)
    finally:
        end(family(head), grace=0.0)
        os.waitpid(head, 0)
        os.close(events)
        reader.poll()


def _watch(head: int, events: int, *, reader: ReportReader, stall_timeout: float) -> None:
    """Follow the job until it says that it is done; raise as soon as it cannot be."""
    alive_at = time.monotonic()
    pending = b""
    while True:
        ended = _has_ended(head)  # before reading: its last words come first
        readable, _, _ = select.select([events], [], [], POLL_SECONDS)
        if reader.poll():
            alive_at = time.monotonic()
        received = os.read(events, 1 << 16) if readable else b""
        *lines, pending = (pending + received).split(b"\n")
        if any(_finishes(json.loads(line)) for line in lines):
            return
        if ended and not received:
            raise WorkerKilled(
                "the job's process was killed, perhaps for memory; "
                "finished parts are kept, the same command goes on"
            )
        if time.monotonic() - alive_at > stall_timeout:
            raise JobFailed(
                f"the job has finished nothing for {stall_timeout:.0f} s and was stopped; the same "
                "command goes on, stall_timeout in the machine file allows for slower pieces"
            )


def _has_ended(child: int) -> bool:
    """Whether a child has ended; it stays to be waited for.

    Its pipes do not tell: forks of it hold them open.
    """
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _finishes(event: dict[str, Any]) -> bool:
    if event["event"] == "failed":
        raise own_error(event["kind"], event["text"])
    if event["event"] == "worker died":
        kind = WorkerKilled if event["cause"] == "SIGKILL" else JobFailed
        raise kind(
            f"worker {event['pid']} was ended by {event['cause']}, perhaps for memory; "
            "finished parts are kept, the same command goes on"
        )
    return bool(event["event"] == "done")


def _run_and_exit(
    fill: Fill, *, machine: PipelineMachine, flags: list[str], events: int
) -> NoReturn:
    """The forked child: run the job, say how it ended, and never return into the caller's code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        _run_with_workers(fill, machine=machine, flags=flags, events=events)
        _send(events, event="done")
    except ClozeError as error:
        _send(events, event="failed", kind=type(error).__name__, text=str(error))
    finally:
        os._exit(0)


def _run_with_workers(
    fill: Fill, *, machine: PipelineMachine, flags: list[str], events: int
) -> None:
    serve_in(tempfile.gettempdir())
    if machine.worker_mode == "threads":
        _run_pipeline(fill, worker_threads(), flags=flags)
        return
    with PreforkedWorkers(
        tempfile.gettempdir(),
        on_death=lambda pid, cause: _send(events, event="worker died", pid=pid, cause=cause),
    ) as workers:
        _run_pipeline(fill, worker_processes(workers.address), flags=flags)


def _run_pipeline(fill: Fill, environment: environments.Environment, *, flags: list[str]) -> None:
    options = PipelineOptions([*QUIET_AND_UNCHECKED, *flags])
    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    # built by hand, because processes would otherwise get none of the options
    provision = fn_runner.ExtendedProvisionInfo(
        beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
    )
    runner = fn_runner.FnApiRunner(default_environment=environment, provision_info=provision)
    pipeline = Pipeline(runner=runner, options=options)
    try:
        fill(pipeline)
        state = pipeline.run().wait_until_finish()
    except Exception as error:  # whatever a worker or the runner raises is the job's failure
        raise job_error(type(error).__name__, str(error)) from error
    if state != PipelineState.DONE:
        raise JobFailed(f"the job ended as {state}")


def _log_to(log: str) -> None:
    """Everything this process and its children write to standard error from now on."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # workers print tracebacks, too


def _show(log: str) -> None:
    with open(log, "rb") as file:
        text = file.read().decode("utf-8", errors="replace").strip()
    if text:
        say(text[-LONGEST_LOG:])


def _send(events: int, **event: object) -> None:
    os.write(events, json.dumps(event).encode() + b"\n")
