"""Beam's FnApiRunner on this machine, with threads or with forked workers.

In:  a job.
Out: nothing, or the reason why the job ended early: `JobFailed`, or the `ClozeError` that a worker
     raised, on one line. No process outlives the call.

*Supervision.* Beam's runner can hang when a worker dies and cannot be stopped from outside, so it
runs in a forked child with all workers below it. The launcher stays free of Beam's threads, watches
the child, and ends the whole process tree whatever happens. If the launcher is killed, the tree
dies with it (artifacts/runtime/children.py).

*Workers.* Beam's own worker processes are fresh interpreters, which cost seconds per job. Here they
are forked within milliseconds, before any gRPC channel exists (gRPC does not survive a fork), and
wait for Beam to start them. A worker lives as long as its connection.

*Sockets.* Beam binds its services to all addresses (`[::]`) without authentication, and one of them
serves any file that the user may read. Here they listen on Unix sockets in the job's own directory,
which only its user may enter, and the file service is left out. Worker handlers choose their
address and are registered by environment; the server has no such extension point and is replaced.
"""

import io
import json
import logging
import os
import select
import socket
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar, NoReturn
from urllib.parse import quote

import grpc
from google.protobuf import json_format, text_format

from cloze.artifacts.errors import ClozeError
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.children import (
    Child,
    WorkerFailed,
    WorkerKilled,
    Workers,
    run_forked,
    worker_error,
)
from cloze.pipeline.config.settings import PipelineMachine
from cloze.pipeline.runner.beam import (
    JobServiceHandle,
    Pipeline,
    PipelineOptions,
    PipelineState,
    add_job,
    beam_fn_api_pb2_grpc,
    beam_provision_api_pb2,
    data_plane,
    endpoints_pb2,
    environments,
    fn_runner,
    python_urns,
    sdk_worker_main,
    thread_pool_executor,
    worker_handlers,
)
from cloze.pipeline.runner.graph import (
    ERROR_KINDS,
    JobFailed,
    LastCollection,
    ReportReader,
    job_error,
    stalled,
)

POLL_SECONDS = 0.25
WORKER_POLL_SECONDS = 0.05
LONGEST_LOG = 20_000
"""Characters of the workers' standard error that are shown at the end."""

QUIET_AND_UNCHECKED = ("--default_sdk_harness_log_level=WARNING", "--no_pipeline_type_check")
"""Our graphs' types are checked statically; Beam would parse its options anew for each check."""

SERVICES = ("control", "data", "state")
"""Beam's services; their index takes the place of a port number."""

SHUTDOWN_SECONDS = 5
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
)
"""The options of Beam's own server: messages of any size, and clients that ping every 20 s."""


def run_supervised(
    job: LastCollection,
    *,
    machine: PipelineMachine,
    options: Sequence[str],
    reader: ReportReader,
    scratch: str,
) -> None:
    """Run with threads or processes below a forked child, watched from here.

    Their standard error goes to a file in `scratch` and is shown at the end, unless the job ends
    with one of our own errors, whose one line says what tracebacks would bury. Their temporary
    files are in `scratch`, too, since killed processes leave some behind.
    """
    # Two channels lead back: a pipe with one line at the end, which says how the job ended, and the
    # workers' reports of progress, which `reader` follows and which also show that the job is
    # alive.
    log = os.path.join(scratch, "log")
    open(log, "wb").close()
    events, events_out = os.pipe()

    def run_head() -> None:
        os.close(events)
        # redirect standard error of this process and its children to `log`
        os.dup2(os.open(log, os.O_WRONLY | os.O_APPEND), 2)
        sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), line_buffering=True)
        tempfile.tempdir = scratch
        flags = [*options, f"--direct_num_workers={machine.workers}"]
        run_locally(job, machine=machine, flags=flags, events=events_out)

    shown = False
    try:
        with run_forked(run_head) as head:
            os.close(events_out)
            watch(head, events, reader=reader, stall_timeout=machine.stall_timeout)
        shown = True
    except (JobFailed, WorkerFailed) as failure:
        shown = not isinstance(failure, WorkerKilled)
        raise
    finally:
        os.close(events)
        reader.poll()
        text = Path(log).read_bytes().decode("utf-8", errors="replace").strip()
        if shown and text:
            say(text[-LONGEST_LOG:])


def watch(head: Child, events: int, *, reader: ReportReader, stall_timeout: float) -> None:
    """Follow the child until it reports success; raise as soon as the job cannot succeed."""
    # Four ends are possible, and each must be noticed within a poll: an event says done or failed;
    # the child died without one; or nothing has been reported for so long that it must hang.
    alive_at = time.monotonic()
    pending = b""
    while True:
        # Check whether the child has ended before reading its last events. End of file on the pipe
        # does not show it, since the child's forks hold the pipe open.
        ended = head.poll()
        readable, _, _ = select.select([events], [], [], POLL_SECONDS)
        if reader.poll():
            alive_at = time.monotonic()
        received = os.read(events, 1 << 16) if readable else b""
        *lines, pending = (pending + received).split(b"\n")
        for event in map(json.loads, lines):
            if event["event"] == "done":
                return
            raise ERROR_KINDS.get(event["kind"], JobFailed)(event["text"])
        if ended is not None and not received:
            raise worker_error("the job's process", ended)
        if time.monotonic() - alive_at > stall_timeout:
            raise JobFailed(stalled(stall_timeout))


def run_locally(
    job: LastCollection, *, machine: PipelineMachine, flags: list[str], events: int
) -> None:
    """In the forked child: run the job and report how it ended."""
    SocketServer.directory = tempfile.gettempdir()
    worker_handlers.GrpcServer = SocketServer  # type: ignore[misc,assignment]

    def send(**event: str) -> None:
        os.write(events, json.dumps(event).encode() + b"\n")

    def fail(error: ClozeError) -> None:
        send(event="failed", kind=type(error).__name__, text=str(error))

    threading.excepthook = _report_but_closed_streams
    try:
        # Workers are forked first of all: the runner starts gRPC, and gRPC does not survive a fork.
        environment: environments.Environment = environments.EmbeddedPythonGrpcEnvironment.default()
        if machine.worker_mode != "threads":
            fork_workers(machine.workers, on_death=fail)
            environment = environments.SubprocessSDKEnvironment.from_command_string("forked")
        _run_pipeline(job, environment, flags=flags)
        send(event="done")
    except ClozeError as error:
        fail(error)


def _report_but_closed_streams(raised: threading.ExceptHookArgs) -> None:
    """Report what a thread raised, unless it is Beam's reader of a stream that was closed."""
    # At the end Beam closes its streams while a thread still reads from them, which then prints a
    # traceback below a job that succeeded. If a stream breaks earlier, the job itself fails.
    if raised.exc_type is not grpc.RpcError:
        threading.__excepthook__(raised)


def _run_pipeline(
    job: LastCollection, environment: environments.Environment, *, flags: list[str]
) -> None:
    logging.getLogger("apache_beam").setLevel(logging.CRITICAL)  # its errors are raised here, too
    options = PipelineOptions([*QUIET_AND_UNCHECKED, *flags])
    encoded = JobServiceHandle.encode_pipeline_options(options.get_all_options())
    # built by hand: worker processes would otherwise receive none of the options
    provision = fn_runner.ExtendedProvisionInfo(
        beam_provision_api_pb2.ProvisionInfo(pipeline_options=encoded)
    )
    runner = fn_runner.FnApiRunner(default_environment=environment, provision_info=provision)
    pipeline = Pipeline(runner=runner, options=options)
    try:
        add_job(job, pipeline)
        state = pipeline.run().wait_until_finish()
    except Exception as error:  # any exception of a worker or the runner is the job's failure
        raise job_error(type(error).__name__, str(error)) from error
    if state != PipelineState.DONE:
        raise JobFailed(f"the job ended as {state}")


class SocketServer(worker_handlers.GrpcServer):
    """Beam's `GrpcServer` with a Unix socket each for control, data and state.

    A single socket would be a single connection, where unread data could block control messages.
    """

    directory: ClassVar[str]

    def __init__(
        self,
        state: worker_handlers.StateServicer,
        _: object,
        manager: worker_handlers.WorkerHandlerManager,
    ) -> None:
        executor = thread_pool_executor.shared_unbounded_instance()
        self._servers = [grpc.server(executor, options=SERVER_OPTIONS) for _ in SERVICES]
        self.control_port, self.data_port, self.state_port = range(len(SERVICES))
        self.control_handler = worker_handlers.BeamFnControlServicer(manager)
        self.data_plane_handler = data_plane.BeamFnDataServicer(
            worker_handlers.DATA_BUFFER_TIME_LIMIT_MS
        )
        control, data, states = self._servers
        beam_fn_api_pb2_grpc.add_BeamFnControlServicer_to_server(self.control_handler, control)
        beam_fn_api_pb2_grpc.add_BeamFnDataServicer_to_server(self.data_plane_handler, data)
        beam_fn_api_pb2_grpc.add_BeamFnStateServicer_to_server(
            worker_handlers.GrpcStateServicer(state), states
        )
        for port, server in enumerate(self._servers):
            server.add_insecure_port(self.address(port))
            server.start()

    @classmethod
    def address(cls, port: int) -> str:
        """The address of the service with this number."""
        return "unix:" + quote(os.path.join(cls.directory, SERVICES[port]))

    def close(self) -> None:
        """Finish pending calls and close the sockets."""
        self.control_handler.done()
        for stopped in [server.stop(SHUTDOWN_SECONDS) for server in self._servers]:
            stopped.wait()


class _OnSockets(worker_handlers.GrpcWorkerHandler):
    def port_from_worker(self, port: int) -> str:
        return SocketServer.address(port)


@worker_handlers.WorkerHandler.register_environment(python_urns.EMBEDDED_PYTHON_GRPC, bytes)
class WorkerThread(_OnSockets, worker_handlers.EmbeddedGrpcWorkerHandler):
    """A worker that is a thread of this process."""


@worker_handlers.WorkerHandler.register_environment(python_urns.SUBPROCESS_SDK, bytes)
class ForkedWorker(_OnSockets):
    """A worker process forked by `fork_workers`."""

    waiting: ClassVar[list[socket.socket]] = []
    """Connections to the workers that are not started yet."""

    def __init__(
        self,
        _: bytes,
        state: worker_handlers.StateServicer,
        provision: fn_runner.ExtendedProvisionInfo,
        server: SocketServer,
    ) -> None:
        super().__init__(state, provision, server)
        self._connection = self.waiting.pop()

    def start_worker(self) -> None:
        """Send a worker the environment variables that Beam's harness reads."""
        control = endpoints_pb2.ApiServiceDescriptor(url=self.control_address)
        options = self.provision_info.provision_info.pipeline_options
        environment = {
            "WORKER_ID": self.worker_id,
            "CONTROL_API_SERVICE_DESCRIPTOR": text_format.MessageToString(control),
            "PIPELINE_OPTIONS": json_format.MessageToJson(options),
        }
        self._connection.sendall(json.dumps(environment).encode() + b"\n")

    def stop_worker(self) -> None:
        """Wait for the worker, which exits because its control connection was closed."""
        with self._connection:
            self._connection.recv(1)


def fork_workers(count: int, *, on_death: Callable[[WorkerFailed], None]) -> None:
    """Fork workers for Beam to start, and watch them from a thread.

    `on_death` is called with the error for the first worker that died.
    """
    # A worker lives as long as its connection, for which the other end must be open in one process
    # only. A fork copies every descriptor there is, so each worker closes all but its own:
    # otherwise siblings would keep each other alive.
    pairs = [socket.socketpair() for _ in range(count)]

    def share(own: socket.socket) -> None:
        for connection, client in pairs:
            connection.close()
            if client is not own:
                client.close()
        run_worker(own)

    workers = Workers(partial(share, client) for _, client in pairs)
    for connection, client in pairs:
        client.close()
        ForkedWorker.waiting.append(connection)

    def watch_workers() -> None:
        try:
            while workers.running():
                time.sleep(WORKER_POLL_SECONDS)
        except WorkerFailed as error:
            on_death(error)

    threading.Thread(target=watch_workers, daemon=True).start()


def run_worker(client: socket.socket) -> NoReturn:
    """A worker: Beam's harness, in the environment that the runner sends to `client`."""
    with client.makefile() as request:
        os.environ.update(json.loads(request.readline()))

    def die_with_client() -> None:
        client.recv(1)
        os._exit(0)

    # The runner never writes again, so `recv` returns when its end is closed, as the kernel does
    # when the runner dies in whatever way.
    threading.Thread(target=die_with_client, daemon=True).start()
    code = 1
    try:
        sdk_worker_main.main([])
        code = 0
    finally:
        orphaned, _, _ = select.select([client], [], [], 0)
        # a worker that fails because the runner is gone is not the cause
        os._exit(0 if orphaned else code)
