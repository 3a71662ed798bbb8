"""The application of a Prefect server of ours: Prefect's own, closed to other people's web pages.

In:  Prefect's settings, from the environment (flows/prefect/server.py).
Out: an ASGI application for uvicorn, which answers only requests to a local host name; at
     /reports/RUN it shows that run's report to whoever knows the secret.

A page of another site can make a browser send requests here. Prefect's settings keep it from
reading the answers and from knowing the secret; the check of the name also refuses a site that has
its own name resolve to 127.0.0.1.
"""

import os
import secrets
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException
from fastapi.responses import HTMLResponse
from fastapi.routing import APIRoute
from fastapi.security import HTTPBasic, HTTPBasicCredentials
from prefect.server.api import server
from starlette.middleware.trustedhost import TrustedHostMiddleware

from artifacts import filesystem
from flows.prefect.server import SHOWN_WORKSPACE
from flows.record import PAGE_NAME, list_runs
from flows.workspace import Workspace

LOCAL_NAMES = ("127.0.0.1", "localhost")

SANDBOX = {"Content-Security-Policy": "sandbox; script-src 'none'"}
"""A report holds text of corpora, so in a browser it must not act as a page of Prefect's."""


def create_app() -> FastAPI:
    """The factory that uvicorn calls."""
    app = server.create_app()
    if os.environ.get(SHOWN_WORKSPACE):
        # first, since Prefect's pages answer every path that nobody else does
        app.router.routes.insert(0, APIRoute("/reports/{run}", report))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=LOCAL_NAMES)
    return app


def report(
    run: str, given: Annotated[HTTPBasicCredentials, Depends(HTTPBasic(realm="Cloze"))]
) -> HTMLResponse:
    """The page of `run`; the browser asks for user and password, the two parts of the secret."""
    known = os.environ["PREFECT_SERVER_API_AUTH_STRING"].encode()
    if not secrets.compare_digest(f"{given.username}:{given.password}".encode(), known):
        raise HTTPException(401, "not the secret", {"WWW-Authenticate": 'Basic realm="Cloze"'})
    space = Workspace(os.environ[SHOWN_WORKSPACE])
    path = filesystem.join(space.run_folder(run), PAGE_NAME)
    if run not in list_runs(space) or not filesystem.exists(path):
        raise HTTPException(404, f"{run}: no report in workspace {space.root}")
    return HTMLResponse(filesystem.read_bytes(path), headers=SANDBOX)
