"""A Prefect server for one run, where there is no other.

In:  a workspace.
Out: PREFECT_API_URL names a server: the one it named already, or one of our own that ends with us.

Prefect's own temporary server shares our process group, so that Ctrl-C would end it before it has
heard how the run ended, and nothing would end it after `kill -9`. Ours has a supervisor. Its
database lies in the workspace. Use this module before `prefect` is imported: it reads its settings
then.
"""

import os
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from urllib.error import URLError

from artifacts.errors import ClozeError
from flows.launchers.local import LocalLauncher
from flows.workspace import Workspace


class ServerLost(ClozeError):
    """The Prefect server that a run reports to does not answer any more."""


START_SECONDS = 120.0
"""A new home takes 10 s, an old one 3 s; a busy machine longer."""

STOP_SECONDS = 3.0

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "cloze.run",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_CLI_PROMPT": "false",
}
"""No telemetry; our events in the server's logs; nothing of Prefect's own on our console."""

TEMPORARY = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
}
"""What Prefect itself sets for a temporary server (prefect/server/api/server.py)."""

NEAR = {"PREFECT_CLIENT_MAX_RETRIES": "2"}
"""A server of our own answers at once or is dead; five attempts, a minute for each call, are for
one far away."""


def quiet_environment() -> None:
    """Settings for every program of ours that imports Prefect; what the user has set stays."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


@contextmanager
def prefect_server(
    workspace: Workspace, *, port: int = 0, meanwhile: Callable[[], object] = lambda: None
) -> Iterator[str]:
    """A server to report to while inside; yields its API's URL.

    With a `port` it is a full one with pages and services, without one it only takes notes. While
    it starts, `meanwhile` is called: importing Prefect takes as long.
    """
    quiet_environment()
    if os.environ.get("PREFECT_API_URL"):
        meanwhile()
        yield os.environ["PREFECT_API_URL"]
        return
    home = workspace.local / "prefect"
    free = port or _free_port()
    url = f"http://127.0.0.1:{free}/api"
    launcher = LocalLauncher(grace=STOP_SECONDS, environment={} if port else TEMPORARY)
    os.environ.update(NEAR, PREFECT_HOME=str(home), PREFECT_API_URL=url)
    try:
        launcher.start(_full_server(free) if port else _temporary_server(free), job=home / "server")
        meanwhile()
        _wait_until_healthy(url, launcher=launcher, job=home / "server")
        yield url
    finally:
        launcher.cancel(home / "server")
        del os.environ["PREFECT_API_URL"]


def _full_server(port: int) -> tuple[str, ...]:
    command = ("prefect", "server", "start", "--host", "127.0.0.1", "--port", str(port))
    return (sys.executable, "-P", "-m", *command)


def _temporary_server(port: int) -> tuple[str, ...]:
    factory = ("--factory", "prefect.server.api.server:create_app")
    quiet = ("--log-level", "error", "--lifespan", "on")
    address = ("--host", "127.0.0.1", "--port", str(port))
    return (sys.executable, "-P", "-m", "uvicorn", *factory, *address, *quiet)


def _wait_until_healthy(url: str, *, launcher: LocalLauncher, job: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not _healthy(url):
        code = launcher.poll(job)
        if code is not None or time.monotonic() > deadline:
            raise ClozeError(
                f"the Prefect server did not start (exit code {code}); see {job / 'log'}, "
                "or run without Prefect (--without-prefect)"
            )
        time.sleep(0.1)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError, TimeoutError):
        return False


def _free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
