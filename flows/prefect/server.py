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
from urllib.error import URLError

from artifacts.errors import ClozeError, UsageError
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

FULL_SERVER = ("prefect", "server", "start")
TEMPORARY_SERVER = (
    *("uvicorn", "--factory", "prefect.server.api.server:create_app"),
    *("--log-level", "error", "--lifespan", "on"),
)

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
    free = _bindable(port)
    url = f"http://127.0.0.1:{free}/api"
    program = FULL_SERVER if port else TEMPORARY_SERVER
    argv = (sys.executable, "-P", "-m", *program, "--host", "127.0.0.1", "--port", str(free))
    launcher = LocalLauncher(grace=STOP_SECONDS, environment={} if port else TEMPORARY)
    os.environ.update(NEAR, PREFECT_HOME=str(home), PREFECT_API_URL=url)
    try:
        launcher.start(argv, job=home / "server")
        meanwhile()
        deadline = time.monotonic() + START_SECONDS
        while not _is_healthy(url):
            code = launcher.poll(home / "server")
            if code is not None or time.monotonic() > deadline:
                raise ClozeError(
                    f"the Prefect server did not start (exit code {code}); see "
                    f"{home / 'server' / 'log'}"
                )
            time.sleep(0.1)
        yield url
    finally:
        launcher.cancel(home / "server")
        del os.environ["PREFECT_API_URL"]


def _bindable(port: int) -> int:
    """`port`, or a free one for 0; a `UsageError` if something listens there."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise UsageError(
                f"port {port}: {reason}; choose another one (--port {port + 1}), or name the "
                "server that is there in PREFECT_API_URL"
            ) from None
        return int(probe.getsockname()[1])


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer:
            return bool(answer.status == 200)
    except (URLError, ConnectionError, TimeoutError):
        return False
