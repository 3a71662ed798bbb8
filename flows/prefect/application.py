"""The program of our Prefect servers: Prefect's own application, protected from other web sites.

    python -P -m cloze.flows.prefect.application PORT

In:  Prefect's settings, from the environment (flows/prefect/server.py), and a port that the parent
     has reserved.
Out: an application at 127.0.0.1:PORT that only accepts requests to a local host name, and serves
     the report of each run at /reports/RUN to clients that know the secret.

Other web sites can make a browser send requests to this server. Prefect's settings prevent them
from reading the responses and the secret; checking the host name also refuses sites whose name
resolves to 127.0.0.1 (DNS rebinding).
"""

import base64
import os
import secrets
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from prefect.server.api import server
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cloze.artifacts import filesystem
from cloze.flows.prefect import database
from cloze.flows.prefect.server import SHOWN_WORKSPACE, bind_reserved
from cloze.flows.workspace import PAGE_NAME, Workspace, list_runs

STARTUP_FAILED = 3

LOCAL_NAMES = ("127.0.0.1", "localhost")

POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; font-src 'self' data:; "
    "worker-src 'self' blob:; connect-src 'self' {origins}; object-src 'none'; base-uri 'self'; "
    "form-action 'self'; frame-ancestors 'none'"
)
"""What pages may load and contact: this server alone. Prefect's page would call an analytics
service, whatever its settings say. It computes its colours by `eval`: without that, it is black on
black where the browser prefers dark."""

SANDBOX = {"Content-Security-Policy": "sandbox; script-src 'none'"}
"""A report contains text of the corpus, so a browser must not treat it as a page of Prefect's."""


def main(port: int) -> int:
    """Serve at `port` until told to stop; returns the exit code."""
    with socket.socket() as listening:
        bind_reserved(listening, port)
        factory = partial(create_app, port)
        running = uvicorn.Server(
            uvicorn.Config(factory, factory=True, log_level="error", lifespan="on")
        )
        running.run(sockets=[listening])
    return 0 if running.started else STARTUP_FAILED


def create_app(port: int) -> FastAPI:
    """The factory that uvicorn calls; browsers may know the server by either local name."""
    schemes = ("http", "ws")
    origins = [f"{scheme}://{name}:{port}" for scheme in schemes for name in LOCAL_NAMES]
    app = server.create_app()
    if os.environ.get(SHOWN_WORKSPACE):
        # inserted first, since Prefect's UI matches every path
        app.router.routes.insert(0, APIRoute("/reports/{run}", report))
    if os.environ.get(database.TO_KEEP):
        app.router.lifespan_context = _keeping_the_database(app.router.lifespan_context)
    # The middleware added last is asked first.
    app.add_middleware(PasswordsInAscii)
    app.add_middleware(ContentPolicy, policy=POLICY.format(origins=" ".join(origins)))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)
    return app


class PasswordsInAscii:
    """Refuses passwords with other characters, which Prefect's comparison fails on (status 500)."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 to such a request, and pass others on."""
        given = Headers(scope=scope).get("authorization", "") if scope["type"] == "http" else ""
        try:
            is_ascii = base64.b64decode(given.partition(" ")[2]).isascii()
        except ValueError:
            is_ascii = True  # no password at all, which Prefect refuses
        if is_ascii:
            await self.app(scope, receive, send)
        else:
            await PlainTextResponse("Unauthorized", status_code=401)(scope, receive, send)


class ContentPolicy:
    """Adds `policy` to every response that has no content security policy of its own."""

    def __init__(self, app: ASGIApp, policy: str) -> None:
        self.app = app
        self.policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and the response with the policy."""

        async def send_with_policy(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.setdefault("Content-Security-Policy", self.policy)
                headers.setdefault("Referrer-Policy", "no-referrer")
            await send(message)

        await self.app(scope, receive, send_with_policy)


def _keeping_the_database(
    start: Callable[[FastAPI], AbstractAsyncContextManager[Any]],
) -> Callable[[FastAPI], AbstractAsyncContextManager[Any]]:
    """The same `start`, after which the database, migrated and still empty, becomes the template.

    The next server with a new database copies it.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[Any]:
        async with start(app) as state:
            database.keep(Path(os.environ["PREFECT_HOME"]), Path(os.environ[database.TO_KEEP]))
            yield state

    return lifespan


def report(
    run: str, given: Annotated[HTTPBasicCredentials, Depends(HTTPBasic(realm="Cloze"))]
) -> HTMLResponse:
    """The report of `run`; user and password are the two parts of the secret."""
    known = os.environ["PREFECT_SERVER_API_AUTH_STRING"].encode()
    # As bytes, since strings that are not ASCII are refused.
    if not secrets.compare_digest(f"{given.username}:{given.password}".encode(), known):
        raise HTTPException(401, "wrong secret", {"WWW-Authenticate": 'Basic realm="Cloze"'})
    space = Workspace(os.environ[SHOWN_WORKSPACE])
    path = filesystem.join(space.run_folder(run), PAGE_NAME)
    # `run` comes from the request, so it may be `..`.
    if run not in list_runs(space) or not filesystem.exists(path):
        raise HTTPException(404, f"{run}: no report in workspace {space.root}")
    return HTMLResponse(filesystem.read_bytes(path), headers=SANDBOX)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
