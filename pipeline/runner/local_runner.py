"""Beam's FnApiRunner on this machine, with threads or with forked workers.

In:  a job.
Out: nothing, or the reason why the job ended early: `JobFailed`, or the `ClozeError` that a worker
     raised, on one line. No process outlives the call.

Beam's runner can hang when a worker dies, and it cannot be stopped from outside. So it runs in a
forked child, with all workers below it; the launcher stays free of Beam's threads, watches, and
ends the whole family whatever happens. When the launcher is killed, the family dies with it
(artifacts/runtime/processes.py).
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
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from artifacts.errors import ClozeError
from artifacts.progress import say
from artifacts.runtime.processes import die_with_parent, end, family
from pipeline.config.stage_tables import PipelineMachine
from pipeline.runner.beam import (
    JobServiceHandle,
    Pipeline,
    PipelineOptions,
    PipelineState,
    beam_provision_api_pb2,
    environments,
    fn_runner,
)
from pipeline.runner.beam_graph import add_job
from pipeline.runner.graph import Collection
from pipeline.runner.job_errors import KINDS, JobFailed, WorkerKilled, job_error
from pipeline.runner.prefork import PreforkedWorkers
from pipeline.runner.sockets import serve_in, worker_processes, worker_threads
from pipeline.runner.work_queue import ReportReader, stalled

POLL_SECONDS = 0.25
LONGEST_LOG = 20_000
QUIET_AND_UNCHECKED = ("--default_sdk_harness_log_level=WARNING", "--no_pipeline_type_check")
"""Our graphs' types are checked statically; Beam parses its options anew for each check."""


def run_supervised(
    job: Collection[Any],
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
    events, events_out = os.pipe()
    launcher = os.getpid()
    head = os.fork()
    if not head:
        die_with_parent(launcher)
        os.close(events)
        # what this process and its children write to standard error goes to `log` from now on
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
        tempfile.tempdir = scratch
        flags = [*options, f"--direct_num_workers={machine.workers}"]
        _run_and_exit(job, machine=machine, flags=flags, events=events_out)
    os.close(events_out)
    shown = False
    try:
        _watch(head, events, reader=reader, stall_timeout=machine.stall_timeout)
        shown = True
    except JobFailed as failure:
        shown = not isinstance(failure, WorkerKilled)
        raise
    finally:
        end(family(head), grace=0.0)
        os.waitpid(head, 0)
        os.close(events)
        reader.poll()
        text = Path(log).read_bytes().decode("utf-8", errors="replace").strip()
        if shown and text:
            say(text[-LONGEST_LOG:])


def _watch(head: int, events: int, *, reader: ReportReader, stall_timeout: float) -> None:
    """Follow the job until it reports that it is done; raise as soon as it cannot succeed."""
    alive_at = time.monotonic()
    pending = b""
    while True:
        # Whether the child has ended is asked before reading, so that its last words come first;
        # its pipes do not tell, since its forks hold them open. It is left to be waited for.
        ended = os.waitid(os.P_PID, head, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        readable, _, _ = select.select([events], [], [], POLL_SECONDS)
        if reader.poll():
            alive_at = time.monotonic()
        received = os.read(events, 1 << 16) if readable else b""
        *lines, pending = (pending + received).split(b"\n")
        for event in map(json.loads, lines):
            if event["event"] == "done":
                return
            if event["event"] == "failed":
                raise KINDS.get(event["kind"], JobFailed)(event["text"])
            kind = WorkerKilled if event["cause"] == "SIGKILL" else JobFailed
            raise kind(
                f"worker {event['pid']} was ended by {event['cause']}, perhaps for memory; "
                "finished parts are kept, the same command goes on"
            )
        if ended and not received:
            raise WorkerKilled(
                "the job's process was killed, perhaps for memory; "
                "finished parts are kept, the same command goes on"
            )
        if time.monotonic() - alive_at > stall_timeout:
            raise JobFailed(stalled(stall_timeout))


def _run_and_exit(
    job: Collection[Any], *, machine: PipelineMachine, flags: list[str], events: int
) -> NoReturn:
    """The forked child: run the job, say how it ended, and never return into the caller's code."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)

    def send(**event: str) -> None:
        os.write(events, json.dumps(event).encode() + b"\n")

    try:
        serve_in(tempfile.gettempdir())
        if machine.worker_mode == "threads":
            _run_pipeline(job, worker_threads(), flags=flags)
        else:
            with PreforkedWorkers(
                tempfile.gettempdir(),
                on_death=lambda pid, cause: send(event="worker died", pid=str(pid), cause=cause),
            ) as workers:
                _run_pipeline(job, worker_processes(workers.address), flags=flags)
        send(event="done")
    except ClozeError as error:
        send(event="failed", kind=type(error).__name__, text=str(error))
    finally:
        os._exit(0)


def _run_pipeline(
    job: Collection[Any], environment: environments.Environment, *, flags: list[str]
) -> None:
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # what fails is raised here as well
    options = PipelineOptions([*QUIET_AND_UNCHECKED, *flags])
    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    # built by hand, because processes would otherwise get none of the options
    provision = fn_runner.ExtendedProvisionInfo(
        beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
    )
    runner = fn_runner.FnApiRunner(default_environment=environment, provision_info=provision)
    pipeline = Pipeline(runner=runner, options=options)
    try:
        add_job(job, pipeline)
        state = pipeline.run().wait_until_finish()
    except Exception as error:  # whatever a worker or the runner raises is the job's failure
        raise job_error(type(error).__name__, str(error)) from error
    if state != PipelineState.DONE:
        raise JobFailed(f"the job ended as {state}")
