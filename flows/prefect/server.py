"""A Prefect server for one run, where there is no other.

In:  a workspace.
Out: PREFECT_API_URL names a server: the one it named already, or one of our own that ends with us,
     on 127.0.0.1, with a secret that PREFECT_API_AUTH_STRING holds.

Whoever can reach a server can make it run commands, so ours requires the secret of everyone.

Prefect's own temporary server shares our process group, so that Ctrl-C would end it before it has
heard how the run ended, and nothing would end it after `kill -9`. Ours has a supervisor. Its
database lies in the workspace. Use this module before `prefect` is imported: it reads its settings
then.
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

from artifacts.errors import ClozeError, DiskFull, UsageError
from artifacts.progress import say
from flows.launchers.local import LocalLauncher
from flows.locks.on_disk import leased
from flows.workspace import Workspace


class ServerLost(ClozeError):
    """The Prefect server that a run reports to no longer answers."""


ANSWER_SECONDS = 5.0
"""How long a server named by PREFECT_API_URL may take to answer at all."""

START_SECONDS = 120.0
"""A new home takes 10 s, an old one 3 s; a busy machine longer."""

STARTS = 3
"""A server that is killed while it starts is started again."""

SHOWN_WORKSPACE = "CLOZE_SHOWN_WORKSPACE"
"""Holds, in a server with pages and in the runs it starts, the workspace whose reports it shows."""

DATABASE_BYTES = 4 << 20
"""A new server writes some 2 MB; without room its own log stays empty."""

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

TEMPORARY = {"PREFECT_UI_ENABLED": "0", "PREFECT__SERVER_EPHEMERAL": "1"}
"""What Prefect itself sets for a temporary server (prefect/server/api/server.py)."""

SERVER = (
    *("uvicorn", "--factory", "flows.prefect.application:create_app"),
    *("--log-level", "error", "--lifespan", "on"),
)

PRIVATE = 0o600
"""Mode of the file with the secret."""

NEAR = {"PREFECT_CLIENT_MAX_RETRIES": "2"}
"""A server of our own answers at once or is dead; Prefect's five attempts, a minute for each call,
are meant for remote ones."""


def quiet_environment() -> None:
    """Settings for every program of ours that imports Prefect; what the user has set stays."""
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
    """A server for `run` to report to while inside; yields its API's URL.

    With a `port` it is a full one with pages and services, without one it only takes notes. While
    it starts, `meanwhile` is called: importing Prefect takes as long. Raises `ServerLost` if
    PREFECT_API_URL names a server that does not answer.
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
        # one at a time: each brings the database that they share to its own version
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
    """Path of the secret of the workspace's own servers, which only their user can read."""
    return workspace.local / "prefect" / "secret"


def kept_secret(file: Path) -> str:
    """The secret in `file`, created if needed; one that others could have read is replaced."""
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
    """Raise `ServerLost` if nobody answers at the API `url`, whatever the answer is."""
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
    """Wait until the server answers; one that is killed while it starts is started again."""
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
                    f"{job.parent}: no room for the Prefect server's database ({free / 1e6:.0f} MB "
                    "free); make room, or add --without-prefect: the same command goes on"
                )
            raise ClozeError(
                f"the Prefect server did not start (exit code {code}); see {job / 'log'}"
            )
        time.sleep(0.1)


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
