"""The port of a workspace's Prefect server, whose clients send the secret to whoever listens."""

import os
import socket
from contextlib import closing, suppress
from pwd import getpwnam

import pytest

from cloze.artifacts.errors import UsageError
from cloze.flows.prefect.server import _reserve, bind_reserved


def test_nobody_takes_the_port_before_or_after_the_server() -> None:
    """The client sends the secret to whoever listens there."""
    with closing(_reserve(0)) as reserved:
        port = reserved.getsockname()[1]
        for user in (None, getpwnam("nobody").pw_uid) if os.geteuid() == 0 else (None,):
            assert taken_by(user, port) == [], "by a stranger, while no server listens"
        with closing(socket.socket()) as server:
            bind_reserved(server, port)
            server.listen()
            with pytest.raises(UsageError, match=f"port {port}: address already in use"):
                _reserve(port)
            ended = socket.create_connection(("127.0.0.1", port))
            server.accept()[0].close()
            ended.close()
        with pytest.raises(ConnectionRefusedError):  # a client of a killed server does not wait
            socket.create_connection(("127.0.0.1", port))
    _reserve(port).close()  # though connections have just ended there


def taken_by(user: int | None, port: int) -> list[tuple[str, tuple[int, ...]]]:
    """The addresses and options with which a process of `user` (None: ours) can listen there."""
    attempts = [
        (address, options)
        for address in ("127.0.0.1", "0.0.0.0")
        # with SO_REUSEPORT, a process of our own user may
        for options in ((), (socket.SO_REUSEADDR,), *([(socket.SO_REUSEPORT,)] if user else []))
    ]
    child = os.fork()
    if child == 0:
        succeeded = 0
        try:
            if user:
                os.setuid(user)
            for index, (address, options) in enumerate(attempts):
                with suppress(OSError), closing(socket.socket()) as stranger:
                    for option in options:
                        stranger.setsockopt(socket.SOL_SOCKET, option, 1)
                    stranger.bind((address, port))
                    stranger.listen()
                    succeeded |= 1 << index
        finally:
            os._exit(min(succeeded, 255))
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return [attempt for index, attempt in enumerate(attempts) if code >> index & 1]
