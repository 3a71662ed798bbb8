"""Beam workers that start in milliseconds: forks of a process that has imported everything.

In:  requests of the runner, one connection each, with what Beam puts into a worker's environment.
Out: workers, each living as long as its connection.

Beam's own worker processes are fresh interpreters, which cost seconds per job. The helper here is
forked before any gRPC channel exists, since gRPC does not survive a fork, and forks each worker.
"""

import json
import os
import select
import signal
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import NoReturn

from artifacts.runtime.processes import die_with_parent
from pipeline.runner.beam import sdk_worker_main

OnDeath = Callable[[int, str], None]


def send_environment(helper: socket.socket, **environment: str) -> None:
    """Ask the helper for a worker that sees these variables."""
    helper.sendall(json.dumps(environment).encode() + b"\n")


class PreforkedWorkers:
    """The helper process, while the body runs; it listens at the Unix socket `address`."""

    def __init__(self, directory: str, *, on_death: OnDeath) -> None:
        self._on_death = on_death
        self._helper = 0
        self._ending = False
        self.address = os.path.join(directory, "workers")

    def __enter__(self) -> "PreforkedWorkers":
        """Fork the helper."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.address)
        listener.listen()
        runner = os.getpid()
        self._helper = os.fork()
        if not self._helper:
            die_with_parent(runner)
            _serve(listener, self._on_death)
        listener.close()
        self._waiting = threading.Thread(target=self._wait_for_helper, daemon=True)
        self._waiting.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the helper; the workers end with their connections."""
        self._ending = True
        os.kill(self._helper, signal.SIGKILL)
        self._waiting.join()
        os.unlink(self.address)

    def _wait_for_helper(self) -> None:
        _, status = os.waitpid(self._helper, 0)
        if not self._ending:
            self._on_death(self._helper, _cause(os.waitstatus_to_exitcode(status)))


def _serve(listener: socket.socket, on_death: OnDeath) -> NoReturn:
    """The helper: fork a worker per connection, tell its client when it has ended."""
    helper = os.getpid()
    clients: dict[int, socket.socket] = {}
    deaths, deaths_out = socket.socketpair()
    deaths_out.setblocking(False)
    signal.set_wakeup_fd(deaths_out.fileno())
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while True:
        readable, _, _ = select.select([listener, deaths], [], [])
        if deaths in readable:
            deaths.recv(1 << 10)
            while clients:
                worker, status = os.waitpid(-1, os.WNOHANG)
                if not worker:
                    break
                code = os.waitstatus_to_exitcode(status)
                if code:
                    on_death(worker, _cause(code))
                # the client may be gone, too; younger workers hold its connection open as well
                with clients.pop(worker) as client, suppress(BrokenPipeError):
                    client.sendall(b"\0")
        if listener in readable:
            client, _ = listener.accept()
            worker = os.fork()
            if not worker:
                die_with_parent(helper)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                signal.set_wakeup_fd(-1)
                listener.close()
                _work(client)
            clients[worker] = client


def _cause(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


def _work(client: socket.socket) -> NoReturn:
    """A worker: Beam's harness under the environment its client was given."""
    with client.makefile() as request:
        os.environ.update(json.loads(request.readline()))

    def die_with_client() -> None:
        client.recv(1)
        os._exit(0)

    threading.Thread(target=die_with_client, daemon=True).start()
    code = 1
    try:
        sdk_worker_main.main([])
        code = 0
    finally:
        orphaned, _, _ = select.select([client], [], [], 0)
        # a worker that fails because the runner is gone is not the cause
        os._exit(0 if orphaned else code)
