"""Waiting for other processes, in tests that really start them.

A test never sleeps for what it waits for, and its bound is generous: it ends a test that hangs, and
says nothing about speed. Whoever needs a port asks the kernel for one.
"""

import socket
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 300.0
"""Seconds. Only what hangs takes as long, however busy the machine is meanwhile."""

T = TypeVar("T")


def wait_for(condition: Callable[[], T], *, seconds: float = PATIENCE, what: str = "it") -> T:
    """The first true value of `condition`."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what} in vain"
        time.sleep(0.02)
    return found


def free_port() -> int:
    """A port of loopback on which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
