"""A Prefect server for runs that are not given one.

In:  a workspace.
Out: PREFECT_API_URL points to a server: the one it already named, or one of our own on 127.0.0.1,
     which ends with us and requires the secret in PREFECT_API_AUTH_STRING.

Clients of a Prefect server can make it run commands, so ours requires the secret of all clients.

Prefect's own temporary server shares our process group: Ctrl-C would end it before the run could
report how it ended, and nothing would end it after `kill -9`. Ours has a supervisor, and keeps its
database in the workspace. Call this module before importing `prefect`, which reads its settings
on import.
"""

import os
import secrets
import shutil
import socket
import stat
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError

from cloze.artifacts.errors import ClozeError, DiskFull, UsageError
from cloze.artifacts.progress import say
from cloze.flows.launchers.local import LocalLauncher
from cloze.flows.locks import leased
from cloze.flows.workspace import Workspace


class ServerLost(ClozeError):
    """The Prefect server that a run reports to no longer answers."""


ANSWER_SECONDS = 5.0
"""Time within which a server named by PREFECT_API_URL has to answer."""

START_SECONDS = 120.0
"""Starting takes 10 s with a new database, 3 s with an existing one, and longer when busy."""

STARTS = 3
"""Maximum number of starts, if the server is killed while starting."""

SHOWN_WORKSPACE = "CLOZE_SHOWN_WORKSPACE"
"""Environment variable with the workspace whose reports a server shows, also for its flow runs."""

DATABASE_BYTES = 4 << 20
"""A new database takes about 2 MB; if the disk is full, the server fails without a message."""

STOP_SECONDS = 3.0

QUIET = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_EXTRA_LOGGERS": "cloze.run",
    "PREFECT_LOGGING_TO_API_WHEN_MISSING_FLOW": "ignore",
    "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
    "PREFECT_CLI_PROMPT": "false",
}
"""No telemetry, our events in the server's logs, and no output of Prefect's own."""

TEMPORARY = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}
"""Prefect's own settings for a temporary server (prefect/server/api/server.py)."""

SERVER = (
    *("uvicorn", "--factory", "cloze.flows.prefect.application:create_app"),
    *("--log-level", "error", "--lifespan", "on"),
)

PRIVATE = 0o600
"""Mode of the file with the secret."""

NEAR = {"PREFECT_CLIENT_MAX_RETRIES": "2"}
"""A local server answers immediately or is dead; Prefect's default of five retries, a minute per
call, is meant for remote servers."""


def quiet_environment() -> None:
    """Set defaults for programs that import Prefect, without overriding the user's settings."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)


@contextmanager
def prefect_server(
    workspace: Workspace,
    *,
    run: str,
    port: int = 0,
    meanwhile: Callable[[], object] = lambda: None,
) -> Iterator[str]:
    """Provide a server for `run` to report to; yields its API's URL.

    With a `port`, it has the UI and all services; without one, it only records events. `meanwhile`
    is called while it starts, for example to import Prefect. Raises `ServerLost` if PREFECT_API_URL
    names a server that does not answer.
    """
    quiet_environment()
    if os.environ.get("PREFECT_API_URL"):
        _require_answer(os.environ["PREFECT_API_URL"])
        meanwhile()
        yield os.environ["PREFECT_API_URL"]
        return
    home = workspace.local / "prefect"
    job = home / (f"server-{port}" if port else f"run-{run}")
    free = _bindable(port)
    pages = f"http://127.0.0.1:{port},http://localhost:{port}"
    secret = kept_secret(secret_file(workspace))
    ours = {
        "PREFECT_API_URL": f"http://127.0.0.1:{free}/api",
        "PREFECT_API_AUTH_STRING": secret,
        **({SHOWN_WORKSPACE: workspace.root} if port else {}),
    }
    argv = (sys.executable, "-P", "-m", *SERVER, "--host", "127.0.0.1", "--port", str(free))
    environment = {
        **({} if port else TEMPORARY),
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_SERVER_API_AUTH_STRING": secret,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": pages if port else "",
    }
    launcher = LocalLauncher(grace=STOP_SECONDS, environment=environment)
    os.environ.update(NEAR, PREFECT_HOME=str(home), **ours)
    try:
        # one at a time, since each migrates the shared database when it starts
        with leased(workspace.local, "prefect", run=run, waiting=lambda holder: None):
            launcher.start(argv, job=job)
            meanwhile()
            _wait_until_healthy(ours["PREFECT_API_URL"], argv, launcher=launcher, job=job)
        yield ours["PREFECT_API_URL"]
    finally:
        launcher.cancel(job)
        for name in ours:
            del os.environ[name]


def secret_file(workspace: Workspace) -> Path:
    """File with the secret of the workspace's own servers, readable only by their user."""
    return workspace.local / "prefect" / "secret"


def kept_secret(file: Path) -> str:
    """The secret in `file`, created if needed, or replaced if other users could read it."""
    with suppress(OSError):
        facts = file.lstat()
        if stat.S_IMODE(facts.st_mode) == PRIVATE and facts.st_uid == os.geteuid():
            return file.read_text().strip()
    secret = f"cloze:{secrets.token_urlsafe(24)}"
    file.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=file.parent, delete=False) as written:  # mode 0600
        written.write(secret + "\n")
    os.replace(written.name, file)
    return secret


def _require_answer(url: str) -> None:
    """Raise `ServerLost` unless there is any answer at the API `url`."""
    try:
        urllib.request.urlopen(f"{url}/health", timeout=ANSWER_SECONDS).close()
    except HTTPError:
        return
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerLost(f"PREFECT_API_URL {url}: no answer ({reason})") from None


def _wait_until_healthy(
    url: str, argv: Sequence[str], *, launcher: LocalLauncher, job: Path
) -> None:
    """Wait until the server answers, and restart it if it is killed meanwhile."""
    started, deadline = 1, time.monotonic() + START_SECONDS
    while True:
        with (
            suppress(URLError, ConnectionError, TimeoutError, HTTPException),
            urllib.request.urlopen(f"{url}/health", timeout=5.0) as answer,
        ):
            if answer.status == 200:
                return
        code = launcher.poll(job)
        if code is not None and code < 0:
            if started == STARTS:
                raise ClozeError(f"the Prefect server was killed {STARTS} times while it started")
            say("warning: the Prefect server was killed while it started; starting it again")
            launcher.start(argv, job=job)
            started, deadline = started + 1, time.monotonic() + START_SECONDS
        elif code is not None or time.monotonic() > deadline:
            free = shutil.disk_usage(job).free
            if free < DATABASE_BYTES:
                raise DiskFull(
                    f"{job.parent}: no space for the Prefect server's database ({free / 1e6:.0f} "
                    "MB free); free some and repeat the command, or add --without-prefect"
                )
            raise ClozeError(
                f"the Prefect server did not start (exit code {code}); see {job / 'log'}"
            )
        time.sleep(0.1)


def _bindable(port: int) -> int:
    """`port`, or a free one for 0; raises a `UsageError` if it is in use."""
    with closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise UsageError(
                f"port {port}: {reason}; choose another one (--port {port + 1}), or set "
                "PREFECT_API_URL to the server that uses it"
            ) from None
        return int(probe.getsockname()[1])
