"""Beam's services for its workers, on Unix sockets in the job's own directory.

In:  the directory of a local job, which only its user may enter.
Out: Beam's runner and its workers speak through that directory; no network port is opened.

Beam binds its services to `[::]`, all addresses, without authentication, and one of them hands out
any file that the user may read. Its worker handlers name the address themselves and are registered
by environment, which is where ours come in; the server alone has no such place and is replaced by
name. Ours has no service that reads files: a worker here has all it needs.
"""

import os
import socket
from typing import ClassVar
from urllib.parse import quote

import grpc
from google.protobuf import json_format, text_format

from pipeline.runner.beam import (
    beam_fn_api_pb2_grpc,
    data_plane,
    endpoints_pb2,
    environments,
    fn_runner,
    python_urns,
    thread_pool_executor,
    worker_handlers,
)
from pipeline.runner.prefork import send_environment

SERVICES = ("control", "data", "state")
"""Numbers of the services, in place of ports."""

SHUTDOWN_SECONDS = 5
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 20_000),
)
"""Those of Beam's own server: messages of any size, and clients that ping every 20 s."""


def serve_in(directory: str) -> None:
    """From now on, Beam's runner in this process serves its workers in `directory` (mode 0700)."""
    SocketServer.directory = directory
    worker_handlers.GrpcServer = SocketServer  # type: ignore[misc,assignment]


class SocketServer(worker_handlers.GrpcServer):
    """Beam's `GrpcServer`: control, data and state, each on a socket of its own.

    A single socket would mean a single connection, where unread data would block control messages.
    """

    directory: ClassVar[str]

    def __init__(
        self,
        state: worker_handlers.StateServicer,
        _: object,
        manager: worker_handlers.WorkerHandlerManager,
    ) -> None:
        executor = thread_pool_executor.shared_unbounded_instance()
        self._servers = [grpc.server(executor, options=OPTIONS) for _ in SERVICES]
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
        """The address of the service of this number."""
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
    """A worker that the helper at the address in the payload forks (prefork.py)."""

    def __init__(
        self,
        payload: bytes,
        state: worker_handlers.StateServicer,
        provision: fn_runner.ExtendedProvisionInfo,
        server: SocketServer,
    ) -> None:
        super().__init__(state, provision, server)
        self._address = os.fsdecode(payload)
        self._connection = socket.socket(socket.AF_UNIX)

    def start_worker(self) -> None:
        """Ask the helper for a worker; it lives as long as the connection."""
        control = endpoints_pb2.ApiServiceDescriptor(url=self.control_address)
        options = self.provision_info.provision_info.pipeline_options
        self._connection.connect(self._address)
        send_environment(
            self._connection,
            WORKER_ID=self.worker_id,
            CONTROL_API_SERVICE_DESCRIPTOR=text_format.MessageToString(control),
            PIPELINE_OPTIONS=json_format.MessageToJson(options),
        )

    def stop_worker(self) -> None:
        """Wait for its end; it ends because its control connection has."""
        with self._connection:
            self._connection.recv(1)


def worker_processes(helper: str) -> environments.Environment:
    """Workers are processes, forked by the helper that listens at `helper`."""
    return environments.SubprocessSDKEnvironment.from_command_string(helper)


def worker_threads() -> environments.Environment:
    """Workers are threads of this process."""
    return environments.EmbeddedPythonGrpcEnvironment.default()
