"""The application of our Prefect servers: Prefect's own, protected from other web sites.

In:  Prefect's settings, from the environment (flows/prefect/server.py).
Out: an ASGI application for uvicorn that only accepts requests to a local host name, and serves the
     report of each run at /reports/RUN to clients that know the secret.

Other web sites can make a browser send requests to this server. Prefect's settings prevent them
from reading the responses and the secret; checking the host name also refuses sites whose name
resolves to 127.0.0.1 (DNS rebinding).
"""

import os
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from prefect.server.api import server
from starlette.middleware.trustedhost import TrustedHostMiddleware

from cloze.artifacts import filesystem
from cloze.flows.prefect import database
from cloze.flows.prefect.server import SHOWN_WORKSPACE
from cloze.flows.workspace import PAGE_NAME, Workspace, list_runs

LOCAL_NAMES = ("127.0.0.1", "localhost")

SANDBOX = {"Content-Security-Policy": "sandbox; script-src 'none'"}
"""A report contains text of the corpus, so a browser must not treat it as a page of Prefect's."""


def create_app() -> FastAPI:
    """The factory that uvicorn calls."""
    app = server.create_app()
    if os.environ.get(SHOWN_WORKSPACE):
        # inserted first, since Prefect's UI matches every path
        app.router.routes.insert(0, APIRoute("/reports/{run}", report))
    if os.environ.get(database.TO_KEEP):
        app.router.lifespan_context = _keeping_the_database(app.router.lifespan_context)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)
    return app


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
    if not secrets.compare_digest(f"{given.username}:{given.password}".encode(), known):
        raise HTTPException(401, "wrong secret", {"WWW-Authenticate": 'Basic realm="Cloze"'})
    space = Workspace(os.environ[SHOWN_WORKSPACE])
    path = filesystem.join(space.run_folder(run), PAGE_NAME)
    if run not in list_runs(space) or not filesystem.exists(path):
        raise HTTPException(404, f"{run}: no report in workspace {space.root}")
    return HTMLResponse(filesystem.read_bytes(path), headers=SANDBOX)
