"""A Prefect server for runs that are not given one.

In:  a workspace.
Out: PREFECT_API_URL points to a server: the one it already named, or one of our own on 127.0.0.1,
     which ends with us and requires the secret in PREFECT_API_AUTH_STRING.

Clients of a Prefect server can make it run commands, so ours requires the secret of all clients.
The port is bound here and stays bound until the end: another user who bound it before the server
does, or after it was killed, would be sent the secret.

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
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError

from cloze.artifacts.errors import ClozeError, DiskFull, UsageError
from cloze.artifacts.progress import say
from cloze.artifacts.runtime.processes import descendants
from cloze.artifacts.runtime.temporary import temporary_file
from cloze.flows.launchers.local import LocalJob, LocalLauncher
from cloze.flows.locks import leased
from cloze.flows.prefect import database
from cloze.flows.workspace import Workspace


class ServerLost(ClozeError):
    """The Prefect server that a run reports to no longer answers."""


ANSWER_SECONDS = 5.0
"""Time within which a server named by PREFECT_API_URL has to answer."""

START_SECONDS = 120.0
"""Starting takes 10 s with the first database on a machine, 3 s with others, longer when busy."""

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

TEMPORARY = {
    "PREFECT_UI_ENABLED": "0",
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
    "PREFECT_API_BLOCKS_REGISTER_ON_START": "false",
}
"""Prefect's own settings for a temporary server (prefect/server/api/server.py). It registers no
block types, for which it would import every collection that is installed; `cloze serve` does."""

SERVER = "cloze.flows.prefect.application"
"""Our server's program."""

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
    """Provide a server for `run` to report to; yields its API's URL once it answers.

    The same as `starting_server`; `meanwhile` is called while it starts, for example to import
    Prefect.
    """
    with starting_server(workspace, run=run, port=port) as server:
        meanwhile()
        server.wait()
        yield server.url


@contextmanager
def starting_server(workspace: Workspace, *, run: str, port: int = 0) -> "Iterator[Server]":
    """Start a server for `run` to report to, without waiting for it.

    With a `port`, it has the UI and all services; without one, it only records events. Raises
    `ServerLost` if PREFECT_API_URL names a server that does not answer.
    """
    quiet_environment()
    if os.environ.get("PREFECT_API_URL"):
        _require_answer(os.environ["PREFECT_API_URL"])
        yield Server(os.environ["PREFECT_API_URL"])
        return
    home = workspace.local / "prefect"
    # Servers of a workspace share its database, but each has its own job folder.
    job = home / (f"server-{port}" if port else f"run-{run}")
    reserved = _reserve(port)
    free = int(reserved.getsockname()[1])
    # a browser may use either name
    pages = f"http://127.0.0.1:{port},http://localhost:{port}"
    secret = kept_secret(secret_file(workspace))
    ours = {
        "PREFECT_API_URL": f"http://127.0.0.1:{free}/api",
        "PREFECT_API_AUTH_STRING": secret,
        **({SHOWN_WORKSPACE: workspace.root} if port else {}),
    }
    argv = (sys.executable, "-P", "-m", SERVER, str(free))
    environment = {
        **({} if port else TEMPORARY),
        "PREFECT__SERVER_FINAL": "1",
        "PREFECT_SERVER_API_AUTH_STRING": secret,
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": pages if port else "",
    }
    # In this process's own environment: Prefect, imported later, reads its client's settings there.
    os.environ.update(NEAR, PREFECT_HOME=str(home), **ours)
    if not (home / database.NAME).exists():
        _require_room(home)
    migrated = database.provide(home)
    # No template yet: this server makes it.
    if not (home / database.NAME).exists():
        environment[database.TO_KEEP] = str(database.template())
    launcher = LocalLauncher(grace=STOP_SECONDS, environment=environment)
    with reserved, ExitStack() as lease:
        if not migrated:  # one at a time, since each migrates the shared database when it starts
            waiting = leased(workspace.local, "prefect", run=run, waiting=lambda holder: None)
            lease.enter_context(waiting)
        try:
            launcher.start(argv, job=job)
            _wait_for_program(job)
            yield Server(ours["PREFECT_API_URL"], Start(argv, launcher, job, lease))
        finally:
            launcher.cancel(job)
            # Otherwise the next run in this process would take this server for one it was given.
            for name in ours:
                del os.environ[name]


@dataclass
class Start:
    """The start of a server of our own."""

    argv: Sequence[str]
    launcher: LocalLauncher
    job: Path
    lease: ExitStack
    """Released once the server answers."""
    number: int = 1
    deadline: float = field(default_factory=lambda: time.monotonic() + START_SECONDS)

    def check(self) -> None:
        """Start the server again if it was killed; raises if it cannot be started."""
        code = self.launcher.poll(self.job)
        # A negative code is a signal's number.
        if code is not None and code < 0:
            if self.number == STARTS:
                raise ClozeError(f"the Prefect server was killed {STARTS} times while it started")
            say("warning: the Prefect server was killed while it started; starting it again")
            self.launcher.start(self.argv, job=self.job)
            self.number, self.deadline = self.number + 1, time.monotonic() + START_SECONDS
        elif code is not None or time.monotonic() > self.deadline:
            _require_room(self.job)
            raise ClozeError(
                f"the Prefect server did not start (exit code {code}); see {self.job / 'log'}"
            )


class Server:
    """A Prefect server, which may still be starting."""

    def __init__(self, url: str, start: Start | None = None) -> None:
        self.url = url
        """Of its API."""
        self._start = start

    def ready(self) -> bool:
        """Whether it answers; starts it again if it was killed before it did."""
        start = self._start
        if start is None:
            return True
        with (
            suppress(URLError, ConnectionError, TimeoutError, HTTPException),
            urllib.request.urlopen(f"{self.url}/health", timeout=5.0) as answer,
        ):
            if answer.status == 200:
                # It has migrated the database, so others may start.
                start.lease.close()
                self._start = None
                return True
        start.check()
        return False

    def wait(self) -> None:
        """Return once it answers."""
        while not self.ready():
            time.sleep(0.1)


def secret_file(workspace: Workspace) -> Path:
    """File with the secret of the workspace's own servers, readable only by their user."""
    return workspace.local / "prefect" / "secret"


def kept_secret(file: Path) -> str:
    """The secret in `file`, created if needed, or replaced if other users could read it."""
    with suppress(OSError):
        facts = file.lstat()
        # A link has another mode, so it is replaced as well.
        if stat.S_IMODE(facts.st_mode) == PRIVATE and facts.st_uid == os.geteuid():
            return file.read_text().strip()
    secret = f"cloze:{secrets.token_urlsafe(24)}"
    file.parent.mkdir(parents=True, exist_ok=True)
    with temporary_file(str(file.parent), mode=PRIVATE) as written:
        Path(written).write_text(secret + "\n")
        os.replace(written, file)
    return secret


def _require_answer(url: str) -> None:
    """Raise `ServerLost` unless there is any answer at the API `url`."""
    try:
        urllib.request.urlopen(f"{url}/health", timeout=ANSWER_SECONDS).close()
    except HTTPError:
        # Any answer shows a server, even 401.
        return
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise ServerLost(f"PREFECT_API_URL {url}: no answer ({reason})") from None


def _wait_for_program(job: Path) -> None:
    """Return once the server's program runs, so that no job takes it for one of its own."""
    started, deadline = LocalJob.read(job), time.monotonic() + ANSWER_SECONDS
    while started and started.supervisor.alive and time.monotonic() < deadline:
        if descendants(started.supervisor.pid):
            return
        time.sleep(0.02)


def _require_room(folder: Path) -> None:
    """Raise `DiskFull` if a new database does not fit into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    if free < DATABASE_BYTES:
        raise DiskFull(
            f"{folder}: no space for the Prefect server's database ({free / 1e6:.0f} "
            "MB free); free some and repeat the command, or add --without-prefect"
        )


def bind_reserved(server: socket.socket, port: int) -> None:
    """Bind the `server`'s socket to a `port` that its parent has reserved."""
    # the first for the reservation, the second so that the port can be reserved again at once
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    server.bind(("127.0.0.1", port))


def _reserve(port: int) -> socket.socket:
    """A socket bound to `port`, or to a free one for 0; raises a `UsageError` if it is in use.

    It does not listen, so clients of a server that was killed are refused and do not wait. While it
    exists, the system lets nobody bind the port but processes of the same user, which the server
    is, that ask for SO_REUSEPORT. SO_REUSEADDR is for the moment of binding alone, since it takes
    over a port where connections have just ended, and would let others do so.
    """
    reserved = socket.socket()
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", port))
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 0)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    except OSError as error:
        reserved.close()
        reason = os.strerror(error.errno or 0).lower()
        raise UsageError(
            f"port {port}: {reason}; choose another one (--port {port + 1}), or set "
            "PREFECT_API_URL to the server that uses it"
        ) from None
    return reserved
